"""Where drafts come from: fixed chains and trees, the planner, a LlamaDraftModel, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

import numpy as np

from .._core import Drafter, NgramDrafter, Planner
from ..draft import Draft
from .sequence import NO_DRAFT, DraftSettings, ScheduledSequence, Sequence, Step

_N_MAX_UNMEASURED = 3


class Proposer(Protocol):
    """What may follow the last token of each of some sequences that share a pass."""

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Draft for each sequence.

        Args:
            sequences: each has one pending token, and a draft that has seen all tokens before it.
            n_rooms: tokens that fit behind that token, for each.
            n_rows_extra: rows of the pass besides the last tokens and the drafts.
        """
        ...

    def observe(self, ended: Step, parts: SequenceOf[ScheduledSequence], other_ns: int) -> None:
        """A pass is over; `parts` are those of sequences that it was asked for.

        other_ns: all of the pass's time that is neither drafting nor the target's.
        """
        ...


class NoProposer:
    """No drafts."""

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Nothing."""
        return [NO_DRAFT] * len(sequences)

    def observe(self, ended: Step, parts: SequenceOf[ScheduledSequence], other_ns: int) -> None:
        """Nothing is learned."""


class FixedProposer(NoProposer):
    """Chains and trees as each sequence's settings say."""

    def __init__(self, drafter: Drafter, n_leaves_max: int):
        """n_leaves_max: of all trees of a pass, but for the first leaf of each further sequence; 1 = chains only."""
        self.drafter = drafter
        self.n_leaves_max = n_leaves_max

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Chains with one graph per step for all that have the same p_min; trees one by one."""
        if len(sequences) == 1 and (sequences[0].draft.mode == "chain" or self.n_leaves_max == 1):
            return [self._chain(sequences[0], n_rooms[0])]
        drafts = [NO_DRAFT] * len(sequences)
        chains: dict[float, list[tuple[int, int, int, int]]] = {}
        n_leaves = self.n_leaves_max
        for i, (s, n_room) in enumerate(zip(sequences, n_rooms, strict=True)):
            settings = s.draft
            if settings.mode == "tree" and self.n_leaves_max > 1:
                n_tokens = min(settings.tree_tokens, n_leaves, n_room)
                if n_tokens > 0:
                    depth = min(settings.tree_depth, n_tokens)
                    drafts[i] = self.drafter.propose_tree(s.tokens[-1], depth, settings.tree_topk, n_tokens, s.seq_id)
                    n_leaves -= max(0, drafts[i].n_leaves - 1)
                continue
            n_max = self._n_max(settings, n_room)
            if 0 < n_max >= settings.n_min:
                chains.setdefault(settings.p_min, []).append((i, s.seq_id, s.tokens[-1], n_max))
        for p_min, group in chains.items():
            indices, seq_ids, ids_last, n_maxs = zip(*group, strict=True)
            found = self.drafter.propose_batch(seq_ids, ids_last, n_maxs, p_min)
            for i, tokens in zip(indices, found, strict=True):
                if len(tokens) >= sequences[i].draft.n_min:
                    drafts[i] = Draft.chain(tokens)
        return drafts

    def _chain(self, s: Sequence, n_room: int) -> Draft:
        """For one sequence alone, the usual case, without lists of lists."""
        settings = s.draft
        n_max = self._n_max(settings, n_room)
        if not 0 < n_max >= settings.n_min:
            return NO_DRAFT
        tokens = self.drafter.propose(s.tokens[-1], n_max, settings.p_min, s.seq_id)
        return Draft.chain(tokens) if len(tokens) >= settings.n_min else NO_DRAFT

    @staticmethod
    def _n_max(settings: DraftSettings, n_room: int) -> int:
        """How long a chain may be. "auto" without a planner: nothing was measured."""
        n_max = min(settings.depth, n_room)
        return min(n_max, _N_MAX_UNMEASURED) if settings.mode == "auto" else n_max


class AutoProposer:
    """What pays best, round by round."""

    def __init__(self, planner: Planner, drafter: Drafter | None, ngram: NgramDrafter | None):
        """drafter, ngram: what the planner was made with."""
        self.planner, self.drafter, self.ngram = planner, drafter, ngram

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """One plan for all sequences, since they share the pass."""
        seq_ids, ids_last = [s.seq_id for s in sequences], [s.tokens[-1] for s in sequences]
        n_max, n_max_ngram = [self._n_max(s) for s in sequences], [self._n_max_text(s) for s in sequences]
        return self.planner.propose_batch(
            seq_ids, ids_last, n_rooms, n_max=n_max, n_max_ngram=n_max_ngram, n_rows_extra=n_rows_extra
        )

    def _n_max(self, s: Sequence) -> int:
        drafter = self.drafter
        if drafter is None or not {"head", "mtp"} & set(s.draft.sources) or drafter.n_past(s.seq_id) != s.n_past:
            return 0
        return s.draft.n_max

    def _n_max_text(self, s: Sequence) -> int:
        if self.ngram is None or "ngram" not in s.draft.sources:
            return 0
        self.ngram.update(s.tokens, s.n_prompt, s.seq_id)
        return s.draft.n_max_ngram

    def observe(self, ended: Step, parts: SequenceOf[ScheduledSequence], other_ns: int) -> None:
        """Tell the planner how the round went; what a pass costs that reads a prompt too is not compared."""
        seq_ids, said = [part.sequence.seq_id for part in parts], [part.sampled for part in parts]
        verify_us = 0.0 if ended.prefill_budget else 1e-3 * ended.verify_ns
        self.planner.observe_batch(seq_ids, said, ended.n_rows, verify_us, 1e-3 * other_ns)


class DraftModelProposer(NoProposer):
    """Chains that a `llama_cpp.LlamaDraftModel` thinks of."""

    def __init__(self, draft_model: Callable[..., Any]):
        self.draft_model = draft_model

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Ask it for each sequence."""
        drafts = []
        for s, n_room in zip(sequences, n_rooms, strict=True):
            n_max = min(s.draft.n_max, n_room)
            guess = self.draft_model(np.asarray(s.tokens, dtype=np.intc)) if n_max > 0 else ()
            tokens = [int(t) for t in guess[:n_max]]
            drafts.append(Draft(tokens, list(range(-1, len(tokens) - 1)), sources=[0] * len(tokens)))
        return drafts
