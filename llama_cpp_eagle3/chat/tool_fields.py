"""What a request's tool has: its name and its parameters, whatever else is in their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Tool = Mapping[str, Any]
T = TypeVar("T")


def name_of(tool: Tool) -> str:
    """A tool's name."""
    function = tool.get("function")
    return str(function.get("name")) if isinstance(function, Mapping) else ""


def parameters_of(tool: Tool) -> Any:
    """The schema of a tool's arguments."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function.get("parameters") if isinstance(function, Mapping) else None


def properties_of(tool: Tool) -> Mapping[str, Any] | None:
    """The schemas of a tool's arguments by their names; None if it has none by name."""
    parameters = parameters_of(tool)
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else None


def each_once(tools: Iterable[tuple[tuple[str, ...], T]]) -> list[T]:
    """Tools without those that are given again. tools: (words that name one, tool).

    Raises:
        ValueError: two tools that differ have one name: a call of it would say nothing of which is meant.
    """
    found: dict[tuple[str, ...], T] = {}
    for words, tool in tools:
        if found.setdefault(words, tool) != tool:
            name = " ".join(filter(None, words))
            raise ValueError(f"tools: expected each tool to have a name of its own, found two named {name!r:.80}")
    return list(found.values())
