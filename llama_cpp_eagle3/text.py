"""Text of single tokens."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp


def token_to_piece(vocab: Any, token: int, special: bool) -> bytes:
    """Bytes that a token stands for, of any length; of special tokens only if asked for."""
    size = 32
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = int(llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, special))
        if n >= 0:
            return buffer.raw[:n]
        size = -n
