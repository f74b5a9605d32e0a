"""The drafts of a step: which drafter is asked for which sequences, and what it is told about sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import numpy as np

from .._core import CostCurve, DraftRequest, DraftShape, NgramDrafter, Policy
from .draft import Draft
from .draft_state import DraftState, draft_state
from .memory import Memory
from .request import GRAMMAR, NGRAM, DraftSettings
from .sequence import Sequence, Step
from .slots import Slots

N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens again gets a step without a draft."""
_ALL = -1
"""Drafters, as bits."""
_N_ROWS = 64
"""Most rows of a pass with drafts: up to 64 rows, our kernels compute the same bits whatever their number."""
_N_NODES_MIN = 32  # drafted tokens of a step that are always allowed, however many sequences there are
_TOPK = 4

Drafts = Callable[[SequenceOf[Sequence], SequenceOf[int]], list[Draft]]
"""(sequences, tokens that fit after the last one of each) -> a draft for each."""


class Drafting:
    """Lets drafters draft for the sequences of a step, by the policy or by the sequences' settings."""

    def __init__(
        self,
        slots: Slots,
        n_batch: int,
        ngram: NgramDrafter | None = None,
        draft_model: Callable[..., Any] | None = None,
        why_no_source: str = "",
    ):
        """The arguments are those of `Engine`."""
        self.slots, self.ngram, self._n_batch = slots, ngram, n_batch
        self.memory: Memory = slots.memory
        self.override: Drafts | None = None
        """Drafts in place of the policy's, for experiments."""
        self._n_ctx = self.memory.target.n_ctx
        self._draft_model = None if draft_model is None else _of_model(draft_model)
        self._draft_model_name = type(draft_model).__name__
        self._why_no_source = why_no_source
        self._experts = (0, 0)
        self._forget()

    def _forget(self) -> None:
        target, drafters = self.memory.target, tuple(self.memory.drafters)
        n_leaves_max, n_seq_max = target.n_leaves_max, target.n_seq
        self.policy = Policy(drafters, n_leaves_max=n_leaves_max, n_seq_max=n_seq_max, ngram=self.ngram)
        """What to draft. Until costs are measured it drafts chains of a few tokens in mode "auto"."""
        self.is_guessed = False
        """Whether the policy plans with costs of which some are guessed."""

    def set_drafters(self, drafters: SequenceOf[Any]) -> None:
        """Draft with other drafters, which have evaluated nothing yet. The policy forgets the old ones."""
        self.slots.set_drafters(drafters)
        self._forget()

    def learn(
        self,
        costs: SequenceOf[CostCurve],
        *,
        is_guessed: bool = False,
        experts: tuple[int, int] = (0, 0),
        priors: SequenceOf[dict[str, Any] | None] = (),
        **limits: Any,
    ) -> None:
        """Plan drafts by these costs from now on. What the policy has learned of its drafters stays.

        Args:
            costs: of the target, then of each drafter: as `Policy` takes them.
            is_guessed: whether some of them are guessed.
            experts: of the target, if it is a mixture: all, and those that a row uses.
            priors: what other processes have learned, if this one has planned nothing yet; it may be damaged.
            **limits: arguments of `Policy`, in place of those that suit the target.
        """
        target = self.memory.target
        if self.policy.is_measured:
            priors = self.policy.priors()
        options: dict[str, Any] = {
            "n_max": _N_ROWS - 1,
            "n_nodes_max": min(max(_N_ROWS - target.n_seq, _N_NODES_MIN), self._n_batch - 1),
            "top_k": _TOPK if target.n_leaves_max > 1 else 1,
            "n_leaves_max": target.n_leaves_max,
            "n_seq_max": target.n_seq,
            "uniform": not target.is_pooled or target.rollback_kind != "trim",
            "n_snapshots": target.n_snapshots,
            "ngram": self.ngram,
            **limits,
        }
        drafters = tuple(self.memory.drafters)
        try:
            self.policy = Policy(drafters, costs, priors=priors, **options)
        except ValueError:
            if not priors:
                raise
            self.policy = Policy(drafters, costs, **options)
        self.is_guessed, self._experts = is_guessed, experts

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Tokens/s of one text without drafts, by what passes cost at the present depth; None: that is not measured."""
        return 1e6 / self.policy.costs[0].at(1) if self.policy.is_measured and not self.is_guessed else None

    @property
    def reading_ns(self) -> float:
        """Nanoseconds in which a pass reads all of the target's weights, at most; 0: that is not measured.

        A pass over one row in a short text does little else, but that it reads only some experts of a mixture.
        """
        if not self.policy.is_measured or self.is_guessed:
            return 0.0
        n, n_used = self._experts
        return 1e3 * min(self.policy.costs[0].corrected.values()) * (n / n_used if n_used else 1.0)

    def state(self, settings: DraftSettings) -> DraftState:
        """Whether texts with these settings get drafts, and why not."""
        if self._draft_model is not None and not self.memory.drafters:
            return DraftState(True, f"the draft_model ({self._draft_model_name}) proposed nothing")
        has_ngram = self.ngram is not None
        return draft_state(self.policy, self.memory.drafters.names, settings, has_ngram, self._why_no_source)

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
            with self._foresight(sequences):
                requests = [self._request(s, n_room) for s, n_room in zip(sequences, n_rooms, strict=True)]
                found = self.policy.propose(requests, step.n_rows - len(asked))
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
        if s.saves.is_due(s.n_past, s.n_past + 1):  # nor after tokens that a client may send back changed
            return False
        if self._instead is not None:
            return True
        if s.draft.mode == "auto" and self.policy.is_measured:
            return bool(s.draft.sources)
        return self._is_seen(s) or self._may_force(s)

    def _may_force(self, s: Sequence) -> bool:
        """Whether a grammar may force tokens, and these may be drafted."""
        if self.ngram is None or s.chain is None or GRAMMAR not in s.draft.sources:
            return False
        return s.chain.may_force and (s.draft.mode == "auto" or s.draft.depth > 0)

    def _is_seen(self, s: Sequence) -> bool:
        """Whether all drafters have the rows of all tokens that the target has evaluated."""
        drafters = self.memory.drafters
        return bool(drafters) and drafters.n_past(s.seq_id) == s.n_past

    def _force(self, s: Sequence) -> int:
        """Let the policy know which tokens come next by the sequence's grammar; returns their number."""
        if self.ngram is None:
            return 0
        forced: list[tuple[int, float]] = []
        if s.chain is not None and self._may_force(s):
            forced = s.chain.forced(s.tokens, s.n_generated, s.draft.ngram_n_max)
        self.ngram.set_forced(forced, s.seq_id)
        return len(forced)

    def _request(self, s: Sequence, n_room: int) -> DraftRequest:
        settings, is_seen, n_forced = s.draft, self._is_seen(s), self._force(s)
        if settings.mode != "auto":
            return DraftRequest(s.seq_id, s.tokens[-1], n_room, int(is_seen), n_forced, _ALL, _shape(settings))
        ngram_n_max = n_forced
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

    @contextmanager
    def _foresight(self, sequences: SequenceOf[Sequence]) -> Iterator[None]:
        """Let drafters know the noise and the grammar that the next tokens will be sampled with, in the block."""
        shown: list[int] = []

        def show(seq_id: int, noise: Any, rules: Any) -> None:
            self.memory.drafters.set_foresight(noise, rules, seq_id)
            if self.ngram is not None:
                self.ngram.set_rules(rules, seq_id)

        try:
            for s in sequences:
                noise, rules = (None, None) if s.chain is None else (s.chain.noise, s.chain.lookahead())
                if noise is not None or rules is not None:
                    shown.append(s.seq_id)
                    show(s.seq_id, noise, rules)
            yield
        finally:
            for seq_id in shown:
                show(seq_id, None, None)


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
