"""Rounds: propose, verify, accept, commit, for sequences that have a slot.

Lossless by construction: a sequence's sampler chain sees the target's logits only, once per emitted token and in order.
What is drafted decides how many rows one pass of the target computes, never which token comes out.

A pass holds the rows of all sequences that generate, each the last token and its draft, and pieces of the prompts that
are being read. Rows are sampled when they are asked for; until `commit` the pass is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from .._core import BatchPart, Drafter, NgramDrafter, Planner, Target
from ..errors import Eagle3Error
from .memory import Memory
from .prefill_budget import PrefillBudget
from .proposers import AutoProposer, DraftModelProposer, FixedProposer, NoProposer, Proposer
from .sequence import ScheduledSequence, Sequence, State, Step, TokenLogprob

N_ROWS_ARGMAX = 33
"""Rows of one sequence whose argmax a device may have to take at once."""
N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens once more gets a round without a draft."""


class Rounds:
    """The passes of a target, one after the other, and those who draft for them."""

    def __init__(
        self,
        memory: Memory,
        *,
        n_batch: int,
        n_rs_seq: int,
        prefill_budget: int | None,
        draft_model: Callable[..., object] | None,
        ngram: NgramDrafter | None,
    ):
        """The arguments are those of `Engine`."""
        target = memory.target
        self.memory, self.n_batch, self.ngram = memory, n_batch, ngram
        self.n_rs_seq = n_rs_seq
        self.prefill_budget = PrefillBudget(prefill_budget)
        self.on_draw: Callable[[ScheduledSequence, int], int] | None = None
        self.proposer: Proposer | None = None
        self.opened: Step | None = None
        """The pass that is open."""
        self.argmax_on_device = False
        self._can_take_argmax = target.logits_are_remote and not (memory.tap and memory.tap.needs_all_outputs)
        self._can_replay = target.rollback_kind == "checkpoint"
        self._has_snapshots = target.rollback_kind == "snapshots"
        self._n_draft_max = n_rs_seq if target.rollback_kind == "snapshots" else n_batch
        self._n_ctx = target.n_ctx
        self._is_text_turn = False  # images and text take turns
        self._live: list[Sequence] = []  # whose rows may still be those of the last decode
        self._n_batches = target.n_batches  # with that one
        self._plain = NoProposer()
        self._guess = None if draft_model is None else DraftModelProposer(draft_model)
        self._fixed: Proposer = self._plain
        self._planned: AutoProposer | None = None
        self.set_drafter(memory.drafter)

    @property
    def target(self) -> Target:
        """The context."""
        return self.memory.target

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with another head from now on; it has seen nothing yet, and the planner that drove the old one goes."""
        if drafter is not self.memory.drafter:
            self.memory.set_drafter(drafter)
        self._fixed = self._plain if drafter is None else FixedProposer(drafter, self.target.n_leaves_max)
        self._planned = None

    @property
    def planner(self) -> Planner | None:
        """What decides in mode "auto"; None: chains of a few tokens are drafted."""
        return None if self._planned is None else self._planned.planner

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        self._planned = None if planner is None else AutoProposer(planner, self.memory.drafter, self.ngram)

    def begin_text(self, sequence: Sequence) -> None:
        """A new text begins in this sequence's slot."""
        if self._planned is not None:
            self._planned.planner.reset(sequence.seq_id)
        if self.ngram is not None:
            self.ngram.begin(sequence.seq_id)

    def decoded_elsewhere(self, sequence: Sequence) -> None:
        """Somebody else has decoded; the last row of that says what follows in this sequence."""
        self._forget_rows()
        sequence.rows = [-1]
        self._live = [sequence]

    def _forget_rows(self) -> None:
        for s in self._live:
            s.rows = []
        self._live = []
        self._n_batches = self.target.n_batches

    # open

    def plan(self, sequences: SequenceOf[Sequence], by_hand: bool) -> Step | None:
        """Who takes part in the pass: rows of those that generate first, then pieces of prompts."""
        self.take_argmax_on_device(sequences)
        again = []
        for s in sequences:
            if s.n_past == len(s.tokens):
                if s.rows:
                    again.append(ScheduledSequence(s, s.n_past, [], True, root=s.rows[-1]))
                else:
                    self.memory.go_back(s, s.n_past - 1, same_next=True)
        if again:  # first, for another pass would overwrite their rows
            return Step(again, by_hand, n_rows=0, prefill_budget=0)
        parts: list[ScheduledSequence] = []
        reading: list[Sequence] = []
        looking: list[Sequence] = []
        n_room = self.n_batch
        is_crowded = False
        for s in sequences:
            if s.n_past < s.n_prompt or len(s.tokens) > s.n_past + 1:
                (looking if s.tokens[s.n_past] < 0 else reading).append(s)
                continue
            n = 1 + self._n_replay(s)
            if n > n_room:
                is_crowded = True
                continue
            n_room -= n
            parts.append(ScheduledSequence(s, s.n_past, s.tokens[-1:], False))
        prefill_budget = 0
        # prompts that come at once begin together: only who has said more than its first token is not kept waiting
        is_going = any(len(part.sequence.tokens) > part.sequence.n_prompt + 1 for part in parts)
        n_prompt_max = self.prefill_budget.n_rows if is_going and reading else n_room
        for s in reading:
            n_replay = self._n_replay(s)
            n = min(n_room - n_replay, n_prompt_max - prefill_budget)
            if n <= 0:
                break
            media = s.next_media()
            n_end = min(len(s.tokens) if media is None else media.first, s.n_past + n)
            if s.n_past < s.n_save < n_end:
                n_end = s.n_save
            parts.append(ScheduledSequence(s, s.n_past, s.tokens[s.n_past : n_end], True))
            prefill_budget += n_end - s.n_past
            n_room -= n_replay + n_end - s.n_past
        if looking and not (parts and self._is_text_turn):
            self._is_text_turn = True
            return self._plan_media(looking[0], by_hand)
        self._is_text_turn = False
        if not parts:
            return None
        if len(parts) > 1:
            parts.sort(key=attrgetter("sequence.seq_id"))
        # without drafts nobody has tokens to evaluate again after this pass: the next one has room for all
        return Step(parts, by_hand, self.n_batch if is_crowded else self.n_batch - n_room, prefill_budget)

    def _plan_media(self, s: Sequence, by_hand: bool) -> Step:
        """A pass for rows of one image: llama.cpp takes either tokens or embeddings."""
        media = s.next_media()
        assert media is not None
        n = min(media.end - s.n_past, self.n_batch)
        part = ScheduledSequence(s, s.n_past, s.tokens[s.n_past : s.n_past + n], True, media)
        return Step([part], by_hand, n, n)

    def _n_replay(self, s: Sequence) -> int:
        return self.target.n_replay(s.seq_id) if self._can_replay else 0

    def propose(self, opened: Step) -> None:
        """Draft for those that can be drafted for."""
        start = perf_counter_ns()
        groups: dict[Proposer, list[ScheduledSequence]] = {}
        n_rows = opened.n_rows
        for part in opened.parts:
            s = part.sequence
            if part.is_prefill or s.draft.mode == "off":
                continue
            if self._n_replay(s) > N_REPLAY_MAX:
                continue
            proposer = self.proposer or self._proposer_of(s)
            if proposer is self._plain or (proposer is self._fixed and self._head_is_behind(s)):
                continue
            if proposer in groups:
                groups[proposer].append(part)
            else:
                groups[proposer] = [part]
        n_drafting = sum(map(len, groups.values()))
        if n_drafting == 0:
            return
        n_each = min((self.n_batch - n_rows) // n_drafting, self._n_draft_max)
        if opened.prefill_budget:
            n_each = min(n_each, self.prefill_budget.n_drafts(n_drafting))
        if self.argmax_on_device:
            n_each = min(n_each, N_ROWS_ARGMAX - 1)
        with self._noise_shown(groups):
            for proposer, parts in groups.items():
                sequences = [part.sequence for part in parts]
                n_rooms = [
                    max(0, min(n_each, self._n_ctx - s.n_past - 1, s.max_tokens - s.n_generated - 1)) for s in sequences
                ]
                drafts = proposer.propose(sequences, n_rooms, n_rows - len(parts))
                for part, draft in zip(parts, drafts, strict=True):
                    part.draft = draft
                    n_rows += len(draft.tokens)
        opened.n_rows = n_rows
        opened.draft_ns = perf_counter_ns() - start

    @contextmanager
    def _noise_shown(self, groups: Mapping[Proposer, list[ScheduledSequence]]) -> Iterator[None]:
        """The head knows what the next tokens will be drawn with, for as long as it drafts."""
        drafter = self.memory.drafter
        shown: list[int] = []
        if drafter is None:
            yield
            return
        try:
            for part in chain.from_iterable(groups.values()):
                s = part.sequence
                if s.chain is not None and s.chain.noise is not None:
                    drafter.set_noise(s.chain.noise, s.seq_id)
                    shown.append(s.seq_id)
            yield
        finally:
            for seq_id in shown:
                drafter.set_noise(None, seq_id)

    def _proposer_of(self, s: Sequence) -> Proposer:
        if self._guess is not None and self.memory.drafter is None:
            return self._guess
        if s.draft.mode == "auto" and self._planned is not None:
            return self._planned if s.draft.sources else self._plain
        return self._fixed

    def _head_is_behind(self, s: Sequence) -> bool:
        drafter = self.memory.drafter
        return drafter is not None and drafter.n_past(s.seq_id) != s.n_past

    def _may_wait(self, s: Sequence, n_seqs: int) -> bool:
        """Whether nobody is going to draft for a sequence soon, with so many at once."""
        if self.proposer is not None or s.draft.mode not in ("auto", "off"):
            return False
        return s.draft.mode == "off" or (self._planned is not None and self._planned.planner.may_wait(s.seq_id, n_seqs))

    def verify(self, opened: Step) -> None:
        """The pass of the target."""
        start = perf_counter_ns()
        batch = self._batch(opened)
        if self._has_snapshots and not self.target.can_take_back(batch):
            batch = self._shorten(opened)
        if batch:
            self._forget_rows()
            n_pad = self._n_pad(opened, len(batch))
            opened.n_rows += n_pad
            self.target.decode_parts(batch, n_pad)
            self._n_batches = self.target.n_batches
        opened.verify_ns = perf_counter_ns() - start
        self.opened = opened
        for part in opened.parts:
            s, n = part.sequence, len(part.tokens)
            if n:
                part.path = [0] if n == 1 else list(range(n))
                s.n_past = s.n_own = part.n_past + n
            if part.draft.tokens:
                s.stats.begin_draft(part.draft)
            part.ended = s.n_past < len(s.tokens) or s.chain is None
            s.part = part
            if part.media is not None and s.n_past == part.media.end:
                part.media.forget_rows()
            if s.prompt_logprobs is not None and part.is_prefill:
                self._score(part, s.prompt_logprobs)
        if batch and opened.parts[0].media is None:
            self.prefill_budget.observe(opened.n_part_rows, opened.prefill_budget, opened.verify_ns)

    def _batch(self, opened: Step) -> list[BatchPart]:
        """The rows of a pass, and which of them says what comes behind each part."""
        batch, row = [], 0
        for part in opened.parts:
            s, draft, tokens = part.sequence, part.draft, part.tokens
            if not tokens:
                continue
            s.is_dirty = True
            part.root = row + len(tokens) - 1
            row += len(tokens) + len(draft.tokens)
            is_end = part.n_past + len(tokens) == len(s.tokens)
            logits = "all" if s.logits_all else "last" if is_end else "none"
            part.has_logits = logits != "none"
            if part.media is None:
                batch.append(BatchPart(s.seq_id, part.n_past, tokens, draft.tokens, draft.parents, logits))
            else:
                batch.append(part.media.piece(self.target, s.seq_id, part.n_past, len(tokens), logits))
        opened.n_part_rows = row
        return batch

    def _shorten(self, opened: Step) -> list[BatchPart]:
        """Have drafts that could not be taken back be of one length, which may help, or leave them out."""
        shortest = min(len(part.draft) for part in opened.parts if part.draft.tokens)
        for n in (shortest, 0):
            for part in opened.parts:
                opened.n_rows -= max(0, len(part.draft) - n)
                part.draft = part.draft.first(n)
            batch = self._batch(opened)
            if self.target.can_take_back(batch):
                break
        return batch

    def _n_pad(self, opened: Step, n_parts: int) -> int:
        """Rows that make the pass faster, as far as that is known."""
        if self._planned is None or opened.prefill_budget:
            return 0
        return self._planned.planner.n_pad(opened.n_rows, n_parts)

    def _score(self, part: ScheduledSequence, found: list[TokenLogprob]) -> None:
        """What the rows of a prompt say of the prompt's own tokens."""
        s = part.sequence
        assert s.n_logprobs is not None
        for row, i in enumerate(range(part.n_past + 1, min(part.n_past + len(part.tokens) + 1, s.n_prompt))):
            if i == len(found) + 1:  # else it is read again
                found.append(token_logprob(self.target.logits(part.first_row + row), s.tokens[i], s.n_logprobs))

    def take_argmax_on_device(self, sequences: SequenceOf[Sequence]) -> None:
        """All greedy, on an accelerator: have it take the argmax of each row, so that rows of logits never travel."""
        if not self._can_take_argmax:
            return
        wanted = all(s.chain is not None and s.chain.is_argmax and not s.wants_logits for s in sequences)
        if wanted == self.argmax_on_device:
            return
        try:
            self.target.set_device_argmax(min(N_ROWS_ARGMAX, self.n_batch) if wanted else 0)
        except Eagle3Error:
            self._can_take_argmax = False  # several devices that act as one cannot
            return
        self.argmax_on_device = wanted
        if not wanted:
            self._forget_rows()  # the last logits stayed there

    # accept

    def next(self, s: Sequence) -> int | None:
        """Sample the next row along the draft; None if the round has no more to say."""
        part = s.part
        if part is None or part.ended:
            return None
        node, draft, sampler, target = part.node, part.draft, s.chain, self.memory.target
        if node >= 0:
            part.path.append(node + 1)
            s.n_past += 1
            s.n_own = s.n_past
        assert sampler is not None
        start = perf_counter_ns()
        row = part.row = part.root + node + 1
        token = sampler.draw(target, row, s.tokens)
        if self.on_draw is not None:
            token = self.on_draw(part, token)
        if s.n_logprobs is not None:
            probs = sampler.probs  # of what the samplers left, if they are kept
            s.logprobs.append(
                token_prob(probs, token, s.n_logprobs)
                if probs
                else token_logprob(target.logits(row), token, s.n_logprobs)
            )
        part.sample_ns += perf_counter_ns() - start
        node = part.node = draft.child(node, token) if draft.tokens else -1
        s.stats.judge(draft, len(part.sampled), node)
        part.ended = node < 0
        part.sampled.append(token)
        s.tokens.append(token)
        s.drafted = node >= 0
        return token

    # commit

    def commit(self) -> None:
        """Make target and draft hold what was accepted of the open pass. Does nothing without one."""
        opened = self.opened
        has_rows = self.target.n_batches == self._n_batches
        if not has_rows:
            self._forget_rows()  # somebody has decoded another batch
        if opened is None:
            return
        start = perf_counter_ns()
        if opened.by_hand:
            opened.parts[0].sequence.state = State.IDLE
        # whoever comes back after an interrupt finds some of this done
        kept = [part for part in opened.parts if part.tokens and part.sequence.part is part]
        self.memory.keep(kept, has_rows, [self._may_wait(part.sequence, len(opened.parts)) for part in kept])
        for part in opened.parts:
            s = part.sequence
            if s.part is not part:
                continue
            if part.tokens and has_rows:
                s.rows = part.rows if part.has_logits else []
                if s.n_past == s.n_save:
                    self.memory.save(s)
                s.is_dirty = False
            s.part = None
        self._live = [part.sequence for part in opened.parts]
        self.opened = None
        commit_ns = perf_counter_ns() - start
        self._count(opened, commit_ns)
        self._observe(opened, commit_ns)

    def _count(self, opened: Step, commit_ns: int) -> None:
        """Each sequence's share of the pass, by rows."""
        n_all, verify_ns, draft_ns = max(1, opened.n_part_rows), opened.verify_ns, opened.draft_ns + commit_ns
        for part in opened.parts:
            stats, n = part.sequence.stats, len(part.tokens) + len(part.draft.tokens)
            if part.is_prefill:
                stats.prompt_tokens += n
                stats.prefill_ns += (verify_ns + commit_ns) * n // n_all
            else:
                stats.rounds += 1
                stats.verify_ns += verify_ns * n // n_all
                stats.draft_ns += draft_ns * n // n_all
            stats.sample_ns += part.sample_ns

    def _observe(self, opened: Step, commit_ns: int) -> None:
        """Tell those who draft how it went."""
        proposer = self.proposer or self._planned
        if proposer is None:
            return
        parts = [p for p in opened.parts if p.sampled and not p.is_prefill and p.sequence.draft.mode == "auto"]
        if parts:
            other_ns = commit_ns + sum(part.sample_ns for part in opened.parts)
            proposer.observe(opened, parts, other_ns)


def token_prob(probs: SequenceOf[tuple[int, float]], token: int, n_top: int) -> TokenLogprob:
    """The same of the probabilities that samplers left, the most probable first."""
    p = next((p for other, p in probs if other == token), 1.0)
    return TokenLogprob(token, math.log(p), {other: math.log(p) for other, p in probs[:n_top]})


def token_logprob(logits: npt.NDArray[np.single], token: int, n_top: int) -> TokenLogprob:
    """Log-softmax of a row, of the token and of the n_top most probable ones, in float64."""
    x = logits.astype(np.float64)
    peak = x.max()
    x -= peak + np.log(np.exp(x - peak).sum())
    best = np.argpartition(-x, n_top)[:n_top] if 0 < n_top < len(x) else np.arange(min(n_top, len(x)))
    best = best[np.argsort(-x[best], kind="stable")]
    return TokenLogprob(token, float(x[token]), {int(i): float(x[i]) for i in best})
