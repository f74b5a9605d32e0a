"""Custom tools of OpenAI: each takes one text, and becomes a function with one argument for the model."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from .custom_format import input_schema
from .tool_fields import each_once

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
"""Text in a JSON string, without an escape that is not complete."""


class InputText:
    """The text that a call of a custom tool has, from the pieces of its function's arguments."""

    def __init__(self) -> None:
        self._left = ""
        self._has_begun = False

    def add(self, piece: str) -> str:
        """What a piece of the arguments adds to the text."""
        self._left += piece
        if not self._has_begun:
            begin = _BEGIN.match(self._left)
            if begin is None:
                return ""
            self._has_begun, self._left = True, self._left[begin.end() :]
        found = _PIECE.match(self._left)
        assert found is not None
        self._left = self._left[found.end() :]
        return str(json.loads(f'"{found.group()}"', strict=False))


def input_of(arguments: str) -> str:
    """The text of a whole call, or of one that was cut off."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return InputText().add(arguments)
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def custom_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a custom tool, with the name that it has.

    tool: its name, description and format; a grammar's syntax and definition are in the format, or in its `grammar`.

    Raises:
        ValueError: a field has another form.
    """
    name = tool_name(tool, "custom")
    text, note = input_schema(tool.get("format"))
    description = f"{tool.get('description') or ''}\n\n{note}"
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return {"name": name, "description": description.strip(), "parameters": parameters}


def tool_name(tool: Mapping[str, Any], kind: Any) -> str:
    """The name of a tool of some type; ValueError: it has none."""
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"expected a tool of type {kind!r} to have a 'name', found {name!r}")
    return name


def unique_name(name: str, taken: Collection[str]) -> str:
    """A name that no other tool of a request has."""
    found, n = name, 2
    while found in taken:
        found, n = f"{name}_{n}", n + 1
    return found


def custom_names(tools: Any) -> dict[str, str]:
    """[function's name]: the name of the custom tool of a chat that it stands for."""
    if not isinstance(tools, list):
        return {}
    taken, found = set[str](), dict[str, str]()
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        taken |= {str(function.get("name"))} if isinstance(function, Mapping) else set()
    for tool in tools:
        inner = tool.get("custom") if isinstance(tool, Mapping) and tool.get("type") == "custom" else None
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if isinstance(name, str):
            flat = unique_name(name, taken)
            taken.add(flat)
            found[flat] = name
    return found


def with_functions(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request of a chat with functions in place of its custom tools, and a choice of them.

    Raises:
        ValueError: a custom tool has another form or another one's name, or the choice names none of them.
    """
    names = custom_names(body.get("tools"))
    each_once(((name,), flat) for flat, name in names.items())
    flat_names = iter(names)
    tools = []
    for i, tool in enumerate(body["tools"]):
        if not isinstance(tool, Mapping) or tool.get("type") != "custom":
            tools.append(tool)
            continue
        inner = tool.get("custom")
        try:
            if not isinstance(inner, Mapping):
                raise ValueError("expected a tool of type 'custom' to have an object 'custom'")
            function = custom_function(inner)
        except ValueError as e:
            raise ValueError(f"tools.{i}: {e}") from None
        tools.append({"type": "function", "function": {**function, "name": next(flat_names)}})
    flat = {name: flat for flat, name in reversed(names.items())}
    return {**body, "tools": tools, "tool_choice": _choice(body.get("tool_choice"), flat)}


def _choice(choice: Any, flat: Mapping[str, str]) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "allowed_tools":
        key = "allowed_tools" if isinstance(choice.get("allowed_tools"), Mapping) else None
        inner = choice if key is None else choice[key]
        if not isinstance(inner.get("tools"), list):
            return choice
        inner = {**inner, "tools": [_choice(one, flat) for one in inner["tools"]]}
        return inner if key is None else {**choice, key: inner}
    if choice.get("type") != "custom":
        return choice
    custom = choice.get("custom")
    name = custom.get("name") if isinstance(custom, Mapping) else choice.get("name")
    if not isinstance(name, str) or name not in flat:
        raise ValueError(f"tool_choice: expected one of the custom tools' names, found {name!r}")
    return {"type": "function", "function": {"name": flat[name]}}


def as_called(call: dict[str, Any], names: Mapping[str, str], texts: dict[int, InputText]) -> dict[str, Any] | None:
    """A call of a function, or a delta of one, as one of the custom tool that it stands for.

    Args:
        call: In OpenAI's form. A delta has an index.
        names: From `custom_names`.
        texts: [index]: the text of a custom tool's call; of one answer.

    Returns:
        The call; the same one if it is of a function; None if a delta has nothing for the client yet.
    """
    function, index = call.get("function", {}), call.get("index")
    name, arguments = function.get("name"), function.get("arguments", "")
    if index is None:
        if name not in names:
            return call
        return {**_head(call), "custom": {"name": names[name], "input": input_of(arguments)}}
    if name is None and index not in texts:
        return call
    if name is not None:
        if name not in names:
            return call
        texts[index] = InputText()
        custom = {"name": names[name], "input": texts[index].add(arguments)}
        return {**_head(call), "custom": custom}
    text = texts[index].add(arguments)
    return {**_head(call), "custom": {"input": text}} if text else None


def _head(call: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in call.items() if name != "function"}
    return others | ({"type": "custom"} if "type" in others else {})
