"""A call that a model writes as bare JSON, as Qwen2.5-Coder does: between fences, without its template's tags."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"```\w*\s*")
_ARGUMENTS = re.compile(r'\s*\{\s*"name"\s*:\s*("[^"\\]+")\s*,\s*"arguments"\s*:\s*(?=\{)')
_END = re.compile(r"\s*\}\s*(?:```)?\s*")
_HALF_FENCE = re.compile(r"(?:`{0,2}|```\w*)")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called so: its arguments must have all that it requires, and none that it does not know."""

    name: str
    required: frozenset[str]
    known: frozenset[str]


def callable_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[CallableTool, ...]:
    """Those of a request's tools that have parameters of their own; a strict one's schema must hold while sampling."""
    found = []
    for function in (tool["function"] for tool in tools):
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        required = schema.get("required") or () if isinstance(schema, Mapping) else ()
        if isinstance(properties, Mapping) and isinstance(required, (list, tuple)) and not function.get("strict"):
            names = frozenset(name for name in required if isinstance(name, str))
            found.append(CallableTool(function["name"], names, frozenset(properties)))
    return tuple(found)


class BareCall:
    """Holds an answer's content back while all of it may be a call, and says at the end whether it is one."""

    def __init__(self, tools: Sequence[CallableTool]):
        self._tools = {tool.name: tool for tool in tools}
        self._held: list[str] = []
        self._is_open, self._has_begun = bool(tools), False

    def add(self, deltas: list[dict[str, Any]], is_partial: bool) -> list[dict[str, Any]]:
        """Deltas to send now, of those that the parser has found; is_partial: more is to come."""
        if not self._is_open:
            return deltas
        found = []
        for delta in deltas:
            content = delta.get("content") if self._is_open else None
            if content is None:
                found += [*(self.release() if "tool_calls" in delta else ()), delta]
                continue
            self._held.append(content)
            others = {name: value for name, value in delta.items() if name != "content"}
            found += [others] if others else []
            if not self._has_begun and not self._may_be_call():
                found += self.release()
        if is_partial:
            return found
        call = self._call()
        if call is None:
            return found + self.release()
        self.release()
        return [*found, {"tool_calls": [call]}]

    def release(self) -> list[dict[str, Any]]:
        """The content that was held back, which is no call: from now on nothing is."""
        held, self._is_open = "".join(self._held), False
        self._held.clear()
        return [{"content": held}] if held else []

    def _may_be_call(self) -> bool:
        """Whether the content so far is the beginning of a call."""
        text = "".join(self._held).lstrip()
        if _HALF_FENCE.fullmatch(text):
            return True
        fence = _FENCE.match(text)
        text = text[fence.end() :] if fence else text
        for expected in ("{", '"name"', ":", None, ",", '"arguments"', ":", "{"):
            text = text.lstrip()
            options = [expected] if expected else [f'"{name}"' for name in self._tools]
            if any(option.startswith(text) for option in options):
                return True
            part = next((option for option in options if text.startswith(option)), None)
            if part is None:
                return False
            text = text[len(part) :]
        self._has_begun = True
        return True

    def _call(self) -> dict[str, Any] | None:
        text = "".join(self._held).lstrip()
        fence = _FENCE.match(text)
        begin = _ARGUMENTS.match(text, fence.end() if fence else 0)
        tool = self._tools.get(json.loads(begin.group(1))) if begin else None
        if begin is None or tool is None:
            return None
        try:
            arguments, end = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            return None
        if not _END.fullmatch(text, end) or not tool.required <= arguments.keys() <= tool.known:
            return None
        function = {"name": tool.name, "arguments": text[begin.end() : end]}
        return {"index": 0, "id": uuid.uuid4().hex, "type": "function", "function": function}
