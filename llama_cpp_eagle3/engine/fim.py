"""Fill-in-the-middle: the tokens that a vocabulary has for it, and the prompt that asks for a hole in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp.llama_cpp as lib

from .vocab import Vocab


@dataclass(frozen=True, slots=True)
class FimTokens:
    """A vocabulary's tokens, by llama.cpp's names; -1: it has none."""

    bos: int
    """Begins all texts."""
    pre: int
    suf: int
    mid: int
    rep: int
    """Before the name of a repository."""
    sep: int
    """Before the name of a file."""

    @classmethod
    def of(cls, vocab: Vocab) -> FimTokens:
        """The tokens of a vocabulary."""
        names = ("pre", "suf", "mid", "rep", "sep")
        return cls(vocab.bos, *(int(getattr(lib, f"llama_vocab_fim_{name}")(vocab.pointer)) for name in names))

    @property
    def missing(self) -> str:
        """Names of the tokens that it lacks for filling in; empty if it can."""
        tokens = {"prefix": self.pre, "suffix": self.suf, "middle": self.mid}
        return ", ".join(name for name, token in tokens.items() if token < 0)

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int], *, spm: bool) -> list[int]:
        """Tokens of the whole prompt. spm: the suffix comes before the prefix.

        What begins a text may stand before the prefix.
        """
        begin = [self.bos] if self.bos >= 0 else []
        if begin and list(prefix[:1]) == begin:
            prefix = prefix[1:]
        parts = [[self.pre, *prefix], [self.suf, *suffix]]
        first, second = reversed(parts) if spm else parts
        return [*begin, *first, *second, self.mid]
