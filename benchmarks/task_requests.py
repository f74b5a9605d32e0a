"""Make the requests of tasks.py: the files in tasks/ as requests of both servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tasks"
Json = dict[str, Any]
_N_BEFORE, _N_AFTER = 60, 30
"""Lines before and after a hole."""


@dataclass(frozen=True)
class Asked:
    """A request: an endpoint of both servers, and its body."""

    path: str
    body: Json
    is_cancelled: bool = False
    """Whether the client leaves after the first token; the times then do not count."""


def _lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def _about_files(name: str, max_tokens: int) -> list[Asked]:
    """Return chats about a text: an instruction after it, or before it if the answer is the changed code."""
    found = []
    for line in _lines(name):
        text = (FOLDER / line["file"]).read_text(encoding="utf-8")
        if "n_chars" in line:
            content = f"{text[: line['n_chars']]}\n\n---\n{line['instruction']}"
        else:
            content = f"{line['instruction']}\n\n```{line['file'].split('.')[1]}\n{text}```"
        more: Json = {}
        if "schema" in line:
            schema = {"name": "answer", "schema": line["schema"], "strict": True}
            more = {"response_format": {"type": "json_schema", "json_schema": schema}}
        found.append(_chat([{"role": "user", "content": content}], max_tokens, **more))
    return found


def _chat(messages: list[Json], max_tokens: int, **more: Any) -> Asked:
    return Asked("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **more})


def _coding() -> list[Asked]:
    return [_chat(line["messages"], 192) for line in _lines("coding.jsonl")]


def _questions() -> list[Asked]:
    """Return short questions of many kinds, from which nothing learned and to which nothing was tuned."""
    return [_chat(line["messages"], 160) for line in _lines("questions.jsonl")]


def _agent() -> list[Asked]:
    """Return an assistant's turns, one after the other, each after the file's earlier turns, not after the answers."""
    spec = json.loads((FOLDER / "agent.json").read_text(encoding="utf-8"))
    turns = [i for i, message in enumerate(spec["messages"]) if message["role"] == "assistant"]
    return [_chat(spec["messages"][:i], 384, tools=spec["tools"]) for i in turns]


def _calls() -> list[Asked]:
    """Return the turns of the agent in which it calls tools, each with a call required."""
    spec = json.loads((FOLDER / "agent.json").read_text(encoding="utf-8"))
    turns = [i for i, message in enumerate(spec["messages"]) if message.get("tool_calls")]
    return [_chat(spec["messages"][:i], 384, tools=spec["tools"], tool_choice="required") for i in turns]


def _fim() -> list[Asked]:
    """Return holes to the end of a line, with the other file of its kind as context, as llama.vim sends them."""
    places = _lines("fim.jsonl")
    names = list(dict.fromkeys(place["file"] for place in places))
    found = []
    for place in places:
        lines = (FOLDER / place["file"]).read_text(encoding="utf-8").splitlines(keepends=True)
        i = place["line"] - 1
        other = next(
            name for name in names if name != place["file"] and name.split(".")[1] == place["file"].split(".")[1]
        )
        extra = "".join((FOLDER / other).read_text(encoding="utf-8").splitlines(keepends=True)[:20])
        body = {
            "input_prefix": "".join(lines[max(0, i - _N_BEFORE) : i]),
            "prompt": lines[i][: place["column"]],
            "input_suffix": "".join(["\n", *lines[i + 1 : i + 1 + _N_AFTER]]),
            "input_extra": [{"filename": other.removesuffix(".txt").removeprefix("fim_"), "text": extra}],
            "n_predict": 32,
        }
        found.append(Asked("/infill", body))
    return found


def _typing() -> list[Asked]:
    """Return the same holes, typed: each of three characters cancels the request of the one before."""
    found = []
    for asked in _fim():
        typed = asked.body["prompt"]
        for n in (2, 1, 0):
            body = {**asked.body, "prompt": typed[: len(typed) - n]}
            found.append(Asked(asked.path, body, is_cancelled=n > 0))
    return found


TASKS: dict[str, Callable[[], list[Asked]]] = {
    "coding": _coding,
    "questions": _questions,
    "edits": lambda: _about_files("edits.jsonl", 384),
    "fim": _fim,
    "typing": _typing,
    "documents": lambda: _about_files("documents.jsonl", 128),
    "quotes": lambda: _about_files("quotes.jsonl", 256),
    "json": lambda: _about_files("json.jsonl", 256),
    "agent": _agent,
    "calls": _calls,
}


def requests_of(task: str, i_round: int, args: Any) -> list[list[Asked]]:
    """Return the requests of a round, in groups after which the next side has its turn."""
    found = []
    for asked in TASKS[task]()[: args.first]:
        body = {**asked.body, "temperature": args.temp, "seed": 7}
        key = "n_predict" if "n_predict" in body else "max_tokens"
        body[key] = min(body[key], args.n_predict)
        if "messages" in body:
            body["messages"] = [{"role": "system", "content": f"Round {i_round}. Be helpful."}, *body["messages"]]
        else:
            body["input_extra"] = [{"filename": f"round{i_round}.txt", "text": "\n"}, *body["input_extra"]]
        found.append(replace(asked, body=body))
    if task == "agent" or args.clients > 1:
        return [found]
    n_together = 3 if task == "typing" else 1
    return [found[i : i + n_together] for i in range(0, len(found), n_together)]
