"""JSON in, within limits, and out: orjson if it is installed, else the standard library."""

from __future__ import annotations

import json
import math
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

from .errors import invalid
from .limits import check_body, check_text

_PARSING = threading.Lock()
"""The parser holds the GIL: between two bodies all other threads have their turn."""

orjson: Any
try:
    orjson = import_module("orjson")
except ImportError:
    orjson = None


def dumps(value: Any) -> bytes:
    """A value as JSON; numbers that JSON does not have become null."""
    if orjson is not None:
        with suppress(TypeError):  # it has no lone surrogates and no large integers
            return bytes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # a lone surrogate becomes JSON's own escape of it


def parse_json(text: bytes) -> Any:
    """A request's body. An empty one is an empty object.

    Raises:
        ApiError: it is not JSON, is too deep, or exceeds a limit of requests.
    """
    check_text(text)
    try:
        with _PARSING:
            body = _loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as e:
        raise invalid(f"the body is not JSON: {e}") from None
    check_body(body)
    return body


def _loads(text: bytes) -> Any:
    return orjson.loads(text) if orjson is not None else json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
