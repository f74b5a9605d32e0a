"""The loop: propose, verify, accept, commit, for any number of sequences that join and leave.

Lossless by construction: a sequence's sampler chain sees the target's logits only, once per emitted token and in order.
What is drafted decides how many rows one pass of the target computes, never which token comes out.

A pass holds the rows of all running sequences, each the last token and its draft, and pieces of the prompts that are
being read. `open` makes it, `accept` samples its rows as they are asked for, `commit` settles it; `step` is all three.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._core import BatchPart, Drafter, FeatureTap, Planner, Target
from ..errors import ContextFullError, Eagle3Error
from ..guard import Guard
from .memory import Memory
from .pace import Pace
from .proposer import Fixed, Guess, Plain, Planned, Proposer
from .sampling import Chain, Sampling
from .sequence import DraftSettings, Part, Round, Sequence, State, TokenLogprob
from .text import N_COMPLETE, Text
from .vocab import Vocab

N_ROWS_ARGMAX = 33
"""Rows of one sequence whose argmax a device may have to take at once."""
N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens once more gets a round without a draft."""
_N_WORTH_MOVING = 16
"""Tokens that a sequence must still want before it is moved to another place."""
_N_CELLS_EACH = 16
"""Cells that every running sequence should have left when another one joins."""


@dataclass(frozen=True, slots=True)
class Output:
    """A token as it came, or the end of a sequence that ended without one."""

    sequence: Sequence
    token: int | None
    text: str
    """What is new of the text: whole characters, nothing that a stop string may still take back."""


class Engine:
    """Generates for sequences that share a target, a draft and their passes. For one thread at a time.

    `add` and `cancel` may be called from any thread and at any time; everything else raises BusyError if two threads
    meet. An error belongs to its sequence; only a failed pass of the target concerns all, and they may go on after it.
    """

    def __init__(
        self,
        target: Target,
        vocab: Vocab,
        *,
        n_batch: int,
        drafter: Drafter | None = None,
        tap: FeatureTap | None = None,
        draft: DraftSettings | None = None,
        draft_model: Callable[..., object] | None = None,
        n_prompt_rows: int | None = None,
        n_host_bytes: int = 0,
        n_rs_seq: int = 0,
        before_pass: Callable[[], None] = lambda: None,
        log: Callable[[str], None] = lambda text: None,
    ):
        """Make an engine on an empty context.

        Args:
            target: the context; its n_seq is how many sequences run at once.
            vocab: the target's vocabulary.
            n_batch: rows of a pass.
            drafter: the head, for as many sequences; None drafts nothing.
            tap: what reads the target's hidden states.
            draft: what is drafted for sequences that do not say it.
            draft_model: a `llama_cpp.LlamaDraftModel`, in place of a drafter.
            n_prompt_rows: rows of a prompt in a pass in which others generate; None = what takes as long again as
                their rows alone.
            n_host_bytes: host memory for prefixes that fall out of the cache.
            n_rs_seq: snapshots that a recurrent target keeps of each sequence.
            before_pass: called before the target or the draft computes; it may raise.
            log: told what users should know.
        """
        self.target, self.vocab = target, vocab
        self.n_ctx, self.n_batch = target.n_ctx, n_batch
        """Positions of a sequence, and rows of a pass."""
        self.memory = Memory(target, drafter, tap, n_host_bytes, log)
        self.draft = draft or DraftSettings()
        self.pace = Pace(n_prompt_rows)
        self.on_draw: Callable[[Part, int], int] | None = None
        """Hook for experiments: (part, token drawn) -> the token to go on with. None: the one that was drawn."""
        self._n_rs_seq = n_rs_seq
        self._before_pass = before_pass
        self._plain = Plain()
        self._guess = None if draft_model is None else Guess(draft_model)
        self._fixed: Proposer = self._plain
        self._planned: Planned | None = None
        self._proposer: Proposer | None = None
        self._guard = Guard(type(self).__name__)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._round: Round | None = None
        self._live: list[Sequence] = []  # whose row may still be that of the last decode
        self._outputs: list[Output] = []
        self._can_replay = target.rollback_kind == "checkpoint"
        self.argmax_on_device = False
        """Whether the target's device takes the argmax of each row, so that rows of logits never travel."""
        self._can_take_argmax = target.logits_are_remote and not (tap is not None and tap.needs_all_outputs)
        self.set_drafter(drafter)

    # what it is made of

    @property
    def drafter(self) -> Drafter | None:
        """The head; None without one."""
        return self.memory.drafter

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with another head from now on; it has seen nothing yet, and the planner that drove the old one goes."""
        self.memory.drafter = drafter
        self._fixed = self._plain if drafter is None else Fixed(drafter, self.target.n_leaves_max)
        self._planned = None

    @property
    def planner(self) -> Planner | None:
        """What decides in mode "auto"; None: chains of a few tokens are drafted."""
        return None if self._planned is None else self._planned.planner

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        self._planned = None if planner is None else Planned(planner)

    @property
    def proposer(self) -> Proposer | None:
        """A source of drafts in place of all others; None: those that the sequences' settings name."""
        return self._proposer

    @proposer.setter
    def proposer(self, proposer: Proposer | None) -> None:
        self._proposer = proposer

    @property
    def opened(self) -> Round | None:
        """The pass that is open."""
        return self._round

    @property
    def n_running(self) -> int:
        """Sequences that have a place."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._running or self._waiting)

    # sequences

    def add(
        self,
        tokens: SequenceOf[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: SequenceOf[str] = (),
        draft: DraftSettings | None = None,
        logprobs: int | None = None,
    ) -> Sequence:
        """Have tokens continued. From any thread.

        Args:
            tokens: the prompt.
            sampling: how tokens are drawn.
            max_tokens: at most; None = what the context holds.
            stop: strings that end the text, and are cut off.
            draft: what is drafted; None = the engine's settings.
            logprobs: keep the log-probability of each token, and those of so many of the most probable ones.

        Returns:
            The sequence; look at it between two steps.

        Raises:
            ValueError: no tokens, or the sampler cannot be built.
            ContextFullError: the prompt has no room in the context.
        """
        check_prompt(tokens, self.vocab.n_tokens, self.n_ctx)
        draft = draft or self.draft
        self.check_draft(draft)
        n_left = self.n_ctx - len(tokens)
        sequence = Sequence(
            tokens,
            Chain(sampling or Sampling(), self.vocab),
            max_tokens=n_left if max_tokens is None else max_tokens,
            draft=draft,
            text=Text(stop),
            logprobs=logprobs,
        )
        sequence.n_save = self.n_save(len(tokens))
        self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence with the next step, wherever it is; one that has ended stays as it is. From any thread."""
        sequence.is_cancelled = True

    def check_draft(self, draft: DraftSettings) -> None:
        """Raise ValueError for a draft that the target cannot take back."""
        if self.drafter is not None and self.target.rollback_kind == "snapshots" and draft.depth > self._n_rs_seq:
            raise ValueError(
                f"a draft of {draft.depth} tokens is longer than the target's snapshots allow: it keeps "
                f"{self._n_rs_seq} per sequence. Draft less, or load the model with a larger draft_n_max or "
                "draft_tree_depth"
            )

    # the loop

    def step(self) -> list[Output]:
        """One pass for all running sequences; returns what came of it.

        Raises:
            Eagle3Error: the pass failed; the sequences are where they were before it.
        """
        with self._guard:
            self._outputs = []
            self._commit()
            self._end_cancelled()
            opened = self._open()
            for part in opened.parts if opened is not None else ():
                sequence = part.sequence
                while not sequence.finish_reason and (token := self._next_or_fail(sequence)) is not None:
                    self._advance(sequence, token)
            self._commit()
            self._retire()
            return self._outputs

    def open(self, only: Sequence | None = None) -> Round | None:
        """Begin a pass: draft and verify. None if nothing is to be done.

        only: for this sequence, which was not added but is `held`; else for all that run.
        """
        with self._guard:
            return self._open(only)

    def accept(self, sequence: Sequence) -> Iterator[int]:
        """Sample a sequence's rows of the open pass, one by one, for as long as its draft says the same."""
        while True:
            with self._guard:
                token = self._next(sequence)
            if token is None:
                return
            yield token

    def commit(self) -> None:
        """Make target and draft hold what was accepted of the open pass. Does nothing without one."""
        with self._guard:
            self._commit()

    def n_save(self, n_prompt: int) -> int:
        """Position behind which a prompt, or a longer one, can go on again where memory cannot be trimmed anywhere."""
        return n_prompt if self.target.rollback_kind == "trim" else n_prompt - 1

    # a sequence that somebody drives by hand

    def hold(self, sequence: Sequence, seq_id: int) -> None:
        """Give a place to a sequence that `open(sequence)` will run; others may take it while nothing runs."""
        with self._guard:
            self._commit()
            if sequence.seq_id < 0:
                self._hold(sequence, seq_id)

    def _hold(self, sequence: Sequence, seq_id: int) -> None:
        user = self.memory.places[seq_id].user
        if user is not None and user.state is State.RUNNING:
            self._put_aside(user)
        sequence.state = State.HELD
        self.memory.place(sequence, seq_id)

    def resume(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Have a held sequence go on with other tokens, as far as they begin alike; the rest of them is pending."""
        with self._guard:
            self._commit()
            if sequence.seq_id < 0:
                sequence.tokens = tokens
                self._hold(sequence, seq_id)
            else:
                self.memory.settle(sequence)
                self.memory.resume(sequence, tokens)
            sequence.n_prompt = len(tokens)
            sequence.n_save = self.n_save(len(tokens))
            self._begin_text(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Have target and draft hold the first n_past tokens of a held sequence, whatever happened to them meanwhile."""
        with self._guard:
            self._commit()
            if sequence.seq_id >= 0:
                self.memory.settle(sequence)

    def adopt(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Somebody has filled the empty context anew: a sequence holds these tokens there, and nothing else is there."""
        with self._guard:
            if sequence.seq_id < 0:
                sequence.state = State.HELD
                self.memory.place(sequence, seq_id)
            self.memory.adopt(sequence, tokens)

    def decoded_elsewhere(self, sequence: Sequence, n_past: int) -> None:
        """Somebody else has decoded into a held sequence, up to n_past; the last row of that says what follows."""
        with self._guard:
            self._commit()
            sequence.n_past, sequence.rows = n_past, [-1]
            self._live.append(sequence)

    def go_back(self, sequence: Sequence, n_past: int) -> None:
        """Keep exactly the first tokens of a held sequence; what cannot be kept of them is pending again."""
        with self._guard:
            self._commit()
            self.memory.settle(sequence)
            self.memory.go_back(sequence, n_past)

    def clear(self) -> None:
        """Forget all that no running sequence holds."""
        with self._guard:
            self._commit()
            self.memory.clear()

    def vacate(self) -> None:
        """Put all running sequences aside and forget the rest: somebody is about to fill the context anew."""
        with self._guard:
            self._commit()
            for sequence in reversed(self._running.copy()):
                self._put_aside(sequence)
            self.memory.clear()

    def drop(self, sequences: SequenceOf[Sequence]) -> None:
        """End sequences now, as `cancel` does with the next step."""
        with self._guard:
            self._outputs = []
            for sequence in sequences:
                sequence.is_cancelled = True
            self._commit()
            self._end_cancelled()

    def close(self) -> None:
        """The context is about to be freed: every later call raises."""
        with self._guard:
            self._guard.closed = True
            self._round = None
            self.set_drafter(None)
            self.target.close()

    def _begin_text(self, sequence: Sequence) -> None:
        if self._planned is not None:
            self._planned.planner.reset(sequence.seq_id)

    # who runs

    def _end_cancelled(self) -> None:
        for sequence in [s for s in list(self._waiting) if s.is_cancelled]:  # others may be added meanwhile
            self._waiting.remove(sequence)
            self._end(sequence, "cancelled")
            self._finish(sequence)
        for sequence in self._running:
            if sequence.is_cancelled:
                self._end(sequence, "cancelled")
        self._retire()

    def _admit(self) -> None:
        """Give places to those that wait, in their order, for as long as there is room for what they hold."""
        while self._waiting and len(self._running) < self.target.n_seq:
            sequence = self._waiting[0]
            n_held = sum(len(s.tokens) for s in self._running)
            n_spare = _N_CELLS_EACH * (1 + len(self._running))
            if self.target.is_pooled and self._running and n_held + len(sequence.tokens) + n_spare > self.n_ctx:
                return
            while not self.memory.place(sequence):
                if not self.memory.make_room():
                    return
            self._waiting.popleft()
            sequence.state = State.RUNNING
            self._running.append(sequence)
            self._begin_text(sequence)

    def _close_ranks(self) -> None:
        """Without a pool llama.cpp cuts a batch where the ids of its sequences do not follow each other: move the last."""
        if self.target.is_pooled or not self._running:
            return
        while True:
            last = max(self._running, key=lambda s: s.seq_id)
            taken = {s.seq_id for s in self._running}
            hole = next((i for i in range(last.seq_id) if i not in taken), None)
            if hole is None or last.max_tokens - (len(last.tokens) - last.n_prompt) < _N_WORTH_MOVING:
                return
            self.memory.put_aside(last)
            self.memory.place(last, hole)
            self._begin_text(last)

    def _put_aside(self, sequence: Sequence) -> None:
        """Take a running sequence's place away; it comes back by itself, before all that were never there."""
        self.memory.put_aside(sequence)
        self._running.remove(sequence)
        sequence.state = State.WAITING
        self._waiting.appendleft(sequence)

    def _end(self, sequence: Sequence, reason: Literal["stop", "length", "cancelled", "error"]) -> None:
        sequence.finish_reason = reason
        text = "" if sequence.text is None else sequence.text.release(at_end=True)
        self._outputs.append(Output(sequence, None, text))

    def _fail(self, sequence: Sequence, error: BaseException) -> None:
        sequence.error = error
        self._end(sequence, "error")

    def _retire(self) -> None:
        """Free the places of those that are done."""
        if any(s.finish_reason for s in self._running):
            done = [s for s in self._running if s.finish_reason]
            self._running = [s for s in self._running if not s.finish_reason]
            for sequence in done:
                self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.memory.release(sequence)
        sequence.state = State.DONE
        sequence.saved = sequence.chain = None

    # open

    def _open(self, only: Sequence | None = None) -> Round | None:
        self._commit()
        self._before_pass()
        if only is None:
            self._admit()
            self._close_ranks()
        else:
            only.state = State.RUNNING
        with_drafts = True
        while True:
            sequences = self._running if only is None else [only]
            for sequence in sequences:
                if sequence.is_dirty:
                    self.memory.settle(sequence)
            self._take_argmax_on_device(sequences)
            opened = self._plan(sequences, by_hand=only is not None)
            if opened is None:
                return None
            if with_drafts:
                self._propose(opened)
            try:
                self._verify(opened)
            except ContextFullError as e:
                if self.memory.make_room():
                    continue
                if any(part.draft.tokens for part in opened.parts):
                    with_drafts = False
                elif only is not None:
                    raise
                elif len(sequences) > 1:
                    self._put_aside(sequences[-1])
                else:
                    self._fail(sequences[0], e)
                    return None
            else:
                return opened

    def _plan(self, sequences: SequenceOf[Sequence], by_hand: bool) -> Round | None:
        """Who takes part in the pass: rows of those that generate first, then pieces of prompts."""
        parts: list[Part] = []
        reading = []
        n_room = self.n_batch
        for s in sequences:
            if s.finish_reason:
                continue
            if s.n_past == len(s.tokens):
                if s.rows:
                    parts.append(Part(s, s.n_past, [], True, root=s.rows[-1]))
                    continue
                self.memory.go_back(s, s.n_past - 1, same_next=True)
            if len(s.tokens) > self.n_ctx:
                self._full(s, by_hand)
            elif s.n_past >= s.n_prompt and len(s.tokens) == s.n_past + 1:
                n_room -= 1 + (self.target.n_replay(s.seq_id) if self._can_replay else 0)
                parts.append(Part(s, s.n_past, s.tokens[-1:], False))
            else:
                reading.append(s)
        n_prompt = min(n_room, self.pace.n_rows) if parts and reading else n_room
        n_prompt_rows = 0
        for s in reading:
            n = n_prompt - n_prompt_rows - (self.target.n_replay(s.seq_id) if self._can_replay else 0)
            if n <= 0:
                break
            n_end = min(len(s.tokens), s.n_past + n)
            if s.n_past < s.n_save < n_end:
                n_end = s.n_save
            parts.append(Part(s, s.n_past, s.tokens[s.n_past : n_end], True))
            n_prompt_rows += n_end - s.n_past
        parts.sort(key=lambda part: part.sequence.seq_id)
        return Round(parts, by_hand, n_prompt_rows=n_prompt_rows) if parts else None

    def _full(self, s: Sequence, by_hand: bool) -> None:
        if by_hand:
            raise ContextFullError(
                f"{s.n_pending} tokens do not fit behind {s.n_past}: the context holds {self.n_ctx}. Use a larger n_ctx."
            )
        self._end(s, "length")

    def _propose(self, opened: Round) -> None:
        """Draft for those that can be drafted for."""
        groups: dict[Proposer, list[Part]] = {}
        n_rows = n_drafting = 0
        for part in opened.parts:
            s = part.sequence
            n_rows += len(part.tokens)
            if self._can_replay:
                n_replay = self.target.n_replay(s.seq_id)
                n_rows += n_replay
                if n_replay > N_REPLAY_MAX:
                    continue
            if part.reads or s.draft.mode == "off":
                continue
            proposer = self._proposer or self._proposer_of(s)
            if proposer is self._plain or (proposer is not self._guess and self._head_is_behind(s)):
                continue
            groups.setdefault(proposer, []).append(part)
            n_drafting += 1
        if not n_drafting:
            return
        start = perf_counter_ns()
        n_each = (self.n_batch - n_rows) // n_drafting
        if self.argmax_on_device:
            n_each = min(n_each, N_ROWS_ARGMAX - 1)
        if self.target.rollback_kind == "snapshots":
            n_each = min(n_each, self._n_rs_seq)
        for proposer, parts in groups.items():
            sequences = [part.sequence for part in parts]
            n_rooms = [
                max(0, min(n_each, self.n_ctx - s.n_past - 1, s.max_tokens - (len(s.tokens) - s.n_prompt) - 1))
                for s in sequences
            ]
            drafts = proposer.propose(sequences, n_rooms, n_rows - len(parts))
            for part, draft in zip(parts, drafts, strict=True):
                part.draft = draft
                n_rows += len(draft.tokens)
        opened.draft_ns = perf_counter_ns() - start

    def _proposer_of(self, s: Sequence) -> Proposer:
        if self.memory.drafter is None:
            return self._guess or self._plain
        if s.draft.mode == "auto" and self._planned is not None:
            return self._planned
        return self._fixed

    def _head_is_behind(self, s: Sequence) -> bool:
        drafter = self.memory.drafter
        return drafter is not None and drafter.n_past(s.seq_id) != s.n_past

    def _verify(self, opened: Round) -> None:
        """The pass of the target."""
        start = perf_counter_ns()
        batch, n_rows = [], 0
        for part in opened.parts:
            s, draft, tokens = part.sequence, part.draft.tokens, part.tokens
            if not tokens:
                continue
            s.is_dirty = True
            part.root = n_rows + len(tokens) - 1
            n_rows += len(tokens) + len(draft)
            if draft:
                parents = [] if part.draft.is_chain else [-1, *(parent + 1 for parent in part.draft.parents)]
                batch.append(BatchPart(s.seq_id, part.n_past, tokens + draft, parents, "all", True))
            else:
                is_end = part.n_past + len(tokens) == len(s.tokens)
                logits = "all" if s.logits_all else "last" if is_end else "none"
                batch.append(BatchPart(s.seq_id, part.n_past, tokens, [], logits))
        if batch:
            for s in self._live:
                s.rows = []
            opened.n_rows = n_rows + self._n_replay(opened)
            self.target.decode_parts(batch)
        opened.verify_ns = perf_counter_ns() - start
        self._round = opened
        for part in opened.parts:
            s, n = part.sequence, len(part.tokens)
            part.path = list(range(n))
            part.ended = part.n_past + n < len(s.tokens) or s.chain is None
            s.n_past = part.n_past + n
            if n:
                s.n_own = s.n_past
            self._count(opened, part)
            s.part = part
        if batch:
            self.pace.observe(n_rows, opened.n_prompt_rows, opened.verify_ns)

    def _n_replay(self, opened: Round) -> int:
        if not self._can_replay:
            return 0
        return sum(self.target.n_replay(part.sequence.seq_id) for part in opened.parts)

    def _count(self, opened: Round, part: Part) -> None:
        """A sequence's share of the pass goes by its rows."""
        stats, n_rows = part.sequence.stats, part.n_rows
        if n_rows == 0:
            return
        share = n_rows / sum(p.n_rows for p in opened.parts) if len(opened.parts) > 1 else 1.0
        if part.reads:
            stats.prompt_tokens += n_rows
            stats.prefill_ns += int(share * opened.verify_ns)
            return
        stats.rounds += 1
        stats.verify_ns += int(share * opened.verify_ns)
        stats.draft_ns += int(share * opened.draft_ns)
        if part.draft.tokens:
            stats.drafts += 1
            stats.extend_positions(part.draft.depth)

    def _take_argmax_on_device(self, sequences: SequenceOf[Sequence]) -> None:
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
            for s in self._live:
                s.rows = []  # the last logits stayed there

    # accept

    def _next(self, s: Sequence) -> int | None:
        """Sample the next row along the draft; None if the round has no more to say."""
        part = s.part
        if part is None or part.ended:
            return None
        if part.node >= 0:
            part.path.append(part.node + 1)
            s.n_past += 1
            s.n_own = s.n_past
        chain = s.chain
        assert chain is not None
        start = perf_counter_ns()
        row = part.row = part.root + part.node + 1
        token = chain.draw(self.target, row, s.tokens)
        if self.on_draw is not None:
            token = self.on_draw(part, token)
        if s.n_logprobs is not None:
            s.logprobs.append(token_logprob(self.target.logits(row), token, s.n_logprobs))
        draft = part.draft
        node = draft.child(part.node, token)
        sample_ns = perf_counter_ns() - start
        part.sample_ns += sample_ns
        s.stats.sample_ns += sample_ns
        s.stats.judge(len(part.said), node >= 0, len(draft.tokens))
        part.node = node
        part.ended = node < 0
        part.said.append(token)
        s.tokens.append(token)
        s.drafted = node >= 0
        return token

    def _next_or_fail(self, s: Sequence) -> int | None:
        """The same; an error ends the sequence alone."""
        try:
            return self._next(s)
        except BaseException as e:
            self._fail(s, e)
            if isinstance(e, Exception):
                return None
            raise  # an interrupt is for all, but this sequence's sampler may have drawn a token that nobody got

    def _advance(self, s: Sequence, token: int) -> None:
        """A token came: go on, or end the text."""
        text = s.text
        assert text is not None
        if token in self.vocab.eog:
            s.tokens.pop()
            s.finish_reason = "stop"
        else:
            piece = self.vocab.piece(token)
            n = len(s.tokens) - s.n_prompt
            if text.add(piece, may_wait=n < s.max_tokens + N_COMPLETE):
                if text.find_stop(len(piece)):
                    s.finish_reason = "stop"
                elif n >= s.max_tokens:
                    s.finish_reason = "length"
        self._outputs.append(Output(s, token, text.release(at_end=bool(s.finish_reason))))

    # commit

    def _commit(self) -> None:
        opened = self._round
        if opened is None:
            return
        start = perf_counter_ns()
        # whoever comes back after an interrupt finds some of this done
        for part in opened.parts:
            s = part.sequence
            if s.part is not part:
                continue
            if part.tokens:
                self.memory.keep(part)
                s.rows = [part.first_row + row for row in part.path]
                if s.n_past == s.n_save:
                    self.memory.save(s)
                s.is_dirty = False
            if opened.by_hand:
                s.state = State.HELD
            s.part = None
        self._live = [part.sequence for part in opened.parts]
        self._round = None
        commit_ns = perf_counter_ns() - start
        n_rows = sum(part.n_rows for part in opened.parts)
        for part in opened.parts:
            if part.tokens:
                share = int(commit_ns * part.n_rows / n_rows)
                if part.reads:
                    part.sequence.stats.prefill_ns += share
                else:
                    part.sequence.stats.draft_ns += share
        self._observe(opened, commit_ns)

    def _observe(self, opened: Round, commit_ns: int) -> None:
        """Tell those who draft how it went."""
        proposer = self._proposer or self._planned
        if proposer is None:
            return
        parts = [p for p in opened.parts if p.said and not p.reads and p.sequence.draft.mode == "auto"]
        if parts:
            other_ns = commit_ns + sum(part.sample_ns for part in opened.parts)
            proposer.observe(opened, parts, other_ns)


def check_prompt(tokens: SequenceOf[int], n_vocab: int, n_ctx: int) -> None:
    """Raise what `Engine.add` raises for a prompt that cannot be read."""
    if not tokens:
        raise ValueError("expected at least one token, found none")
    if len(tokens) > n_ctx:
        raise ContextFullError(f"{len(tokens)} tokens do not fit: the context holds {n_ctx}. Use a larger n_ctx.")
    if min(tokens) < 0 or max(tokens) >= n_vocab:
        raise ValueError(f"expected tokens in 0..{n_vocab - 1}, found {min(tokens)} to {max(tokens)}")


def token_logprob(logits: npt.NDArray[np.single], token: int, n_top: int) -> TokenLogprob:
    """Log-softmax of a row, of the token and of the n_top most probable ones, in float64."""
    x = logits.astype(np.float64)
    peak = x.max()
    x -= peak + np.log(np.exp(x - peak).sum())
    best = np.argpartition(-x, n_top)[:n_top] if 0 < n_top < len(x) else np.arange(min(n_top, len(x)))
    best = best[np.argsort(-x[best], kind="stable")]
    return TokenLogprob(token, float(x[token]), {int(i): float(x[i]) for i in best})
