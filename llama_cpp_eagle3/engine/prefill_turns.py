"""Prefill turns: which of several prompts the next step reads."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .sequence import ScheduledSequence, Sequence


class PrefillTurns:
    """Lets short prompts pass long ones, by as many rows as the oldest has, and then by half of all rows.

    The shortest first has the least mean time to the first token (SRPT). The oldest waits for its own time at most, and
    then ends within twice that: short ones that keep coming make it three times its time at most.
    """

    def __init__(self) -> None:
        self._oldest: Sequence | None = None
        self._n_passed = 0  # rows by which others have passed it, less those that it got since

    def order(self, prompts: SequenceOf[Sequence], n_rows: int) -> list[Sequence]:
        """The order in which a step of n_rows reads prompts, which are given in the order of their arrival."""
        oldest, *others = prompts
        others.sort(key=_n_left)
        is_next = not others or _n_left(oldest) <= _n_left(others[0])
        if is_next or (oldest is self._oldest and self._n_passed >= max(n_rows, len(oldest.tokens))):
            return [oldest, *others]
        return [*others, oldest]

    def count(self, oldest: Sequence, read: SequenceOf[ScheduledSequence]) -> None:
        """Count what a step reads of prompts. oldest: the first that arrived of those that it could have read."""
        n_own = sum(len(x.tokens) for x in read if x.sequence is oldest)
        if not n_own and oldest is not self._oldest:
            self._oldest, self._n_passed = oldest, 0
        if oldest is self._oldest:
            n_others = 0 if n_own else sum(len(x.tokens) for x in read)
            self._n_passed = max(0, self._n_passed + n_others - n_own)


def _n_left(s: Sequence) -> int:
    return len(s.tokens) - s.n_past
