"""How large what comes from a client may be, so that llama.cpp's code neither hangs nor runs out of stack."""

from __future__ import annotations

from typing import Any


def check_request(request: Any) -> None:
    """Raise ValueError for a request that is beyond a limit."""


def check_schema(schema: Any) -> None:
    """Raise ValueError for a schema that is beyond a limit."""


def check_answer(text: str) -> None:
    """Raise ValueError for a text that is nested too deep to be parsed."""
