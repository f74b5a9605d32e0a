"""Limits for JSON from clients, so that llama.cpp's code neither hangs nor runs out of stack, nor Python's parser holds
the interpreter's lock for long.

Templates are programs, of the model or of the server's operator: csrc/chat/template_steps.h has their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from .. import _chat
from .._chat import TemplateLimitError
from .tool_fields import properties_of

MAX_MESSAGES = 10_000
"""Messages of a conversation: these take a second on a slow machine."""
MAX_TOOLS = 512
MAX_PARAMETERS = 1000
"""Parameters of a tool: where each has a tag of its own, llama.cpp's parser takes memory for each pair of them."""
MAX_ALL_PARAMETERS = 5_000
"""The same of all tools of a request. With Kimi K3's template, the slowest of eight that were tried, these take half a
minute of one processor and 330 MiB, as five tools; `/health` answers within 0.2 s meanwhile."""
MAX_NESTING = 500
"""Brackets within brackets of JSON: schemas, arguments of tool calls, variables of templates."""
MAX_LEVELS = MAX_NESTING + 20
"""The same of a whole body."""
MAX_VALUES = (1 << 20) + 4096
"""Commas and opening brackets of a body, which are about as many as its values: enough for the largest prompt. A value
of three bytes may take some 60 bytes of memory, and no other thread runs while values are parsed."""
MAX_NAMES = 1 << 18
"""Names of objects, and numbers with a fraction: each takes as long as ten other values."""
MAX_DIGITS = 500
MAX_ITEMS = 100_000
"""Values of one field: a schema, tools, messages."""


class JsonSize(NamedTuple):
    """What a text of JSON asks of a parser."""

    n_levels: int
    """Of brackets within brackets."""
    n_values: int
    n_names: int
    n_digits: int
    """Of its longest number."""


def check_size(name: str, text: bytes, n_values: int = MAX_VALUES) -> None:
    """Raise ValueError for a client's text of JSON that would take long to parse; name: for errors."""
    size = JsonSize(*_chat.size_of_json(text))
    for what, n_max, n in (
        ("levels of brackets", MAX_LEVELS, size.n_levels),
        ("commas and opening brackets", n_values, size.n_values),
        ("names and numbers with a fraction", MAX_NAMES, size.n_names),
        ("characters of a number", MAX_DIGITS, size.n_digits),
    ):
        if n > n_max:
            raise ValueError(f"{name}: expected at most {n_max} {what}, found {n}")


def _why_no_json(value: Any) -> str:
    """What is wrong with a value that has infinity or NaN somewhere, or itself."""
    parts: list[tuple[str, Any, frozenset[int]]] = [("", value, frozenset())]
    while parts:
        path, part, around = parts.pop()
        if id(part) in around:
            return f"the request is no JSON: {path or 'a value'} contains itself"
        if isinstance(part, Mapping):
            around |= {id(part)}
            parts += [(f"{path}.{key}" if path else str(key), item, around) for key, item in part.items()]
        elif isinstance(part, (list, tuple)):
            around |= {id(part)}
            parts += [(f"{path}[{i}]", item, around) for i, item in enumerate(part)]
        elif isinstance(part, float) and not isfinite(part):
            return f"{path or 'the value'}: expected a number that JSON has, found {part}"
    return "the request is no JSON"


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
    except ValueError:  # 1e999 is read as infinity
        raise ValueError(_why_no_json(value)) from None
    check_nesting("the request", text)
    return text


def check_nesting(name: str, text: str) -> None:
    """Raise ValueError for JSON that is nested too deep."""
    _check_levels(name, JsonSize(*_chat.size_of_json(text)).n_levels)


def is_json(text: str) -> bool:
    """Whether llama.cpp parses a text as JSON."""
    found, _ = _chat.parsed_levels(text.encode(errors="surrogatepass"))
    return found


def _check_parsed(name: str, text: str) -> None:
    """Check a text that may be JSON. Brackets after the point where it stops being JSON, as in a log, do not count."""
    _, n_levels = _chat.parsed_levels(text.encode(errors="surrogatepass"))
    _check_levels(name, n_levels)


def _check_levels(name: str, n_levels: int) -> None:
    if n_levels > MAX_NESTING:
        raise ValueError(f"{name} is nested too deep: expected at most {MAX_NESTING} levels, found {n_levels}")


def check_number(what: str, n_max: int, n: int) -> None:
    """Raise TemplateLimitError, after which no other form is tried, if there are too many."""
    if n > n_max:
        raise TemplateLimitError(f"expected at most {n_max} {what}, found {n}")


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for a conversation that is beyond a limit."""
    check_number("messages", MAX_MESSAGES, len(messages))
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
    check_number("tools", MAX_TOOLS, len(tools))
    n_all = 0
    for tool in tools:
        n = len(properties_of(tool) or ())
        if n > MAX_PARAMETERS:
            raise ValueError(
                f"expected at most {MAX_PARAMETERS} parameters (properties) of a tool, found {n}: put them into objects"
            )
        n_all += n
    if n_all > MAX_ALL_PARAMETERS:
        raise ValueError(f"expected at most {MAX_ALL_PARAMETERS} parameters of all tools together, found {n_all}")
