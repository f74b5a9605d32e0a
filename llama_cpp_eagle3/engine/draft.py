"""What a drafter proposes: a tree of tokens, of which a chain is the narrowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

BY_NGRAM, BY_GRAMMAR, FIRST_DRAFTER = 1, 2, 4
"""Who suggested a drafted token, as bits: n-grams, a grammar, or a drafter with weights, whose bits follow."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens, parents before their children.

    `parents[i]` is the index in `tokens` of the token before token i, -1 for those that follow the last token of the
    text. `probs[i]` is the head's own probability of token i after its parent; empty if they were not requested.
    `sources[i]` says what drafted token i: BY_NGRAM, BY_GRAMMAR, FIRST_DRAFTER << k or several of them; empty: the
    first drafter.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        """Make a draft in which each token follows the one before, without probabilities."""
        return cls(list(tokens), list(range(-1, len(tokens) - 1)))

    def n_of(self, source: int) -> int:
        """Number of tokens that a source drafted."""
        if not self.sources:
            return len(self.tokens) if source == FIRST_DRAFTER else 0
        return sum(1 for s in self.sources if s & source)

    def drafters_of(self, i: int) -> int:
        """Who suggested token i, as bits."""
        return self.sources[i] if self.sources else FIRST_DRAFTER

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths, default=0)

    def child(self, i: int, token: int) -> int:
        """Return the index of the `token` that follows token i; -1 if there is none."""
        tokens, parents = self.tokens, self.parents
        for child in range(i + 1, len(tokens)):
            if tokens[child] == token and parents[child] == i:
                return child
        return -1

    def children(self, i: int) -> list[int]:
        """Return the indices of the tokens that may follow token i; i = -1: the last token of the text."""
        return [child for child, parent in enumerate(self.parents) if parent == i]
