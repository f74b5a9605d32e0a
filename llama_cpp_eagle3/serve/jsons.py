"""JSON in and out: orjson if it is installed, else the standard library."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from importlib import import_module
from typing import Any

from .errors import invalid

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


def loads(text: bytes) -> Any:
    """JSON as a value.

    Raises:
        ApiError: it is none, or too deep.
    """
    try:
        return orjson.loads(text) if orjson is not None else json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise invalid(f"the body is not JSON: {e}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
