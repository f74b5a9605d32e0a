"""Fill-in-the-middle: the tokens that a vocabulary has for it, and prompts for the missing middle of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp.llama_cpp as lib

from .vocab import Vocab


@dataclass(frozen=True, slots=True)
class FimTokens:
    """A vocabulary's tokens for it, by llama.cpp's names; -1: the vocabulary has none."""

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
        """Names of the necessary tokens that the vocabulary lacks; empty if it has all."""
        tokens = {"prefix": self.pre, "suffix": self.suf, "middle": self.mid}
        return ", ".join(name for name, token in tokens.items() if token < 0)

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int], *, spm: bool) -> list[int]:
        """Tokens of the whole prompt. spm: the suffix comes before the prefix.

        The prefix may begin with the token that begins all texts.
        """
        begin = [self.bos] if self.bos >= 0 else []
        if begin and list(prefix[:1]) == begin:
            prefix = prefix[1:]
        parts = [[self.pre, *prefix], [self.suf, *suffix]]
        first, second = reversed(parts) if spm else parts
        return [*begin, *first, *second, self.mid]
