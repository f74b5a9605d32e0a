"""The drafts of a step: which drafter is asked for which sequences, and what it is told about sampling."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import takewhile
from typing import Any

import numpy as np

from .._core import DraftRequest, DraftShape, NgramDrafter, Policy
from .draft import Draft
from .memory import Memory
from .request import NGRAM, DraftSettings
from .sequence import Sequence, Step
from .slots import Slots

N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens again gets a step without a draft."""
_ALL = -1
"""Drafters, as bits."""

Drafts = Callable[[SequenceOf[Sequence], SequenceOf[int]], list[Draft]]
"""(sequences, tokens that fit after the last one of each) -> a draft for each."""


class Drafting:
    """Lets drafters draft for the sequences of a step, by the policy or by the sequences' settings."""

    def __init__(self, slots: Slots, ngram: NgramDrafter | None, draft_model: Callable[..., Any] | None):
        """ngram, draft_model: as `Engine` takes them."""
        self.slots, self.ngram = slots, ngram
        self.memory: Memory = slots.memory
        self.override: Drafts | None = None
        """Drafts in place of the policy's, for experiments."""
        self._n_ctx = self.memory.target.n_ctx
        self._draft_model = None if draft_model is None else _of_model(draft_model)
        self.policy = self._unmeasured()
        """What to draft. Until costs are measured it drafts chains of a few tokens in mode "auto"."""

    def set_drafters(self, drafters: SequenceOf[Any]) -> None:
        """Draft with other drafters, which have evaluated nothing yet. The policy forgets the old ones."""
        self.slots.set_drafters(drafters)
        self.policy = self._unmeasured()

    def _unmeasured(self) -> Policy:
        target = self.memory.target
        return Policy(tuple(self.memory.drafters), n_leaves_max=target.n_leaves_max, n_seq_max=target.n_seq)

    def begin(self, sequence: Sequence) -> None:
        """Tell that another text begins in this sequence's slot."""
        self.policy.reset(sequence.seq_id)
        if self.ngram is not None:
            self.ngram.begin(sequence.seq_id)

    def propose(self, step: Step, n_drafts_max: Callable[[Step, int], int]) -> bool:
        """Draft for the sequences of a step that decode; returns whether any drafter was asked.

        n_drafts_max: (step, number of sequences) -> tokens that may be drafted for each.
        """
        asked = [x for x in step.scheduled if not x.is_prefill and self._may_draft(x.sequence)]
        if not asked:
            return False
        n_max, n_ctx = n_drafts_max(step, len(asked)), self._n_ctx
        sequences = [x.sequence for x in asked]
        n_rooms = [max(0, min(n_max, n_ctx - s.n_past - 1, s.max_tokens - s.n_generated - 1)) for s in sequences]
        drafts = self._instead
        if drafts is not None:
            found = drafts(sequences, n_rooms)
        else:
            shown: list[int] = []
            try:
                self._show(sequences, shown)
                requests = [self._request(s, n_room) for s, n_room in zip(sequences, n_rooms, strict=True)]
                found = self.policy.propose(requests, step.n_rows - len(asked))
            finally:
                self._hide(shown)
        for scheduled, draft in zip(asked, found, strict=True):
            scheduled.draft = draft
            step.n_rows += len(draft.tokens)
        return True

    @property
    def _instead(self) -> Drafts | None:
        """The drafter in place of the policy; None: there is none."""
        return self.override or (None if self.memory.drafters else self._draft_model)

    def _may_draft(self, s: Sequence) -> bool:
        if s.draft.mode == "off" or self.memory.n_replay(s) > N_REPLAY_MAX:
            return False
        if s.is_save_next:  # nor after tokens that a client may send back changed
            return False
        if self._instead is not None:
            return True
        if s.draft.mode == "auto" and self.policy.is_measured:
            return bool(s.draft.sources)
        return self._is_seen(s)

    def _is_seen(self, s: Sequence) -> bool:
        """Whether all drafters have the rows of all tokens that the target has evaluated."""
        drafters = self.memory.drafters
        return bool(drafters) and drafters.n_past(s.seq_id) == s.n_past

    def _request(self, s: Sequence, n_room: int) -> DraftRequest:
        settings, is_seen = s.draft, self._is_seen(s)
        if settings.mode != "auto":
            return DraftRequest(s.seq_id, s.tokens[-1], n_room, int(is_seen), 0, _ALL, _shape(settings))
        ngram_n_max = 0
        if self.ngram is not None and NGRAM in settings.sources:
            self.ngram.update(s.tokens, s.n_prompt, s.seq_id)
            ngram_n_max = settings.ngram_n_max
        bits = 0
        for i, name in enumerate(self.memory.drafters.names):
            bits |= (name in settings.sources) << i
        n_max = settings.n_max if is_seen else 0
        return DraftRequest(s.seq_id, s.tokens[-1], n_room, n_max, ngram_n_max, bits, None, s.n_past)

    def observe(self, step: Step, commit_ns: int) -> None:
        """Tell the policy the sampled tokens and the times of a step, except those of a step with prefill."""
        if self.override is not None or not self.policy.is_measured:
            return
        of_auto = [x for x in step.scheduled if x.sampled and not x.is_prefill and x.sequence.draft.mode == "auto"]
        if of_auto:
            seq_ids, sampled = [x.sequence.seq_id for x in of_auto], [x.sampled for x in of_auto]
            verify_us = 0.0 if step.n_prefill_rows else 1e-3 * step.verify_ns
            other_us = 1e-3 * (commit_ns + sum(x.sample_ns for x in step.scheduled))
            self.policy.observe(seq_ids, sampled, step.n_rows, verify_us, other_us)

    def can_defer(self, s: Sequence, n_seqs: int) -> int:
        """Drafters, as bits, that may evaluate rows later, since with n_seqs sequences they are not asked soon."""
        if self.override is not None or s.draft.mode not in ("auto", "off"):
            return _ALL & ~1  # the first one drafts
        return _ALL if s.draft.mode == "off" else self.policy.may_wait(n_seqs)

    def _show(self, sequences: SequenceOf[Sequence], shown: list[int]) -> None:
        """Tell drafters the noise and the grammar that the next tokens will be sampled with.

        shown: gets the ids of the sequences that have one of both.
        """
        for s in sequences:
            noise, rules = (None, None) if s.chain is None else (s.chain.noise, s.chain.lookahead())
            if noise is not None or rules is not None:
                shown.append(s.seq_id)
                self.memory.drafters.set_foresight(noise, rules, s.seq_id)
                if self.ngram is not None:
                    self.ngram.set_rules(rules, s.seq_id)

    def _hide(self, shown: list[int]) -> None:
        """Let drafters forget what `_show` told them."""
        for seq_id in shown:
            self.memory.drafters.set_foresight(None, None, seq_id)
            if self.ngram is not None:
                self.ngram.set_rules(None, seq_id)


def _shape(settings: DraftSettings) -> DraftShape:
    if settings.mode == "tree":
        return DraftShape(settings.tree_depth, settings.tree_topk, settings.tree_tokens)
    return DraftShape(settings.n_max, 1, settings.n_max, settings.n_min, settings.p_min)


def _of_model(draft_model: Callable[..., Any]) -> Drafts:
    """Drafts by a `llama_cpp.LlamaDraftModel`, which are chains."""

    def allowed(s: Sequence, tokens: list[int]) -> list[int]:
        """The tokens before the first one that the sequence's grammar forbids."""
        rules = None if s.chain is None else s.chain.lookahead()
        if rules is None:
            return tokens
        return [t for _, t in takewhile(lambda x: rules.allowed(tokens[: x[0]], [x[1]])[0], enumerate(tokens))]

    def drafts(sequences: SequenceOf[Sequence], n_rooms: SequenceOf[int]) -> list[Draft]:
        result = []
        for s, n_room in zip(sequences, n_rooms, strict=True):
            n_max = min(s.draft.n_max, n_room)
            found = draft_model(np.asarray(s.tokens, dtype=np.intc)) if n_max > 0 else ()
            tokens = allowed(s, [int(t) for t in found[:n_max]])
            result.append(Draft(tokens, list(range(-1, len(tokens) - 1)), sources=[0] * len(tokens)))
        return result

    return drafts
