"""Text of single tokens, and which of them end a text."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import llama_cpp.llama_cpp as lib

from .._core import token_to_piece
from ..guard import closed_error


class Vocab:
    """A model's vocabulary. The model is somebody else's: `close` before it is freed."""

    def __init__(self, model: int):
        """model: address of the loaded llama_model."""
        self._pointer: Any = lib.llama_model_get_vocab(model)
        self.n_tokens = int(lib.llama_vocab_n_tokens(self._pointer))
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # without and with special tokens

    @property
    def pointer(self) -> Any:
        """The llama_vocab, for ctypes."""
        if self._pointer is None:
            raise closed_error(type(self).__name__)
        return self._pointer

    def close(self) -> None:
        """The model is about to be freed: what was not asked yet raises."""
        self._pointer = None

    @cached_property
    def eog(self) -> frozenset[int]:
        """Tokens that end a text."""
        return frozenset(t for t in range(self.n_tokens) if lib.llama_vocab_is_eog(self.pointer, t))

    def piece(self, token: int, special: bool = False) -> bytes:
        """Bytes that a token stands for, of any length; of special tokens only if asked for."""
        pieces = self._pieces[special]
        piece = pieces.get(token)
        if piece is None:
            piece = pieces[token] = token_to_piece(int(self.pointer), token, special)
        return piece
