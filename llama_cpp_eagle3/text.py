"""Text of single tokens."""

from __future__ import annotations

from typing import Any

from . import _core


def token_to_piece(vocab: Any, token: int, special: bool) -> bytes:
    """Bytes that a token stands for, of any length; of special tokens only if asked for."""
    return _core.token_to_piece(int(vocab), token, special)


def bytes_lacking(text: bytes, n_before: int) -> int:
    """How many more bytes the last character of a text seems to need, as `Llama.create_completion` counts them.

    n_before is what was found before the last token, less one; it stands if the text says nothing else.
    """
    n_lacking = n_before
    for k in (3, 2, 1):
        lead = text[-k] if k <= len(text) else 0
        n_bytes = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 0
        if n_bytes > k:
            n_lacking = n_bytes - k
    return n_lacking
