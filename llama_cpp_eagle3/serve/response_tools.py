"""Tools of /v1/responses: each becomes a function of a chat, and the calls of it become items of its own type again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..chat import LeftOut
from .api_errors import invalid

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
"""Text in a JSON string, without an escape that is not complete."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool of a request that the model may call."""

    type: str
    """function or custom."""
    name: str
    namespace: str
    function: Mapping[str, Any]
    """In a chat's form; its name is unique in the request."""

    def is_named(self, choice: Mapping[str, Any]) -> bool:
        """Whether a part of a `tool_choice` names it."""
        if choice.get("type") == "namespace":
            return bool(self.namespace) and self.namespace == choice.get("name")
        is_named = choice.get("type") == self.type and choice.get("name") in (self.name, self.function["name"])
        return is_named and choice.get("namespace") in (None, self.namespace)


class ResponseTools:
    """The tools of one request."""

    def __init__(self, tools: Any = None, left_out: LeftOut | None = None):
        """Read a request's `tools`.

        left_out: logs what is not offered to the model.

        Raises:
            ApiError: a tool lacks a required field, or has another type than it must have.
        """
        self.offered: list[Mapping[str, Any]] = []
        """Those of the request's tools that the model may call."""
        self._found: dict[str, Offered] = {}
        hosted: list[str] = []
        if not isinstance(tools or [], list) or not all(isinstance(tool, Mapping) for tool in tools or []):
            raise invalid("'tools' must be an array of objects")
        for i, tool in enumerate(tools or []):
            try:
                if not self._add(tool, left_out):
                    hosted.append(str(tool.get("type")))
            except ValueError as e:
                raise invalid(f"tools.{i}: {e}") from None
        if hosted and left_out is not None:
            left_out.tell([f"{kind}, which runs on the API's own servers" for kind in hosted])

    def _add(self, tool: Mapping[str, Any], left_out: LeftOut | None) -> bool:
        """Offer a tool, or those of a namespace; returns whether that is possible."""
        found = list(_read(tool, left_out))
        for kind, name, namespace, function in found:
            flat = _unique(_joined(namespace, name), self._found)
            self._found[flat] = Offered(kind, name, namespace, {**function, "name": flat})
        if found:
            self.offered.append(tool)
        return bool(found)

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools in a chat's form."""
        return [{"type": "function", "function": one.function} for one in self._found.values()]

    def called(self, name: str) -> Offered:
        """The tool that a function's name stands for."""
        return self._found.get(name) or Offered("function", name, "", {"name": name})

    def name_of(self, item: Mapping[str, Any]) -> str:
        """The function's name for an earlier call."""
        namespace, name = item.get("namespace"), str(item["name"])
        if not isinstance(namespace, str):
            return name
        offered = (flat for flat, one in self._found.items() if (one.namespace, one.name) == (namespace, name))
        return next(offered, _joined(namespace, name))

    def choice(self, choice: Any) -> Any:
        """A request's `tool_choice` in a chat's form.

        Raises:
            ApiError: it names a tool that is not offered.
        """
        if not isinstance(choice, Mapping):
            return choice
        if choice.get("type") == "allowed_tools":
            named = choice.get("tools")
            if not isinstance(named, list) or not all(isinstance(one, Mapping) for one in named):
                raise invalid("tool_choice: expected 'tools' of allowed_tools to be an array of objects")
            allowed = [one for part in named for one in self._named(part, is_choice=False)]
            if not allowed and choice.get("mode", "auto") == "auto":
                return "none"
            return {**choice, "tools": [_choice_of(one) for one in allowed]}
        return _choice_of(self._named(choice)[0])

    def _named(self, choice: Mapping[str, Any], is_choice: bool = True) -> list[Offered]:
        found = [one for one in self._found.values() if one.is_named(choice)]
        if not found and (is_choice or choice.get("type") in ("function", "custom", "namespace")):
            kind, name = choice.get("type"), choice.get("name")
            what = f"{kind} {name!r}" if name is not None else f"a tool of type {kind!r}"
            raise invalid(f"tool_choice: expected one of the tools that the model can call here, found {what}")
        return found


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


def _read(
    tool: Mapping[str, Any], left_out: LeftOut | None, namespace: str = ""
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(type, name, namespace, function) of a tool, or of each tool of a namespace."""
    kind = tool.get("type")
    if kind == "function":
        function = {name: value for name, value in tool.items() if name not in ("type", "defer_loading")}
        yield kind, _name(tool), namespace, {"strict": True} | function
    elif kind == "custom":
        yield kind, _name(tool), namespace, _custom(tool, left_out)
    elif kind == "namespace" and not namespace:
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(one, Mapping) for one in inner):
            raise ValueError("expected 'tools' of a namespace to be an array of objects")
        for one in inner:
            described = {**one, "description": one.get("description") or tool.get("description") or ""}
            yield from _read(described, left_out, _name(tool))


def _custom(tool: Mapping[str, Any], left_out: LeftOut | None) -> dict[str, Any]:
    """The function of a custom tool: its one argument is the text that the tool takes."""
    text: dict[str, Any] = {"type": "string"}
    description = tool.get("description") or ""
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise ValueError("expected 'format' of a custom tool to be of type text or grammar")
    if form["type"] == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if syntax not in ("regex", "lark") or not isinstance(definition, str):
            raise ValueError("expected a grammar of a custom tool to have 'syntax', lark or regex, and 'definition'")
        description += f"\n\nThe input must match this grammar ({syntax}):\n{definition}"
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
        elif left_out is not None:
            left_out.tell([f"the grammar of {_name(tool)}, which is in Lark"])
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return {"name": _name(tool), "description": description.strip(), "parameters": parameters}


def _name(tool: Mapping[str, Any]) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"expected a tool of type {tool.get('type')!r} to have a 'name'")
    return name


def _joined(namespace: str, name: str) -> str:
    """One name, as clients without namespaces join them."""
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}" if namespace else name


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    found, n = name, 2
    while found in taken:
        found, n = f"{name}_{n}", n + 1
    return found


def _choice_of(tool: Offered) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.function["name"]}}
