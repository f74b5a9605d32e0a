"""Proposers draft what may follow: fixed chains and trees, the planner's choice, a `LlamaDraftModel`, or nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from itertools import chain, takewhile
from typing import Any

import numpy as np

from .._core import Drafter, DrawKind, NgramDrafter, Planner
from ..draft import Draft
from .memory import ALL, Memory
from .request import NGRAM, DraftSettings
from .sequence import NO_DRAFT, ScheduledSequence, Sequence, Step
from .slots import Slots

N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens again gets a step without a draft."""
_N_MAX_UNMEASURED = 3


class Proposer(ABC):
    """Drafts for sequences that share a step."""

    @abstractmethod
    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Draft for each sequence.

        Args:
            sequences: each has one pending token, and a draft that has seen all tokens before it.
            n_rooms: tokens that fit after that token, for each.
            n_rows_extra: rows of the batch besides the last tokens and the drafts.
        """

    def observe(self, step: Step, scheduled: SequenceOf[ScheduledSequence], other_ns: int) -> None:
        """Learn from a step that has ended.

        Args:
            step: that was drafted for.
            scheduled: of it, the sequences whose drafts this proposer was asked for.
            other_ns: time of the step that is neither the drafter's nor the target's.
        """
        return


class FixedProposer(Proposer):
    """Chains and trees, by each sequence's settings."""

    def __init__(self, drafter: Drafter, n_leaves_max: int):
        """n_leaves_max: of all trees of a step, but for the first leaf of each further sequence; 1 = chains only."""
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


class AutoProposer(Proposer):
    """What the planner expects to pay best, step by step."""

    def __init__(self, planner: Planner, drafter: Drafter | None, ngram: NgramDrafter | None, sources: SequenceOf[str]):
        """drafter, ngram: what the planner was made with. sources: names of n-grams and of the drafter's parts."""
        self.planner, self.drafter, self.ngram = planner, drafter, ngram
        self._drafter_names = sources[1:]

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """One plan for all sequences, since they share the step."""
        seq_ids, ids_last = [s.seq_id for s in sequences], [s.tokens[-1] for s in sequences]
        n_max, n_max_ngram = [self._n_max(s) for s in sequences], [self._n_max_ngram(s) for s in sequences]
        draws, drafters = [self._draw_kind(s) for s in sequences], [self._drafters(s) for s in sequences]
        return self.planner.propose_batch(seq_ids, ids_last, n_rooms, n_rows_extra, n_max, n_max_ngram, draws, drafters)

    @staticmethod
    def _draw_kind(s: Sequence) -> DrawKind:
        assert s.chain is not None  # it decodes
        return s.chain.draw_kind

    def _n_max(self, s: Sequence) -> int:
        drafter = self.drafter
        return s.draft.n_max if drafter is not None and drafter.n_past(s.seq_id) == s.n_past else 0

    def _drafters(self, s: Sequence) -> int:
        """Which may be asked for a sequence, as bits."""
        return sum(1 << i for i, source in enumerate(self._drafter_names) if source in s.draft.sources)

    def _n_max_ngram(self, s: Sequence) -> int:
        if self.ngram is None or NGRAM not in s.draft.sources:
            return 0
        self.ngram.update(s.tokens, s.n_prompt, s.seq_id)
        return s.draft.n_max_ngram

    def observe(self, step: Step, scheduled: SequenceOf[ScheduledSequence], other_ns: int) -> None:
        """Give the planner the sampled tokens and the step's time; not the time of steps with prefill."""
        seq_ids, sampled = [x.sequence.seq_id for x in scheduled], [x.sampled for x in scheduled]
        verify_us = 0.0 if step.n_prefill_rows else 1e-3 * step.verify_ns
        self.planner.observe_batch(seq_ids, sampled, step.n_rows, verify_us, 1e-3 * other_ns)


class DraftModelProposer(Proposer):
    """Adapter: chains that a `llama_cpp.LlamaDraftModel` gives."""

    def __init__(self, draft_model: Callable[..., Any]):
        self.draft_model = draft_model

    def propose(self, sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int], n_rows_extra: int) -> list[Draft]:
        """Ask it for each sequence."""
        drafts = []
        for s, n_room in zip(sequences, n_rooms, strict=True):
            n_max = min(s.draft.n_max, n_room)
            found = self.draft_model(np.asarray(s.tokens, dtype=np.intc)) if n_max > 0 else ()
            tokens = self._allowed(s, [int(t) for t in found[:n_max]])
            drafts.append(Draft(tokens, list(range(-1, len(tokens) - 1)), sources=[0] * len(tokens)))
        return drafts

    @staticmethod
    def _allowed(s: Sequence, tokens: list[int]) -> list[int]:
        """Those before the first one that the sequence's grammar forbids."""
        rules = None if s.chain is None else s.chain.lookahead()
        if rules is None:
            return tokens
        return [t for _, t in takewhile(lambda x: rules.allowed(tokens[: x[0]], [x[1]])[0], enumerate(tokens))]


class Proposers:
    """Chooses a proposer for each sequence of a step, and has them draft."""

    def __init__(self, slots: Slots, ngram: NgramDrafter | None, draft_model: Callable[..., object] | None):
        """ngram, draft_model: as `Engine` takes them."""
        self.slots, self.ngram = slots, ngram
        self.memory: Memory = slots.memory
        self.override: Proposer | None = None
        """A proposer in place of those that the sequences' settings name."""
        self._draft_model = None if draft_model is None else DraftModelProposer(draft_model)
        self._fixed: FixedProposer | None = None
        self._auto: AutoProposer | None = None
        self._n_ctx = self.memory.target.n_ctx
        self.set_drafter(self.memory.drafter)

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with another head, which has evaluated nothing yet; the planner of the old one goes."""
        if drafter is not self.memory.drafter:
            self.slots.set_drafter(drafter)
        self._fixed = None if drafter is None else FixedProposer(drafter, self.memory.target.n_leaves_max)
        self._auto = None

    @property
    def planner(self) -> Planner | None:
        """What decides in mode "auto"; None: chains of a few tokens are drafted."""
        return None if self._auto is None else self._auto.planner

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        memory = self.memory
        self._auto = None if planner is None else AutoProposer(planner, memory.drafter, self.ngram, memory.source_names)

    def begin(self, sequence: Sequence) -> None:
        """Another text begins in this sequence's slot."""
        if self._auto is not None:
            self._auto.planner.reset(sequence.seq_id)
        if self.ngram is not None:
            self.ngram.begin(sequence.seq_id)

    def propose(self, step: Step, n_drafts_max: Callable[[Step, int], int]) -> bool:
        """Draft for the sequences of a step that decode; returns whether any proposer was asked.

        n_drafts_max: (step, number of sequences) -> tokens that may be drafted for each.
        """
        groups: dict[Proposer, list[ScheduledSequence]] = {}
        for scheduled in step.scheduled:
            s = scheduled.sequence
            if scheduled.is_prefill or s.draft.mode == "off" or self.memory.n_replay(s) > N_REPLAY_MAX:
                continue
            if s.is_save_next:  # and not after tokens that may be sent back otherwise
                continue
            proposer = self.override or self._proposer_of(s)
            if proposer is not None:
                groups.setdefault(proposer, []).append(scheduled)
        if not groups:
            return False
        n_max = n_drafts_max(step, sum(map(len, groups.values())))
        with self._foresight(groups):
            for proposer, group in groups.items():
                sequences = [scheduled.sequence for scheduled in group]
                n_rooms = [
                    max(0, min(n_max, self._n_ctx - s.n_past - 1, s.max_tokens - s.n_generated - 1)) for s in sequences
                ]
                drafts = proposer.propose(sequences, n_rooms, step.n_rows - len(group))
                for scheduled, draft in zip(group, drafts, strict=True):
                    scheduled.draft = draft
                    step.n_rows += len(draft.tokens)
        return True

    def observe(self, step: Step, commit_ns: int) -> None:
        """Give the proposer the sampled tokens and times of a step."""
        proposer = self.override or self._auto
        if proposer is None:
            return
        drafted = [x for x in step.scheduled if x.sampled and not x.is_prefill and x.sequence.draft.mode == "auto"]
        if drafted:
            proposer.observe(step, drafted, commit_ns + sum(x.sample_ns for x in step.scheduled))

    def can_defer(self, s: Sequence, n_seqs: int) -> int:
        """Drafters that may defer a sequence, as bits: with n_seqs in a step they are not asked for it soon."""
        if self.override is not None or s.draft.mode not in ("auto", "off"):
            return ALL & ~1  # the first one drafts
        if s.draft.mode == "off":
            return ALL
        return 0 if self._auto is None else self._auto.planner.may_wait(s.seq_id, n_seqs)

    @contextmanager
    def _foresight(self, groups: Mapping[Proposer, list[ScheduledSequence]]) -> Iterator[None]:
        """Give drafters, while they draft, the noise and the grammar that the next tokens will be sampled with."""
        drafter = self.memory.drafter
        drafters = [d for d in (drafter, self.ngram) if d is not None]
        shown: list[int] = []
        try:
            for scheduled in chain.from_iterable(groups.values()):
                s = scheduled.sequence
                if s.chain is None:
                    continue
                noise, rules = s.chain.noise, s.chain.lookahead()
                if noise is None and rules is None:
                    continue
                shown.append(s.seq_id)
                if drafter is not None:
                    drafter.set_noise(noise, s.seq_id)
                for d in drafters if rules is not None else ():
                    d.set_rules(rules, s.seq_id)
            yield
        finally:
            for seq_id in shown:
                if drafter is not None:
                    drafter.set_noise(None, seq_id)
                for d in drafters:
                    d.set_rules(None, seq_id)

    def _proposer_of(self, s: Sequence) -> Proposer | None:
        """Who drafts for a sequence by its settings; None: no one."""
        drafter = self.memory.drafter
        if drafter is None and self._draft_model is not None:
            return self._draft_model
        if s.draft.mode == "auto" and self._auto is not None:
            return self._auto if s.draft.sources else None
        return self._fixed if drafter is not None and drafter.n_past(s.seq_id) == s.n_past else None
