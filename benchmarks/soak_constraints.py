"""Put 20,000 constrained requests on a real server: each answer is valid or its loosened rules are named.

    python benchmarks/soak_constraints.py --requests 20000 --publish

Eight clients at once ask for JSON by random schemas, calls of random tools (any, required, a named one), patches by a
grammar in Lark, and texts by a regex, a choice or a GBNF grammar, sampled at random temperatures, as streams or whole.
Each is asked twice, with drafts and without: the answers must be the same. The rest is as in soak.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jsonschema

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import random_schemas
from soak import Soak, main

_REGEXES = (r"[a-c]{2,4}x", r"\d{3}-\d{2}", r"(yes|no|perhaps)( not)?", r"[^,]{1,12}, end", r"(ab|c){1,5}d?")
_CHOICES = (["red", "green", "blue"], ["one", "one more", "two"], ["ü", "日本", "a b"])
_GRAMMAR = 'root ::= "[" item ("," item){0,3} "]"\nitem ::= [0-9]{1,3} | "x" item'
_LARK = 'start: "*** Begin" "\\n" line+ "*** End"\nline: ("+" | "-") /[a-z ]{0,8}/ "\\n"'
_PATCH = re.compile(r"\*\*\* Begin\n(?:[+-][a-z ]{0,8}\n)+\*\*\* End")
_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t.function.name }}\n{% endfor %}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_N_TOKENS = 96


class Constrained(Soak):
    """Requests whose answers follow a schema, a tool or a grammar."""

    flags: ClassVar[list[str]] = ["--chat-template", _TEMPLATE, "-c", "16384"]

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._kinds = [self.json, self.json_of_completion, self.call, self.patch, self.text]

    async def both(self, path: str, body: dict[str, Any], part: Any) -> dict[str, Any]:
        """Ask with drafts and without; return the answer, of which `part(answer)` must be the same in both."""
        body |= {"seed": self._rng.randint(0, 1 << 30), "temperature": self._rng.choice([0.0, 0.6, 1.0, 1.4])}
        drafted = await self.ask(path, body)
        plain = await self.ask(path, body | {"speculative": False})
        self.n_begun += 1
        if part(drafted) != part(plain):
            raise RuntimeError(f"{path} {str(body)[:300]}: {part(drafted)!r} with drafts, {part(plain)!r} without")
        return dict(drafted)

    def document(self) -> Any:
        return random_schemas.document(self._rng)

    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self._rng.choice(self.prompts)[: self._rng.randint(20, 120)]}]

    def valid(self, schema: Any, text: str, metrics: dict[str, Any]) -> None:
        value = json.loads(text)
        if not metrics.get("loosened"):
            jsonschema.Draft202012Validator(schema).validate(value)

    async def json(self) -> None:
        schema = self.document()
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        body = {"messages": self.messages(), "response_format": form, "max_tokens": _N_TOKENS}
        answer = await self.both("/v1/chat/completions", body, lambda a: a["choices"][0]["message"]["content"])
        if answer["choices"][0]["finish_reason"] == "stop":
            self.valid(schema, answer["choices"][0]["message"]["content"], answer["metrics"])

    async def json_of_completion(self) -> None:
        schema = self.document()
        body = {"prompt": self.messages()[0]["content"], "json_schema": schema, "n_predict": _N_TOKENS}
        answer = await self.both("/completion", body, lambda a: a["content"])
        if answer["stop_type"] == "eos":
            self.valid(schema, answer["content"], answer["metrics"])

    async def call(self) -> None:
        schemas = {f"tool_{i}": self.document() for i in range(self._rng.randint(1, 4))}
        tools = [
            {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in schemas.items()
        ]
        name = self._rng.choice(list(schemas))
        named = {"type": "function", "function": {"name": name}}
        choice: Any = self._rng.choice(["required", "required", named])
        body = {"messages": self.messages(), "tools": tools, "tool_choice": choice, "max_tokens": _N_TOKENS}
        body["parallel_tool_calls"] = self._rng.random() < 0.5

        def calls(answer: dict[str, Any]) -> list[Any]:
            return [call["function"] for call in answer["choices"][0]["message"].get("tool_calls") or ()]

        answer = await self.both("/v1/chat/completions", body, calls)
        if answer["choices"][0]["finish_reason"] == "length":
            return
        found = calls(answer)
        if not found or (len(found) > 1 and not body["parallel_tool_calls"]):
            raise RuntimeError(f"{len(found)} calls for {str(body)[:300]}: {str(answer)[:300]}")
        for call in found:
            if choice is named and call["name"] != name:
                raise RuntimeError(f"{call['name']} instead of {named}")
            self.valid(schemas[call["name"]], call["arguments"], answer["metrics"])

    async def patch(self) -> None:
        grammar = {"type": "grammar", "syntax": "lark", "definition": _LARK}
        tool = {"type": "custom", "name": "apply_patch", "format": grammar}
        choice = {"type": "custom", "name": "apply_patch"}
        body = {"input": self.messages(), "tools": [tool], "tool_choice": choice, "max_output_tokens": _N_TOKENS}

        def inputs(answer: dict[str, Any]) -> list[str]:
            return [item["input"] for item in answer["output"] if item["type"] == "custom_tool_call"]

        answer = await self.both("/v1/responses", body, inputs)
        if answer["status"] == "completed":
            (text,) = inputs(answer)
            if not _PATCH.fullmatch(text):
                raise RuntimeError(f"a patch that the grammar does not allow: {text!r}")

    async def text(self) -> None:
        regex, choices = self._rng.choice(_REGEXES), self._rng.choice(_CHOICES)
        forms: list[tuple[str, Any, Callable[[str], object]]] = [
            ("structured_outputs", {"regex": regex}, re.compile(regex).fullmatch),
            ("structured_outputs", {"choice": choices}, choices.__contains__),
            ("grammar", _GRAMMAR, re.compile(r"\[(x*\d{1,3},){0,3}x*\d{1,3}\]").fullmatch),
        ]
        kind, form, is_right = self._rng.choice(forms)
        body = {"prompt": self.messages()[0]["content"], kind: form, "max_tokens": _N_TOKENS}
        answer = await self.both("/v1/completions", body, lambda a: a["choices"][0]["text"])
        text = answer["choices"][0]["text"]
        if answer["choices"][0]["finish_reason"] == "stop" and not is_right(text):
            raise RuntimeError(f"{text!r} by {form}")


if __name__ == "__main__":
    sys.exit(main(Constrained, "soak_constraints", "Constrained requests on the server"))
