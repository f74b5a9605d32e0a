"""What a drafter proposes: a tree of tokens, of which a chain is the narrowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens, parents before their children.

    `parents[i]` is the index in `tokens` of the token before token i, -1 for those that follow the last token of the
    text. `probs[i]` is the head's own probability of token i behind its parent; empty if nobody asked for them.
    """

    tokens: list[int]
    parents: list[int]
    probs: list[float]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        """Make a draft in which each token follows the one before, without probabilities."""
        return cls(list(tokens), list(range(-1, len(tokens) - 1)), [])

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before; so does no token at all."""
        return self.parents == list(range(-1, len(self.tokens) - 1))

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, i: int) -> list[int]:
        """Return the indices of the tokens that may follow token i; i = -1: the last token of the text."""
        return [child for child, parent in enumerate(self.parents) if parent == i]
