"""Tools of /v1/responses: each becomes a function of a chat, and the calls of it become items of its own type again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..chat import LeftOut
from ..chat.custom_tools import custom_function, tool_name, unique_name
from ..chat.json_limits import MAX_TOOLS, check_number
from ..chat.tool_fields import each_once
from .api_errors import invalid


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
        self._found: dict[str, Offered] = {}
        self._flat: dict[tuple[str, str, bool], str] = {}
        """[namespace, name, whether it is custom]: the function's name."""
        hosted: list[str] = []
        read: list[tuple[Mapping[str, Any], list[_Read]]] = []
        if not isinstance(tools or [], list) or not all(isinstance(tool, Mapping) for tool in tools or []):
            raise invalid("'tools' must be an array of objects")
        for i, tool in enumerate(tools or []):
            try:
                read.append((tool, list(_read(tool, hosted))))
            except ValueError as e:
                raise invalid(f"tools.{i}: {e}") from None
        self.offered: list[Mapping[str, Any]] = [tool for tool, found in read if found]
        """Those of the request's tools that the model may call."""
        all_read = ((tuple(map(str, one[:3])), one) for _, found in read for one in found)
        try:
            self._add(each_once(all_read))
        except ValueError as e:
            raise invalid(str(e)) from None
        if hosted and left_out is not None:
            left_out.tell([f"{kind}, which runs on the API's own servers" for kind in hosted])

    def _add(self, read: list[_Read]) -> None:
        """Give the tools names that are unique. One without a namespace keeps its own."""
        check_number("tools", MAX_TOOLS, len(read))
        flat, taken = dict[int, str](), set[str]()
        for i in sorted(range(len(read)), key=lambda i: bool(read[i].namespace)):
            flat[i] = unique_name(_joined(read[i].namespace, read[i].name), taken)
            taken.add(flat[i])
        for i, one in enumerate(read):
            function = {**one.function, "name": flat[i]}
            self._found[flat[i]] = Offered(one.type, one.name, one.namespace, function)
            self._flat[one.namespace, one.name, one.type == "custom"] = flat[i]

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
        is_custom = item.get("type") == "custom_tool_call"
        where = namespace if isinstance(namespace, str) else ""
        found = (self._flat.get((where, name, kind)) for kind in (is_custom, not is_custom))
        return next(filter(None, found), _joined(where, name))

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


class _Read(NamedTuple):
    type: str
    name: str
    namespace: str
    function: Mapping[str, Any]


def _read(tool: Mapping[str, Any], hosted: list[str], namespace: str = "") -> Iterator[_Read]:
    """A tool, or each tool of a namespace. hosted: gets the types of those that the model cannot call here."""
    kind = tool.get("type")
    if kind == "function":
        function = {name: value for name, value in tool.items() if name not in ("type", "defer_loading")}
        yield _Read(kind, tool_name(tool, kind), namespace, {"strict": True} | function)
    elif kind == "custom":
        yield _Read(kind, tool_name(tool, kind), namespace, custom_function(tool))
    elif kind == "namespace" and not namespace:
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(one, Mapping) for one in inner):
            raise ValueError("expected 'tools' of a namespace to be an array of objects")
        for one in inner:
            described = {**one, "description": one.get("description") or tool.get("description") or ""}
            yield from _read(described, hosted, tool_name(tool, kind))
    else:
        hosted.append(str(kind))


def _joined(namespace: str, name: str) -> str:
    """One name, as clients without namespaces join them."""
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}" if namespace else name


def _choice_of(tool: Offered) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.function["name"]}}
