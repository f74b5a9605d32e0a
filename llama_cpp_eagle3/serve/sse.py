"""Server-sent events as bytes."""

from __future__ import annotations

from typing import Any

from .jsons import dumps


def event(data: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + dumps(data) + b"\n\n"


def named_event(name: str, data: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + event(data)


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"
