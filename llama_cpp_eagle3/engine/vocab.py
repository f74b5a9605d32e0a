"""Text of single tokens, and which of them end a text."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import llama_cpp.llama_cpp as lib

from .._core import TokenTree, bounds_of_tokens, eog_tokens, token_to_piece
from ..errors import ContextFullError
from ..guard import closed_error
from .dry import DrySamplers

_WHITESPACE = b" \t\n\v\f\r"
_BOM = b"\xef\xbb\xbf"
_BOUNDED = (
    *(lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE, lib.LLAMA_VOCAB_TYPE_RWKV, lib.LLAMA_VOCAB_TYPE_PLAMO2),
)


class Vocab:
    """A model's vocabulary. It does not own the model: `close` it before the model is freed."""

    def __init__(self, model: int):
        """model: address of the loaded llama_model."""
        self._pointer: Any = lib.llama_model_get_vocab(model)
        self.n_tokens = int(lib.llama_vocab_n_tokens(self._pointer))
        self.dry = DrySamplers()
        self._tree: TokenTree | None = None
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # without and with special tokens

    @property
    def pointer(self) -> Any:
        """The llama_vocab, for ctypes."""
        if self._pointer is None:
            raise closed_error(type(self).__name__)
        return self._pointer

    def close(self) -> None:
        """Close the vocabulary, before the model is freed: texts that are not cached raise."""
        self._pointer = self._tree = None

    def token_tree(self) -> TokenTree:
        """The tokens by their characters, for grammars. Made by the first call, in about 0.1 s."""
        pointer = self.pointer
        if self._tree is None:
            self._tree = TokenTree(int(pointer))
        return self._tree

    @cached_property
    def eog(self) -> frozenset[int]:
        """Tokens that end a text."""
        return frozenset(eog_tokens(int(self.pointer)))

    @cached_property
    def bos(self) -> int:
        """The token that all texts begin with; -1 if there is none."""
        return int(lib.llama_vocab_bos(self.pointer)) if lib.llama_vocab_get_add_bos(self.pointer) else -1

    @cached_property
    def suppressed(self) -> frozenset[int]:
        """Tokens that are never sampled, by the model's header."""
        n = ctypes.c_int32(0)
        tokens = lib.llama_vocab_get_suppress_tokens(self.pointer, ctypes.byref(n))
        return frozenset(tokens[i] for i in range(n.value))

    @cached_property
    def _n_bytes_max(self) -> tuple[int, bytes] | None:
        """(bytes of text that one token can stand for, bytes that the tokenizer may drop); None if there is no bound.

        WordPiece (bert) has none: an unknown word of any length is one token, and whitespace has no token. Nor has
        Unigram (t5), which makes one token of any number of unknown characters and may normalize text away.
        """
        pointer = self.pointer
        if lib.llama_vocab_type(pointer) not in _BOUNDED:
            return None
        n_max, single, strips = bounds_of_tokens(int(pointer))
        dropped = {*range(256)} - {*single}  # BPE leaves out bytes that have no token
        if strips:
            dropped.update(_WHITESPACE)
        if lib.llama_vocab_type(pointer) == lib.LLAMA_VOCAB_TYPE_PLAMO2:
            dropped.update(_BOM)
        return n_max, bytes(dropped)

    def n_tokens_least(self, text: str) -> int:
        """The least number of tokens that a text can have, without tokenizing it; 0 if there is no such bound."""
        if self._n_bytes_max is None:
            return 0
        n_max, dropped = self._n_bytes_max
        data = text.encode("utf-8", errors="replace")
        return -(-len(data.translate(None, dropped)) // n_max)

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
        """The bytes of a token's text; those of special tokens only with `special`."""
        pieces = self._pieces[special]
        piece = pieces.get(token)
        if piece is None:
            piece = pieces[token] = token_to_piece(int(self.pointer), token, special)
        return piece
