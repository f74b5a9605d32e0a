"""Limits for JSON from clients, so that llama.cpp's code neither hangs nor runs out of stack.

Templates have no limits, as they are programs: they come from the model, or from the operator of the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _chat

MAX_MESSAGES = 10_000
"""Messages of a conversation: these take a second on a slow machine."""
MAX_TOOLS = 512
MAX_NESTING = 500
"""Brackets within brackets of JSON: schemas, arguments of tool calls, variables of templates."""


def to_json(value: Any) -> str:
    """Serialize a client's value as JSON.

    Raises:
        ValueError: it is nested too deep, or no JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        raise ValueError(f"the request is nested too deep: expected at most {MAX_NESTING} levels") from None
    except (TypeError, UnicodeEncodeError) as e:
        raise ValueError(f"the request is no JSON: {e}") from None
    check_nesting("the request", text)
    return text


def check_nesting(name: str, text: str) -> None:
    """Raise ValueError for JSON that is nested too deep."""
    nesting = _chat.json_nesting(text)
    if nesting > MAX_NESTING:
        raise ValueError(f"{name} is nested too deep: expected at most {MAX_NESTING} levels, found {nesting}")


def _check_parsed(name: str, text: str) -> None:
    """Check a text that may be JSON. Brackets after the point where it stops being JSON, as in a log, do not count."""
    if _chat.json_nesting(text) <= MAX_NESTING:
        return
    try:
        json.loads(text)
    except RecursionError:
        pass
    except ValueError as e:
        text = text[: e.pos] if isinstance(e, json.JSONDecodeError) else text
    check_nesting(name, text)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for a conversation that is beyond a limit."""
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"expected at most {MAX_MESSAGES} messages, found {len(messages)}")
    for message in messages:
        # templates look into these
        if message.get("role") == "tool" and isinstance(message.get("content"), str):
            _check_parsed("the content of a tool's message", message["content"])
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                _check_parsed("the arguments of a tool call", arguments)


def check_tools(tools: Sequence[Any]) -> None:
    """Raise ValueError for tools that are beyond a limit."""
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"expected at most {MAX_TOOLS} tools, found {len(tools)}")
