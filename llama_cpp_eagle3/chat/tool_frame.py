"""Tools for templates that know none: they are described in the instructions, and calls and results are texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

PROBE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "snowdrop_probe",
        "description": "Find a word",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
"""A tool whose name no template has: one that shows tools shows it."""

_INTRODUCTION = """You can call functions. These are their descriptions, one in each line:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as a JSON object in this form, and nothing after it:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
The result comes in <tool_response>...</tool_response>."""


def framed(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation with its tools in the first instruction, its calls and their results as texts.

    Results are a user's, and join the user's message that follows: many templates want roles to alternate.
    """
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    described = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    introduction = _INTRODUCTION.format(tools=described)
    found: list[dict[str, Any]] = []
    is_result = False
    for message in messages:
        plain = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id", "name")}
        calls, was_result, is_result = message.get("tool_calls"), is_result, message.get("role") == "tool"
        if is_result:
            plain = {
                "role": "user",
                "content": _around("<tool_response>\n", message.get("content"), "\n</tool_response>"),
            }
        elif isinstance(calls, list):
            texts = [f"<tool_call>\n{call_text(call)}\n</tool_call>" for call in calls if isinstance(call, Mapping)]
            plain["content"] = _joined([message.get("content"), *texts])
        if was_result and plain.get("role") == "user":
            found[-1]["content"] = _joined([found[-1]["content"], plain.get("content")])
        else:
            found.append(plain)
    if found and found[0].get("role") in ("system", "developer"):
        found[0]["content"] = _joined([found[0].get("content"), introduction], "\n\n")
    else:
        found.insert(0, {"role": "system", "content": introduction})
    return found


def call_text(call: Message) -> str:
    """A call of a conversation as an object of JSON."""
    function = call.get("function")
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else ("", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}'


def _around(before: str, content: Any, after: str) -> Any:
    if isinstance(content, list):
        return [{"type": "text", "text": before}, *content, {"type": "text", "text": after}]
    return f"{before}{content or ''}{after}"


def _joined(contents: Sequence[Any], between: str = "\n") -> Any:
    contents = [content for content in contents if content]
    if all(isinstance(content, str) for content in contents):
        return between.join(contents)
    parts = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in contents]
    return [part for some in parts for part in some]
