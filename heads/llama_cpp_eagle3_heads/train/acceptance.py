"""How many of a head's drafts would be accepted in a text that the target wrote greedily."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from .eagle import Head
from .packing import pack
from .rows import Sample


@dataclass
class Acceptance:
    """Counts of drafts that were simulated on text of the target."""

    n_drafts: int = 0
    n_accepted: int = 0
    n_drafted: list[int] = field(default_factory=list)
    n_right: list[int] = field(default_factory=list)

    @classmethod
    def sum(cls, parts: Iterable[Acceptance]) -> Acceptance:
        """The sum of several counts."""
        whole = cls()
        for part in parts:
            whole.n_drafts, whole.n_accepted = whole.n_drafts + part.n_drafts, whole.n_accepted + part.n_accepted
            whole.n_drafted = [a + b for a, b in zip_longest(whole.n_drafted, part.n_drafted, fillvalue=0)]
            whole.n_right = [a + b for a, b in zip_longest(whole.n_right, part.n_right, fillvalue=0)]
        return whole

    @property
    def mean_length(self) -> float:
        """Mean acceptance length: tokens of a step, including the target's own."""
        return 1 + self.n_accepted / max(1, self.n_drafts)

    @property
    def conditional(self) -> list[float]:
        """Acceptance at each draft position, if all before it were accepted."""
        return [round(r / max(1, s), 3) for r, s in zip(self.n_right, self.n_drafted, strict=True)]


@torch.no_grad()
def simulate_acceptance(head: Head, sample: Sample, n_max: int, acceptance: Acceptance) -> None:
    """Draft n_max tokens in each step through a text that was written greedily, and count what equals it.

    A chain is accepted as far as it equals the text, so drafting may read the text's tokens in place of its own.
    """
    first, n = sample.n_first, len(sample.tokens) - n_max - 1
    if n <= first:
        return
    texts = pack([sample], [torch.arange(first, n)], head.device)
    following, hits = torch.roll(texts.tokens, -1), []
    for index, normed in head.steps(texts, n_max):
        hits.append((head.d2t[head.logits(normed)[0].argmax(-1)] == following[index])[: n - first])
    accepted = torch.stack(hits, -1).long().cumprod(-1).sum(-1).tolist()
    acceptance.n_drafted, acceptance.n_right = acceptance.n_drafted or [0] * n_max, acceptance.n_right or [0] * n_max
    row = 0
    while row < len(accepted):
        a = accepted[row]
        acceptance.n_drafts, acceptance.n_accepted = acceptance.n_drafts + 1, acceptance.n_accepted + a
        for i in range(min(a + 1, n_max)):
            acceptance.n_drafted[i] += 1
            acceptance.n_right[i] += i < a
        row += a + 1
