"""JSON of requests, within limits, and of answers: orjson reads and writes it if it is installed.

One table has the limits of the fields of all endpoints, which are checked first.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .._chat import without_halves
from ..chat import CONSTRAINTS
from ..chat.json_limits import MAX_ITEMS, MAX_MESSAGES, MAX_TOOLS, check_size
from ..files.text_file import whole_characters
from .api_errors import invalid

_PARSING = threading.Lock()
"""Only one body is parsed at a time, since the parser holds the GIL: other threads run between two bodies."""

orjson: Any
try:
    orjson = import_module("orjson")
except ImportError:
    orjson = None

N_EMBEDDINGS_MAX = 2048
"""Texts of a request for embeddings, at most: OpenAI's limit."""
N_FLOATS_MAX = 1 << 23
"""Numbers of an answer with embeddings, at most."""
N_LOGPROBS_MAX = 1 << 20
"""Log-probabilities of all tokens of a request, at most: each takes some 100 bytes until the request ends, and some 700
while its answer is written."""
_N_SLICE = 64  # items of a list
_N_LEVELS = 6  # down to the alternatives of one token
_MEDIA = ("image_url", "input_audio", "input_image", "source")
"""Fields with files, which have limits of their own (`media.limits`)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a field; None = no limit."""

    n_entries: int | None = None
    """Entries of a list or an object."""
    n_bytes: int | None = None
    """Bytes of all its texts in UTF-8, without files."""
    n_values: int | None = None
    """Values of all lists and objects in it, at any depth."""
    largest: int | None = None
    """The largest number."""


_TEXT = Limit(n_bytes=16 << 20)
_LOGPROBS = Limit(largest=1024)
_STOP = Limit(n_entries=256, n_bytes=16 << 10)

LIMITS: dict[str, Limit] = {
    "stop": _STOP,
    "stop_sequences": _STOP,
    "bad_words": _STOP,
    "stop_token_ids": Limit(n_entries=1024),
    "allowed_token_ids": Limit(n_entries=1 << 20),
    "dry_sequence_breakers": Limit(n_entries=64, n_bytes=4 << 10),
    "samplers": Limit(n_entries=32, n_bytes=1 << 10),
    "logit_bias": Limit(n_entries=1 << 16, n_bytes=1 << 20),
    "n_probs": _LOGPROBS,
    "logprobs": _LOGPROBS,
    "top_logprobs": _LOGPROBS,
    "n": Limit(largest=128),
    "n_cmpl": Limit(largest=128),
    "response_fields": Limit(n_entries=64, n_bytes=16 << 10),
    "lora": Limit(n_entries=64),
    **dict.fromkeys(sorted(CONSTRAINTS), Limit(n_bytes=4 << 20, n_values=MAX_ITEMS)),
    "tools": Limit(n_entries=MAX_TOOLS, n_bytes=4 << 20, n_values=MAX_ITEMS),
    "tool_choice": Limit(n_bytes=64 << 10, n_values=4 * MAX_TOOLS),
    "functions": Limit(n_entries=MAX_TOOLS, n_bytes=4 << 20, n_values=MAX_ITEMS),
    "function_call": Limit(n_bytes=4 << 10, n_values=64),
    "chat_template_kwargs": Limit(n_bytes=1 << 20, n_values=10_000),
    "reasoning_budget_message": Limit(n_bytes=16 << 10),
    "instructions": _TEXT,
    "system": Limit(n_bytes=16 << 20, n_values=MAX_ITEMS),
    "messages": Limit(n_entries=MAX_MESSAGES, n_bytes=16 << 20, n_values=MAX_ITEMS),
    "input": Limit(n_bytes=16 << 20, n_values=1 << 20),
    "prompt": Limit(n_bytes=16 << 20, n_values=1 << 20),
    "suffix": _TEXT,
    "input_prefix": Limit(n_bytes=16 << 20, n_values=1 << 20),
    "input_suffix": Limit(n_bytes=16 << 20, n_values=1 << 20),
    "input_extra": Limit(n_entries=1024, n_bytes=16 << 20),
    "markdown": Limit(n_bytes=32 << 10),
    "content": Limit(n_bytes=4 << 20, n_values=1 << 20),
    "tokens": Limit(n_entries=1 << 20),
}
"""Field -> limit. Other fields are numbers, whose bounds are in `schema`, or are ignored."""


def dumps(value: Any, has_halves: bool = False) -> bytes:
    """Encode a value as JSON; infinity and NaN, which it lacks, become null.

    has_halves: half surrogates are written as JSON's escapes; else they become a mark, as many parsers refuse them.
    """
    if orjson is not None:
        with suppress(TypeError):  # orjson writes neither lone surrogates nor large integers
            return bytes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") if has_halves else whole_characters(text).encode()


def dumps_large(value: Any) -> bytes:
    """The same in a thread, for a value that may be large: in pieces, between which other threads run.

    An iterator is written as a list, so that not all of its items need to be there at once.
    """
    return b"".join(_pieces(value, _N_LEVELS))


def _pieces(value: Any, n_levels: int) -> Iterator[bytes]:
    if isinstance(value, dict) and value and n_levels > 0:
        begin = b"{"
        for name, item in value.items():
            yield begin + dumps(str(name)) + b":"
            yield from _pieces(item, n_levels - 1)
            begin = b","
        yield b"}"
    elif isinstance(value, Iterator) or (isinstance(value, list) and n_levels > 0 and _has_parts(value)):
        begin = b"["
        for item in value:
            yield begin
            yield from _pieces(item, n_levels - 1)
            begin = b","
        yield b"]" if begin == b"," else b"[]"
    elif isinstance(value, list) and len(value) > _N_SLICE:
        yield b"["
        for i in range(0, len(value), _N_SLICE):
            yield (b"," if i else b"") + dumps(value[i : i + _N_SLICE])[1:-1]
        yield b"]"
    else:
        yield dumps(value)


def _has_parts(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], (dict, list))


def parse_json(text: bytes) -> dict[str, Any]:
    """Parse a request's body; an empty one is an empty object.

    Raises:
        ApiError: the body is no JSON object, is nested too deeply, exceeds a limit, or would take many times its own
            size in memory.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")  # a mark that some programs of Windows write
    text = without_halves(text) if rb"\ud" in text or rb"\uD" in text else text
    try:
        check_size("the body", text)
    except ValueError as e:
        raise invalid(str(e)) from None
    try:
        with _PARSING:
            if not text.strip():
                body: Any = {}
            else:
                # strictly UTF-8, as orjson reads it
                load = orjson.loads if orjson else lambda text: json.loads(text.decode(), parse_constant=_no_constant)
                body = load(text)
    except (ValueError, RecursionError) as e:
        raise invalid(f"the body is not JSON: {e}") from None
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    check_body(body)
    return body


def check_body(body: Mapping[str, Any]) -> None:
    """Check all fields of a request.

    Raises:
        ApiError: a field exceeds its limit.
    """
    for field, limit in LIMITS.items():
        if body.get(field) is not None:
            check_field(field, body[field], limit)


def check_field(field: str, value: Any, limit: Limit) -> None:
    """Check one field.

    Raises:
        ApiError: the field exceeds its limit.
    """
    if limit.largest is not None and isinstance(value, (int, float)) and value > limit.largest:
        raise invalid(f"Field '{field}': expected at most {limit.largest}, found {value}")
    if limit.n_entries is not None and isinstance(value, (list, dict)) and len(value) > limit.n_entries:
        raise exceeds(field, limit.n_entries, "entries", len(value))
    if limit.n_bytes is None and limit.n_values is None:
        return
    n_bytes = n_values = 0
    for part in _parts(value):
        if isinstance(part, str):
            n_bytes += len(part) if part.isascii() else len(part.encode(errors="surrogatepass"))
        else:
            n_values += len(part)
    if limit.n_values is not None and n_values > limit.n_values:
        raise exceeds(field, limit.n_values, "values", n_values)
    if limit.n_bytes is not None and n_bytes > limit.n_bytes:
        raise exceeds(field, limit.n_bytes, "bytes of text", n_bytes)


def exceeds(field: str, n_max: int, what: str, n: int) -> Exception:
    """Return the error for a field that exceeds a limit."""
    return invalid(f"Field '{field}': expected at most {n_max}{what and ' ' + what}, found {n}")


def _parts(value: Any) -> Iterator[str | list[Any] | dict[str, Any]]:
    """Yield a value and all texts, lists and objects in it; the names in an object are texts."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            yield part
            left += part
        elif isinstance(part, dict):
            yield part
            yield from part
            left += [item for name, item in part.items() if name not in _MEDIA]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
