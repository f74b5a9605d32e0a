"""Limits of requests: one table for the fields of all endpoints, checked first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..chat import CONSTRAINTS
from ..chat.limits import MAX_MESSAGES, MAX_TOOLS
from .errors import invalid

N_VALUES_MAX = (1 << 20) + 4096
"""Lists, objects and what they hold, in a body: the largest prompt and more. Each takes some 60 bytes, and but three of
the body; no other thread runs while they are parsed."""
N_EMBEDDINGS_MAX = 2048
"""Texts of a request for embeddings: OpenAI's limit."""
N_FLOATS_MAX = 1 << 24
"""Numbers of an answer with embeddings."""
N_LOGPROBS_MAX = 1 << 22
"""Of all tokens of a request that may come: each takes some 100 bytes until its end."""
PREPARE_SECONDS = 60.0
"""For what comes before a request can wait for its turn: templates, tokens, grammars, images."""
_N_ITEMS_MAX = 100_000
_MEDIA = ("image_url", "input_audio", "input_image", "source")
"""Parts with files, which have limits of their own (`media.limits`)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a field; None: not limited."""

    n_entries: int | None = None
    """Of a list or an object."""
    n_bytes: int | None = None
    """Of all its text in UTF-8, but for files."""
    n_values: int | None = None
    """Of all lists and objects in it, at any depth, together."""
    largest: int | None = None
    """Of a number."""


_TEXT = Limit(n_bytes=16 << 20)
_LOGPROBS = Limit(largest=1024)
_STOP = Limit(n_entries=256, n_bytes=16 << 10)

LIMITS: dict[str, Limit] = {
    "stop": _STOP,
    "stop_sequences": _STOP,
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
    **dict.fromkeys(sorted(CONSTRAINTS), Limit(n_bytes=4 << 20, n_values=_N_ITEMS_MAX)),
    "tools": Limit(n_entries=MAX_TOOLS, n_bytes=4 << 20, n_values=_N_ITEMS_MAX),
    "tool_choice": Limit(n_bytes=4 << 10, n_values=64),
    "chat_template_kwargs": Limit(n_bytes=1 << 20, n_values=10_000),
    "reasoning_budget_message": Limit(n_bytes=16 << 10),
    "instructions": _TEXT,
    "system": Limit(n_bytes=16 << 20, n_values=_N_ITEMS_MAX),
    "messages": Limit(n_entries=MAX_MESSAGES, n_bytes=16 << 20, n_values=_N_ITEMS_MAX),
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
"""Field -> limit. Other fields are numbers with bounds in `schema`, or are not looked at."""


def check_body(body: Any) -> None:
    """Check all fields of a request.

    Raises:
        ApiError: one is beyond its limit.
    """
    if isinstance(body, Mapping):
        for field, limit in LIMITS.items():
            if body.get(field) is not None:
                check_field(field, body[field], limit)


def check_field(field: str, value: Any, limit: Limit) -> None:
    """Check one field.

    Raises:
        ApiError: it is beyond its limit.
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
            n_bytes += _n_bytes(part)
        else:
            n_values += len(part)
    if limit.n_values is not None and n_values > limit.n_values:
        raise exceeds(field, limit.n_values, "values", n_values)
    if limit.n_bytes is not None and n_bytes > limit.n_bytes:
        raise exceeds(field, limit.n_bytes, "bytes of text", n_bytes)


def check_logprobs(n_probs: int, n_tokens: int) -> None:
    """Refuse a request for more log-probabilities than are kept until its texts end.

    Raises:
        ApiError: so many of so many tokens are too many.
    """
    if n_probs * n_tokens > N_LOGPROBS_MAX:
        raise invalid(
            f"Field 'n_probs' (logprobs): expected at most {N_LOGPROBS_MAX} in all texts together, found {n_probs} for "
            f"each of {n_tokens} tokens: send a smaller max_tokens"
        )


def check_text(text: bytes) -> None:
    """Refuse a body whose values would take many times its own size, before it is parsed.

    Raises:
        ApiError: it has too many.
    """
    n = sum(map(text.count, (b",", b"[", b"{")))
    if n > N_VALUES_MAX:
        raise invalid(f"the body: expected at most {N_VALUES_MAX} commas and opening brackets, found {n}")


def exceeds(field: str, n_max: int, what: str, n: int) -> Exception:
    """The error for a field that holds too much."""
    return invalid(f"Field '{field}': expected at most {n_max}{what and ' ' + what}, found {n}")


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _parts(value: Any) -> Iterator[str | list[Any] | dict[str, Any]]:
    """All texts, lists and objects in a value, and itself; names of an object are texts."""
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
