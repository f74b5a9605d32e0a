"""A call that a model writes as bare JSON, as Qwen2.5-Coder does: between fences, without its template's tags."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .tool_fields import Tool, name_of, parameters_of, properties_of

_FENCE, _SPACE = re.compile(r"\s*(?:```\w*)?"), re.compile(r"\s*")
_END = re.compile(r"\s*\}\s*(?:```)?\s*")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called so: its arguments must have all that it requires, and none that it does not know."""

    name: str
    required: frozenset[str]
    known: frozenset[str]


def callable_tools(tools: Sequence[Tool]) -> tuple[CallableTool, ...]:
    """Those of a request's tools that have parameters of their own; a strict one's schema must hold while sampling."""
    found = []
    for tool in tools:
        properties = properties_of(tool)
        required = parameters_of(tool).get("required") or () if properties is not None else None
        if properties is not None and isinstance(required, (list, tuple)) and not tool["function"].get("strict"):
            names = frozenset(name for name in required if isinstance(name, str))
            found.append(CallableTool(name_of(tool), names, frozenset(properties)))
    return tuple(found)


class BareCall:
    """Holds an answer's content back while all of it may be a call, and says at the end whether it is one."""

    def __init__(self, tools: Sequence[CallableTool]):
        self._tools = {json.dumps(tool.name, ensure_ascii=False): tool for tool in tools}
        self._held: list[str] = []
        self._is_open = bool(tools)
        self._tool: CallableTool | None = None
        """Whose arguments begin at `_at` of what is held."""
        self._at = 0

    def add(self, deltas: list[dict[str, Any]], is_partial: bool) -> list[dict[str, Any]]:
        """Deltas to send now, of those that the parser has found; is_partial: more is to come."""
        if not self._is_open:
            return deltas
        found = []
        for delta in deltas:
            if self._is_open and "content" in delta:
                self._held.append(delta.pop("content"))
                if self._tool is None and not self._may_be_call("".join(self._held)):
                    found += self.release()
            if "tool_calls" in delta:
                found += self.release()
            if delta:
                found.append(delta)
        if is_partial or not self._is_open:
            return found
        call, held = self._call("".join(self._held)), self.release()
        return [*found, *held] if call is None else [*found, {"tool_calls": [call]}]

    def release(self) -> list[dict[str, Any]]:
        """The content that was held back, which is no call: from now on nothing is."""
        held, self._is_open = "".join(self._held), False
        self._held.clear()
        return [{"content": held}] if held else []

    def _may_be_call(self, text: str) -> bool:
        """Whether a text is the beginning of a call; notes the tool and its arguments, if it has come to them."""
        if text.lstrip() in ("`", "``"):
            return True
        at, tool = _end(_FENCE, text, 0), None
        for options in (["{"], ['"name"'], [":"], self._tools, [","], ['"arguments"'], [":"], ["{"]):
            at = _end(_SPACE, text, at)
            part = next((option for option in options if text.startswith(option, at)), None)
            if part is None:
                return any(option.startswith(text[at:]) for option in options)
            tool = self._tools[part] if options is self._tools else tool
            at += len(part)
        self._tool, self._at = tool, at - 1
        return True

    def _call(self, text: str) -> dict[str, Any] | None:
        """The call that a whole text is, if it is one."""
        if self._tool is None:
            return None
        try:
            arguments, end = json.JSONDecoder().raw_decode(text, self._at)
        except (ValueError, RecursionError):
            return None
        if not _END.fullmatch(text, end) or not self._tool.required <= arguments.keys() <= self._tool.known:
            return None
        function = {"name": self._tool.name, "arguments": text[self._at : end]}
        return {"index": 0, "id": uuid.uuid4().hex, "type": "function", "function": function}


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what a pattern matches there ends."""
    found = pattern.match(text, at)
    return found.end() if found else at
