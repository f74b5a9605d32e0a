"""Text of single tokens, and which of them end a text."""

from __future__ import annotations

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
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._eog: frozenset[int] | None = None

    @property
    def pointer(self) -> Any:
        """The llama_vocab, for ctypes."""
        if self._pointer is None:
            raise closed_error(type(self).__name__)
        return self._pointer

    def close(self) -> None:
        """The model is about to be freed: what was not asked yet raises."""
        self._pointer = None

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a text."""
        if self._eog is None:
            self._eog = frozenset(t for t in range(self.n_tokens) if lib.llama_vocab_is_eog(self.pointer, t))
        return self._eog

    def piece(self, token: int, special: bool = False) -> bytes:
        """Bytes that a token stands for, of any length; of special tokens only if asked for."""
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = token_to_piece(int(self.pointer), token, special)
        return piece
