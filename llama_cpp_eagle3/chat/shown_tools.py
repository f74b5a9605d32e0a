"""Tools as a template can show them: some fail at a schema that is none, or at one that their authors did not foresee.

The prompt has a plain schema then, for that tool alone. The answer is held to the tool's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .schema.core import TYPES
from .schema.tools import parameters_of

Tool = Mapping[str, Any]


def shown_tools(tools: Sequence[Tool], can_show: Callable[[Tool], bool]) -> tuple[list[Tool], list[Tool]]:
    """(tools to be shown, those of them that are not shown with their own schema).

    can_show: whether the template takes a tool.
    """
    shown, changed = [], []
    for tool in tools:
        best = tool if can_show(tool) else next(filter(can_show, _plainer(tool)), tool)
        shown.append(best)
        if best is not tool:
            changed.append(tool)
    return shown, changed


def _plainer(tool: Tool) -> Iterator[Tool]:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), dict):
        return
    given = parameters_of(tool)
    properties = given.get("properties") if isinstance(given, dict) else None
    named = properties if isinstance(properties, dict) else {}
    required = given.get("required") if isinstance(given, dict) else None
    names = [name for name in required if name in named] if isinstance(required, list) else []
    for plain in (_plain, _plainest):
        parameters = {
            "type": "object",
            "properties": {name: plain(schema) for name, schema in named.items()},
            "required": names,
        }
        yield {**tool, "function": {**tool["function"], "parameters": parameters}}


def _plain(schema: Any) -> dict[str, Any]:
    """With one type, and what says in words what it is."""
    own = schema if isinstance(schema, dict) else {}
    kinds = own.get("type") if isinstance(own.get("type"), list) else [own.get("type")]
    kind = next((kind for kind in kinds or () if kind in TYPES and kind != "null"), "string")
    found: dict[str, Any] = {"type": kind, "description": _description(own)}
    if isinstance(own.get("enum"), list) and own["enum"] and all(isinstance(value, str) for value in own["enum"]):
        found["enum"] = own["enum"]
    if kind == "array":
        found["items"] = {"type": "string"}
    return found


def _plainest(schema: Any) -> dict[str, Any]:
    return {"type": "string", "description": _description(schema if isinstance(schema, dict) else {})}


def _description(schema: dict[str, Any]) -> str:
    text = schema.get("description")
    return text if isinstance(text, str) else ""
