"""The gate: whether a head that has learned replaces the one before, by drafts that are simulated on texts kept out."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .acceptance import Acceptance, simulate_acceptance
from .eagle import Head
from .rows import Sample

_N_TEXTS_MIN = 3
_N_DRAWN = 400


@dataclass(frozen=True)
class Verdict:
    """What the gate found."""

    why: str
    """Why the head is refused; empty: it is let through."""
    before: float
    """Tokens a step of the head before; 1.0 without one."""
    after: float
    error: float
    """The standard error of the difference."""

    def __str__(self) -> str:
        return f"{self.after:.2f} tokens a step, {self.before:.2f} before, +-{self.error:.2f}"


def judge(before: Head | None, after: Head, new: Iterable[Sample], last: Iterable[Sample], n_max: int) -> Verdict:
    """Let a head through if it is better on new texts by more than chance, and not worse on those of the last gate.

    n_max: tokens of a simulated draft.
    """
    verdict = compare([simulate(before, after, sample, n_max) for sample in new])
    if not verdict.why and not verdict.after - verdict.before > verdict.error:
        verdict = replace(verdict, why=f"it is not better by more than chance: {verdict}")
    if verdict.why:
        return verdict
    old = compare([simulate(before, after, sample, n_max) for sample in last])
    if not old.why and old.after - old.before < -old.error:
        return replace(verdict, why=f"it is worse on the last gate's texts: {old}")
    return verdict


def simulate(before: Head | None, after: Head, sample: Sample, n_max: int) -> tuple[Acceptance, Acceptance]:
    """Simulate the drafts of both heads in a text."""
    pair = Acceptance(), Acceptance()
    for head, found in zip((before, after), pair, strict=True):
        if head is not None:
            simulate_acceptance(head.to(after.device).eval(), sample, n_max, found)
    return pair


def compare(pairs: Sequence[tuple[Acceptance, Acceptance]]) -> Verdict:
    """Compare two heads by their drafts in each text; without drafts of the first there is no head before."""
    counts = np.array([(a.n_drafts, a.n_accepted, b.n_drafts, b.n_accepted) for a, b in pairs if b.n_drafts], float)
    if len(counts) < _N_TEXTS_MIN:
        why = f"of {_N_TEXTS_MIN} texts with long enough answers that judge a head there are {len(counts)}"
        return Verdict(why, 1.0, 1.0, 0.0)

    def lengths(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_drafts, n_accepted = np.maximum(1, sums[..., ::2]), sums[..., 1::2]
        both = 1 + n_accepted / n_drafts
        return both[..., 0], both[..., 1]

    before, after = map(float, lengths(counts.sum(0)))
    drawn = np.random.default_rng(0).integers(0, len(counts), (_N_DRAWN, len(counts)))  # a bootstrap over texts
    of_drawn = lengths(counts[drawn].sum(1))
    error = float(np.std(of_drawn[1] - of_drawn[0]))
    return Verdict("", round(before, 3), round(after, 3), round(error, 3))
