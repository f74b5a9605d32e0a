"""Tokens that may not come next: the ends of words that are not wanted, and what would end a text too early."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from .sampling import Sampling
from .vocab import Vocab

LOWEST = -1e12
"""The logit of such a token. It is finite, so that a grammar which is complete can still end the text."""


class Forbidden:
    """What `Sampling` says of single tokens after others: `bad_words`, `allowed_tokens` and `min_tokens`."""

    def __init__(self, sampling: Sampling, vocab: Vocab, stop_tokens: Collection[int] = ()):
        """stop_tokens: tokens that end the text, beside the model's own.

        Raises:
            ValueError: a token does not exist.
        """
        self._min_tokens = sampling.min_tokens
        self._ends = sorted({*vocab.eog, *stop_tokens})
        self._has_grammar = sampling.has_rules
        self._others: npt.NDArray[np.bool_] | None = None
        words = [list(word) for word in sampling.bad_words if word]
        named = [*stop_tokens, *(sampling.allowed_tokens or ()), *(token for word in words for token in word)]
        unknown = [token for token in named if not 0 <= token < vocab.n_tokens]
        if unknown:
            raise ValueError(f"expected tokens in 0..{vocab.n_tokens - 1}, found {unknown[0]}")
        if sampling.allowed_tokens is not None:
            self._others = np.ones(vocab.n_tokens, dtype=np.bool_)
            self._others[list(sampling.allowed_tokens)] = False
        self._always = [word[0] for word in words if len(word) == 1]
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for *begin, last in words:
            if begin:
                self._after.setdefault(begin[-1], []).append((begin, last))

    def __bool__(self) -> bool:
        return bool(self._min_tokens or self._others is not None or self._always or self._after)

    def after(self, tokens: Sequence[int], n_generated: int) -> Sequence[int]:
        """Tokens that may not follow these, of which the last n_generated are the text's own; not `others`."""
        found = list(self._always)
        for begin, last in self._after.get(tokens[-1], ()) if n_generated else ():
            if len(begin) <= n_generated and list(tokens[-len(begin) :]) == begin:
                found.append(last)
        return found + self._ends if n_generated < self._min_tokens else found

    def lower(self, logits: npt.NDArray[np.single], forbidden: Sequence[int]) -> None:
        """Change a row of logits: these tokens, and all that are not among the allowed ones."""
        logits[list(forbidden)] = LOWEST
        if self._others is not None:
            logits[self._others] = LOWEST

    def check(self, token: int, forbidden: Sequence[int]) -> None:
        """Refuse a token that was drawn though it is forbidden. A grammar that is complete may end the text.

        Raises:
            ValueError: nothing else was left.
        """
        is_other = self._others is not None and self._others[token]
        if (is_other or token in forbidden) and not (self._has_grammar and token in self._ends):
            raise ValueError(
                "all tokens that could come next are forbidden by bad_words, allowed_token_ids or min_tokens, together "
                "with a grammar, a bias or each other: allow one of them"
            )

    @property
    def is_always(self) -> bool:
        """Whether it concerns every row."""
        return self._others is not None
