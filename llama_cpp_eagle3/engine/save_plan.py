"""Where the state of a sequence is saved, if its memory can go back far only to saved states.

All rules are here; `step` saves what is due, `PrefixCache.save` keeps it. (One state more is saved at once where a text
goes on from a cached one: `Slots.assign`.) A position is the number of tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Request

N_WITHIN = 8192
"""Tokens of a long message between two saved states."""
N_APART = 16
"""Tokens of a prompt: no pass is ended to save a state that is nearer to where the sequence begins."""


@dataclass(slots=True)
class SavePlan:
    """Where states of a sequence are saved, and where other prompts may differ from its own."""

    is_needed: bool = False
    """Whether its memory goes back far only to saved states."""
    ends: list[int] = field(default_factory=list)
    """Positions of its prompt where others may differ: ends of the system prompt and before the last messages."""
    n_turn: int = 0
    """Position at which its answer begins; the answer's beginning may be the end of the prompt."""
    places: list[int] = field(default_factory=list)
    """Where its state is saved, in order. In the prompt a pass ends there; after a thought the state is saved there or
    after the next tokens."""
    thought_ends: Sequence[Sequence[int]] = ()
    """Tokens that end a thought: clients send the text after it back in another form."""

    def begin_at(self, n_past: int) -> None:
        """Leave out places that are near to where a sequence begins, but for the last one."""
        self.places = [n for n in self.places if n > n_past + N_APART or n == self.places[-1]]

    def next_place(self, n_past: int) -> int | None:
        """The next place after n_past."""
        return next((n for n in self.places if n > n_past), None)

    def is_due(self, n_before: int, n_past: int) -> bool:
        """Whether one of the places was reached by evaluating the tokens after n_before, up to n_past."""
        return any(n_before < n <= n_past for n in self.places)

    def put_off(self, n_past: int) -> None:
        """Save after one token more, as the state cannot be read now."""
        self.places.append(n_past + 1)

    def see(self, tokens: Sequence[int], n_prompt: int, n_sampled: int) -> None:
        """Save after a thought, if it ends among the n_sampled last tokens."""
        if self.is_needed and n_sampled:
            for end in self.thought_ends:
                for n in range(len(tokens) - n_sampled + 1, len(tokens) + 1):
                    if n - len(end) >= n_prompt and list(tokens[n - len(end) : n]) == list(end):
                        self.places.append(n)
                        return

    def share(self, n: int, n_prompt: int, near: int) -> None:
        """Save where another prompt parts, after n common tokens, unless a place is less than `near` before."""
        if self.is_needed and n < n_prompt and not any(n - near <= place <= n for place in self.places):
            self.places = sorted([*self.places, n - 1])

    def cut(self, n_keep: int) -> None:
        """Tell that tokens after the first n_keep were cut out: what comes after them is in no other text."""
        self.places, self.n_turn = [], min(self.n_turn, n_keep)


def plan_saves(request: Request, n_prompt: int, min_step: int, *, is_needed: bool) -> SavePlan:
    """Choose where the state of a prompt is saved: one token before the places where other prompts may differ.

    With that token the drafter has its last row as it was. At the last two boundaries, where the last message and the
    answer begin, at the first one, which ends the system prompt, and where a full context is cut, always; at others,
    and within long messages, where the last state is at least min_step tokens before. is_needed: see `SavePlan`.
    """
    ends = sorted({n for n in request.boundaries if 1 < n <= n_prompt})
    n_turn = (ends[-1] if ends else n_prompt) - 1
    plan = SavePlan(is_needed, sorted({n - 1 for n in (*ends[:1], *ends[-2:], n_turn + 1)}), n_turn)
    if not is_needed:
        return plan
    plan.thought_ends = request.thought_ends
    places: list[int] = []
    step = max(min_step, 1)
    for i, n in enumerate(ends or [n_prompt]):
        last = places[-1] if places else 0
        places += range(last + N_WITHIN, n - step, N_WITHIN)
        if i == 0 or i >= len(ends) - 2 or n - last > step:
            places.append(n - 1)
    if request.shift is not None and request.shift.n_keep <= n_prompt:
        places.append(request.shift.n_keep - 1)
    plan.places = sorted({n for n in places if n > 0})
    return plan
