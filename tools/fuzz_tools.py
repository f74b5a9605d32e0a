"""Requests with tools whose names and schemas are of any script: a forced call is made, and fits its schema."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import referencing.exceptions

from fuzz_values import Fuzzer
from random_schemas import document

TAGGED_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for name, value in c.function.arguments | items %}<parameter={{ name }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of a model that writes a tag for each argument."""
PLAIN_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""One that knows no tools."""
TEMPLATES = {"tagged": TAGGED_TEMPLATE, "framed": PLAIN_TEMPLATE}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
_SIGNS = ("_", "-", "--", "__", ".", "/", ":", "$", "@", "", "")
_WORDS = (
    "a",
    "b",
    "read",
    "file",
    "天气",
    "城市",
    "größe",
    "имя",
    "اسم",
    "नाम",
    "🙂",
    "A",
    "1",
    "call",
    "arg",
    "schema",
    "n",
)


def name(fuzzer: Fuzzer) -> str:
    """Return a name of words of several scripts and signs."""
    parts = [fuzzer.pick(_SIGNS), fuzzer.pick(_WORDS), fuzzer.pick(_SIGNS), fuzzer.pick(_WORDS), fuzzer.pick(_SIGNS)]
    return "".join(parts[: fuzzer.rng.randint(2, 5)])


def make_tools(fuzzer: Fuzzer) -> dict[str, Any]:
    """Return the parameters of some tools, by their names."""
    tools = {}
    for _ in range(fuzzer.pick((1, 1, 2, 3, 8))):
        new: dict[str, str] = {}
        schema = _renamed(document(fuzzer.rng, odd=fuzzer.pick((0.0, 0.0, 0.1))), fuzzer, new)
        tools[name(fuzzer)] = fuzzer.pick((schema, schema, schema, {"type": "object"}, {}))
    return tools


def _renamed(schema: Any, fuzzer: Fuzzer, new: dict[str, str]) -> Any:
    """Give a schema's properties other names. new: those that were given, by the old ones."""
    if isinstance(schema, list):
        return [_renamed(part, fuzzer, new) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _renamed(value, fuzzer, new) for key, value in schema.items() if key not in ("enum", "const")}
    found |= {key: schema[key] for key in ("enum", "const") if key in schema}
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        for key in properties:
            while key not in new:
                candidate = name(fuzzer)
                new |= {key: candidate} if candidate not in new.values() else {}
        found["properties"] = {new[key]: _renamed(part, fuzzer, new) for key, part in properties.items()}
    if isinstance(required, list):
        found["required"] = [new.get(key, key) if isinstance(key, str) else key for key in required]
    return found


def make_body(fuzzer: Fuzzer, path: str, tools: dict[str, Any]) -> dict[str, Any]:
    """Return a request that forces a call of one of them."""
    chosen = fuzzer.pick([*tools, None])
    body: dict[str, Any] = {"temperature": 1.0, "seed": fuzzer.rng.randrange(1000)}
    functions = [{"name": one, "description": fuzzer.pick(_WORDS), "parameters": tools[one]} for one in tools]
    if path == "/v1/messages":
        given = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
        choice: Any = {"type": "any"} if chosen is None else {"type": "tool", "name": chosen}
        body |= {"tool_choice": {**choice, "disable_parallel_tool_use": True}, "max_tokens": 200}
        return {**body, "messages": [{"role": "user", "content": "a"}], "tools": given}
    body["parallel_tool_calls"] = False
    if path == "/v1/responses":
        inner = [{"type": "function", **one} for one in functions]
        given = fuzzer.pick((inner, [{"type": "namespace", "name": name(fuzzer), "description": "", "tools": inner}]))
        given = [*given, *fuzzer.pick(([], [{"type": "web_search"}]))]
        choice = "required" if chosen is None else {"type": "function", "name": chosen}
        return {**body, "input": "a", "tools": given, "tool_choice": choice, "max_output_tokens": 200}
    named = {"type": "function", "function": {"name": chosen}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    choice = "required" if chosen is None else fuzzer.pick((named, allowed))
    given = [{"type": "function", "function": one} for one in functions]
    messages = [{"role": "user", "content": "a"}]
    return {**body, "messages": messages, "tools": given, "tool_choice": choice, "max_tokens": 200}


def why_wrong(path: str, body: dict[str, Any], status: int, data: bytes) -> str:
    """Return what is wrong with the answer to such a request; "" if nothing is."""
    if status == 400 and b"exceeds the available context size" in data:  # Anthropic's form has no type of its own
        return ""
    if status != 200:
        return f"status {status} for tools that are in order"
    answer = json.loads(data)
    if path == "/v1/messages":
        is_whole = answer["stop_reason"] == "tool_use"
        texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
        schemas = {tool["name"]: tool["input_schema"] for tool in body["tools"]}
        chosen = body["tool_choice"].get("name")
    elif path == "/v1/responses":
        is_whole = answer["status"] == "completed"
        items = answer["output"]
        texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
        calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
        tools = body["tools"][0]["tools"] if body["tools"][0]["type"] == "namespace" else body["tools"]
        schemas = {tool["name"]: tool["parameters"] for tool in tools if tool["type"] == "function"}
        chosen = None if body["tool_choice"] == "required" else body["tool_choice"]["name"]
    else:
        (choice,) = answer["choices"]
        is_whole, texts = choice["finish_reason"] == "tool_calls", [choice["message"].get("content") or ""]
        functions = [call["function"] for call in choice["message"].get("tool_calls") or []]
        calls = [(function["name"], function["arguments"]) for function in functions]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
        chosen = _chosen(body["tool_choice"])
    if any(text.strip() for text in texts):
        return "text beside a forced call"
    if not is_whole:
        return ""
    if len(calls) != 1 or calls[0][0] not in schemas or chosen not in (None, calls[0][0]):
        return f"calls {[call[0] for call in calls]} where one of {chosen or list(schemas)} is forced"
    (called, arguments) = calls[0]
    loosened = answer.get("metrics", {}).get("loosened")
    if path == "/v1/messages" or any(item["tool"].endswith(called) for item in loosened or ()):
        return ""  # Anthropic's answers do not say what is loosened
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    validator = jsonschema.Draft202012Validator(schemas[called])
    try:
        error = next(iter(validator.iter_errors(value)), None)
    except (jsonschema.SchemaError, referencing.exceptions.Unresolvable, re.error, TypeError, AttributeError):
        return ""  # the schema is in no order, and its parts that are hold anyhow
    return f"arguments do not match: {error.message}" if error else ""


def _chosen(choice: Any) -> str | None:
    if isinstance(choice, str):
        return None
    named = choice["allowed_tools"]["tools"][0] if choice["type"] == "allowed_tools" else choice
    return str(named["function"]["name"])
