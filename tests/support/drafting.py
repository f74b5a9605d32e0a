"""Drive a compiled drafter and the NumPy reference side by side and measure how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import placement
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3._core import DraftRequest, DraftShape, Policy
from llama_cpp_eagle3.engine.draft import Draft as Drafted
from reference import Draft, ReferenceHead
from tiny import Head
from tolerance import tolerance

N_STEPS = 6

# numbers of tokens that the target accepted, step by step: all, none, more than one catch-up graph takes, ...
ACCEPTED = (3, 0, 6, 1, 0, 2, 20, 4)


def draft_chains(
    drafter: _core.Drafter, seq_ids: Sequence[int], ids_last: Sequence[int], n_max: Sequence[int], p_min: float = 0.0
) -> list[list[int]]:
    """Draft chains of up to n_max tokens for the sequences, together."""
    requests = [
        DraftRequest(seq_id, id_last, n, shape=DraftShape(n, p_min=p_min))
        for seq_id, id_last, n in zip(seq_ids, ids_last, n_max, strict=True)
    ]
    return [draft.tokens for draft in Policy([drafter]).propose(requests)] if requests else []


def draft_chain(drafter: _core.Drafter, id_last: int, n_max: int, p_min: float = 0.0, seq_id: int = 0) -> list[int]:
    """Draft a chain for one sequence."""
    return draft_chains(drafter, [seq_id], [id_last], [n_max], p_min)[0]


def draft_tree(drafter: _core.Drafter, id_last: int, depth: int, top_k: int, n_tokens: int, seq_id: int = 0) -> Drafted:
    """Draft a tree for one sequence."""
    shape = DraftShape(depth, top_k, n_tokens)
    return Policy([drafter], n_leaves_max=n_tokens).propose([DraftRequest(seq_id, id_last, n_tokens, shape=shape)])[0]


def plan(policy: Policy, id_last: int, n_room: int, seq_id: int = 0, n_rows_extra: int = 0) -> Drafted:
    """Return the policy's draft for one sequence."""
    return policy.propose([DraftRequest(seq_id, id_last, n_room)], n_rows_extra)[0]


def plan_all(
    policy: Policy, seq_ids: Sequence[int], ids_last: Sequence[int], n_rooms: Sequence[int], **options: Sequence[Any]
) -> list[Drafted]:
    """Return the policy's drafts for several sequences; options: those of each request."""
    rows = zip(seq_ids, ids_last, n_rooms, *options.values(), strict=True)
    return policy.propose([DraftRequest(*row[:3], **dict(zip(options, row[3:], strict=True))) for row in rows])


def make_drafter(head: Head, model_tgt: int, n_ctx: int = 256, **kwargs: Any) -> _core.Eagle3Drafter:
    """Make a drafter on the CPU, or where `placement` says, whose K/V are F32, unless told otherwise."""
    options = {"n_gpu_layers": 0, "device": placement.draft_device(), "type_k": 0, "type_v": 0}
    return _core.Eagle3Drafter(head.path, model_tgt, n_ctx, **options | kwargs)


def rel_error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value."""
    if got.shape != want.shape or not np.all(np.isfinite(got)):
        return float("inf")
    return float(np.abs(got - want).max() / np.abs(want).max())


@dataclass
class Worst:
    """The largest errors so far, and whether a drafted id differed."""

    logits: float = 0.0
    states: float = 0.0
    same_ids: bool = True

    def agrees(self, of_float32: float) -> bool:
        return self.same_ids and max(self.logits, self.states) < tolerance(of_float32)


class SideBySide:
    """Feeds the same random text to a sequence of a drafter and to the reference."""

    def __init__(self, drafter: _core.Eagle3Drafter, reference: ReferenceHead, seed: int = 1234, seq_id: int = 0):
        self.drafter, self.reference, self.seq_id = drafter, reference, seq_id
        self.rng = np.random.default_rng(seed)
        self.worst = Worst()

    @property
    def n_past(self) -> int:
        return self.reference.n_past

    def token(self) -> int:
        return int(self.rng.integers(0, self.reference.head.target.n_vocab))

    def process(self, n: int, first: int | None = None, can_defer: bool = False) -> None:
        """Process `n` random rows in both; `first` is the token of the first one."""
        if n == 0:
            return
        tokens = [self.token() for _ in range(n)]
        if first is not None:
            tokens[0] = first
        rows = self.rng.normal(0.0, 2.0, (n, self.reference.head.n_embd_inp)).astype(np.float32)
        self.drafter.process_rows(rows, tokens, self.n_past, self.seq_id, can_defer)
        self.reference.process(rows, tokens, self.n_past)
        assert self.drafter.n_past(self.seq_id) == self.n_past

    def truncate(self, n_past: int) -> None:
        """Truncate both. The drafter may ask for the row before again: its slot held a removed token."""
        self.reference.truncate(n_past)
        n_past = self.drafter.truncate(n_past, self.seq_id)
        assert self.drafter.n_past(self.seq_id) == n_past
        assert self.n_past - 1 <= n_past <= self.n_past
        rows, tokens = self.reference.rows, self.reference.tokens
        n = n_past - self.reference.start
        self.drafter.process_rows(rows[n:], tokens[n:], n_past, self.seq_id)

    def restart(self, n_past: int) -> None:
        """Restart both at another position."""
        self.drafter.restart(n_past, self.seq_id)
        self.reference.restart(n_past)
        assert self.drafter.n_past(self.seq_id) == self.n_past

    def propose(self, id_last: int, n_steps: int = N_STEPS) -> Draft:
        """Draft in both and compare each step: a shorter draft ends in the state of its last step."""
        want = self.reference.propose(id_last, n_steps)
        for n in [n_steps, *range(1, n_steps)]:
            ids = draft_chain(self.drafter, id_last, n, seq_id=self.seq_id)
            self.worst.same_ids &= ids == want.ids[:n]
            self.worst.logits = max(self.worst.logits, rel_error(self.drafter.draft_logits, want.logits[n - 1]))
            self.worst.states = max(self.worst.states, rel_error(self.drafter.hidden_state, want.states[n - 1]))
        return want


def compare(drafter: _core.Eagle3Drafter, reference: ReferenceHead, accepted: tuple[int, ...] = ACCEPTED) -> Worst:
    """Process a prompt in three pieces, then steps as in speculative decoding; return the largest errors."""
    side = SideBySide(drafter, reference)
    for n in (30, 1, 14):
        side.process(n)
    for n_accepted in accepted:
        id_last = side.token()
        side.propose(id_last)
        side.process(n_accepted + 1, first=id_last)
    side.propose(side.token())
    return side.worst


def is_chain(draft: Any) -> bool:
    """Whether each token follows the one before."""
    return list(draft.parents) == list(range(-1, len(draft) - 1))
