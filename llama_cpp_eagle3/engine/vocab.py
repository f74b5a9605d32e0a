"""Text of single tokens, and which of them end a text."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import llama_cpp.llama_cpp as lib

from .._core import token_to_piece
from ..errors import ContextFullError
from ..guard import closed_error
from .dry import DrySamplers

_STRIPS = (
    lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP
)  # special tokens that swallow whitespace beside them


class Vocab:
    """A model's vocabulary. The model is somebody else's: `close` before it is freed."""

    def __init__(self, model: int):
        """model: address of the loaded llama_model."""
        self._pointer: Any = lib.llama_model_get_vocab(model)
        self.n_tokens = int(lib.llama_vocab_n_tokens(self._pointer))
        self.dry = DrySamplers()
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

    @cached_property
    def bos(self) -> int:
        """The token that all texts begin with; -1 if there is none."""
        return int(lib.llama_vocab_bos(self.pointer)) if lib.llama_vocab_get_add_bos(self.pointer) else -1

    @cached_property
    def suppressed(self) -> frozenset[int]:
        """Tokens that the model's header says are never to be drawn."""
        n = ctypes.c_int32(0)
        tokens = lib.llama_vocab_get_suppress_tokens(self.pointer, ctypes.byref(n))
        return frozenset(tokens[i] for i in range(n.value))

    @cached_property
    def _n_bytes_most(self) -> int | None:
        """Bytes of text that one token can stand for; None if there is no such number.

        Some tokenizers make one token of any number of characters that they do not know, or drop whitespace.
        """
        pointer = self.pointer
        if lib.llama_vocab_type(pointer) not in (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE):
            return None
        n_most, letters = 1, set()
        for token in range(self.n_tokens):
            if lib.llama_vocab_get_attr(pointer, token) & _STRIPS:
                return None
            piece = token_to_piece(int(pointer), token, True)
            n_most = max(n_most, len(piece), len(lib.llama_vocab_get_text(pointer, token)))
            if len(piece) == 1:
                letters.add(piece)
        return n_most if len(letters) == 256 else None

    def n_tokens_least(self, text: str) -> int:
        """How many tokens a text becomes at least, without making them: 0 if nobody can say."""
        n_most = self._n_bytes_most
        return 0 if n_most is None else -(-len(text.encode("utf-8", errors="replace")) // n_most)

    def check_length(self, text: str, n_ctx: int) -> None:
        """Refuse a text that cannot fit, before it is tokenized.

        Raises:
            ContextFullError: it is too long for n_ctx tokens.
        """
        if len(text) <= n_ctx:
            return
        n_least = self.n_tokens_least(text)
        if n_least > n_ctx:
            raise ContextFullError(
                f"a text of at least {n_least} tokens does not fit: the context holds {n_ctx}. Use a larger n_ctx."
            )

    def piece(self, token: int, special: bool = False) -> bytes:
        """Bytes that a token stands for, of any length; of special tokens only if asked for."""
        pieces = self._pieces[special]
        piece = pieces.get(token)
        if piece is None:
            piece = pieces[token] = token_to_piece(int(self.pointer), token, special)
        return piece
