"""The scheduler: which sequences have a slot, and which of their tokens the next step evaluates.

`schedule` admits waiting sequences in the order of their arrival, compacts the slots, and fills a batch: the last token
of each sequence that decodes, then chunks of prompts within the prefill budget. A step for which the context has no
room is scheduled again by `reschedule`, which evicts a cached prefix, gives up the drafts, or preempts the youngest
sequence.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from operator import attrgetter

from ..errors import ContextFullError
from .memory import N_MIN_COPIED, Memory
from .prefill_budget import PrefillBudget
from .prefill_turns import PrefillTurns
from .request import Shift
from .sequence import Outputs, ScheduledSequence, Sequence, State, Step
from .slots import Slots
from .verifier import Verifier

_log = logging.getLogger("llama_cpp_eagle3")
_N_WORTH_MOVING = 16
"""A sequence is moved to another slot only if it may still generate so many tokens."""
_N_CELLS_EACH = 16
"""Free cells that each running sequence should have when another one joins."""


class Scheduler:
    """The sequences of an engine that have not ended. Only `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        slots: Slots,
        verifier: Verifier,
        outputs: Outputs,
        prefill_budget: PrefillBudget,
        n_batch: int,
        on_run: Callable[[Sequence], None],
        on_end: Callable[[Sequence], None],
    ):
        """n_batch: rows of a step. on_run: called with each sequence that gets a slot. on_end: with each that ends."""
        self.slots, self.verifier, self.outputs = slots, verifier, outputs
        self.memory: Memory = slots.memory
        self.prefill_budget, self.n_batch = prefill_budget, n_batch
        self.turns = PrefillTurns()
        self.n_ctx = slots.memory.target.n_ctx
        # a lone prompt is cut where a stopwatch says so only if its rows have the same bits wherever it is cut
        self._may_vary = not any(why for _, why, _ in self.memory.target.kernel_sides)
        self.waiting: deque[Sequence] = deque()
        """Sequences without a slot, the next one first."""
        self.running: list[Sequence] = []
        self._on_run, self._on_end = on_run, on_end
        self._has_cancelled = False
        self._is_token_turn = False  # whether the next step is one of tokens, if there are images too
        self._has_shifted = False

    # queues

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for a slot."""
        self.waiting.append(sequence)
        if sequence.is_cancelled:  # before it was submitted
            self._has_cancelled = True

    def cancel(self, sequence: Sequence) -> None:
        """Mark a sequence, waiting or running, for the next `end_cancelled`."""
        sequence.is_cancelled = self._has_cancelled = True

    def end_cancelled(self) -> None:
        """End the sequences that were cancelled."""
        if not self._has_cancelled:
            return
        try:
            self._has_cancelled = False  # first, as others may be cancelled meanwhile
            for sequence in [s for s in list(self.waiting) if s.is_cancelled]:
                self.outputs.end(sequence, "cancelled")
                self.waiting.remove(sequence)
                self._finish(sequence)
            for sequence in self.running:
                if sequence.is_cancelled and not sequence.result.finish_reason:
                    self.outputs.end(sequence, "cancelled")
            self.retire()
        except BaseException:
            self._has_cancelled = True
            raise

    def retire(self) -> None:
        """Free the slots of sequences that have ended."""
        done = [s for s in self.running if s.result.finish_reason]
        if done:
            self.running = [s for s in self.running if not s.result.finish_reason]
            for sequence in done:
                self._finish(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's slot away. It is the first to get one again, and continues where it was."""
        self.slots.preempt(sequence)
        self.running.remove(sequence)
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)
        self.slots.clear_dirty()

    def resume(self, sequence: Sequence) -> None:
        """Run a paused sequence in its slot, or in the slot that its request names, from which others are preempted."""
        if sequence.seq_id >= 0:
            if sequence.n_past < sequence.n_prompt:  # a new call: other code may have used the context before it
                self.memory.settle(sequence)
            sequence.state = State.RUNNING
            self.running.insert(0, sequence)
            return
        for other in self.running:
            if other.seq_id == sequence.request.seq_id:
                self.preempt(other)
                break
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Do not run a sequence until `resume`; one that has ended does not change."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
            self.slots.forget(sequence)
            sequence.n_past = 0
        else:
            return
        sequence.state = State.PAUSED

    def preempt_all(self) -> None:
        """Take the slots of all running sequences away."""
        for sequence in reversed(self.running.copy()):
            self.preempt(sequence)

    def clear_cells(self) -> None:
        """Preempt all sequences and clear all cells, as masked cells are multiplied by zero, and NaN stays NaN."""
        self.preempt_all()
        self.slots.clear_cells()

    def _admit(self) -> None:
        """Give slots to waiting sequences.

        Two kinds of sequences let others pass: one whose slot is taken, and one whose beginning another sequence is
        evaluating now.
        """
        target = self.memory.target
        self.slots.cache.place_paused()
        while len(self.running) < target.n_seq:
            taken = {s.seq_id for s in self.running}
            free = (s for s in list(self.waiting) if s.request.seq_id not in taken)
            blocks = not self.running
            sequence = next((s for s in free if self._is_ready(s, blocks)), None)
            if sequence is None:
                return
            n_held = sum(len(s.tokens) for s in self.running)
            n_spare = _N_CELLS_EACH * (1 + len(self.running))
            if target.is_pooled and self.running and n_held + len(sequence.tokens) + n_spare > target.n_ctx:
                return
            try:
                while not self.slots.assign(sequence, sequence.request.seq_id):
                    if not self.slots.evict():
                        return
            except Exception as e:
                self._fail_waiting(sequence, e)
                continue
            self.waiting.remove(sequence)
            self._run(sequence, len(self.running))

    def _is_ready(self, sequence: Sequence, blocks: bool) -> bool:
        """Whether a waiting sequence's prefix is in memory. Files are read while others run; else this waits."""
        cache = self.slots.cache
        try:
            ahead = cache.ahead_of(sequence, self.running)
            if ahead is None:
                return cache.fetch(sequence, blocks)
            other, n = ahead
            other.saves.share(n, other.n_prompt, N_MIN_COPIED)
            return False
        except Exception as e:
            self._fail_waiting(sequence, e)
            return False

    def _fail_waiting(self, sequence: Sequence, error: Exception) -> None:
        """End a waiting sequence that could get no slot. The others go on."""
        _log.error("a request could get no slot, and ends: %s", error)
        self.waiting.remove(sequence)
        sequence.is_dirty = True  # it is not known what the slot holds, if it has one
        self.outputs.fail(sequence, error)
        self._finish(sequence)

    def _compact_slots(self) -> None:
        """Move the last sequence into a free slot: without a shared cache llama.cpp splits a batch at free slots."""
        while True:
            taken = sorted(s.seq_id for s in self.running)
            gaps = [i for i in range(taken[0], taken[-1]) if i not in taken]
            if not gaps:
                return
            last = max(self.running, key=lambda s: s.seq_id)
            gap = self.slots.emptiest(gaps)
            n_left = last.max_tokens - last.n_generated
            if n_left < _N_WORTH_MOVING or last.request.seq_id is not None:
                return
            i = self.running.index(last)
            self.preempt(last)
            try:
                if not self.slots.assign(last, gap):
                    return
            except Exception as e:
                self._fail_waiting(last, e)
                return
            self.waiting.popleft()
            self._run(last, i)

    def _run(self, sequence: Sequence, i: int) -> None:
        """Run a waiting sequence, which has got a slot."""
        sequence.state = State.RUNNING
        if sequence.n_cached < 0:
            sequence.n_cached = sequence.n_past
        self.running.insert(i, sequence)
        self._on_run(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.slots.release(sequence)
        self.slots.forget(sequence)
        sequence.state = State.DONE
        sequence.chain = None
        self._on_end(sequence)

    # steps

    def schedule(self) -> Step | None:
        """Choose what the next step evaluates; None if there is nothing."""
        self.slots.cache.sync()
        if self.waiting:
            self._admit()
        if self.slots.has_bad_cells:
            self.clear_cells()
            self._admit()
        if len(self.running) > 1 and not self.memory.target.is_pooled:
            self._compact_slots()
        return self._next_step()

    def reschedule(self, step: Step, error: ContextFullError) -> Step | None:
        """Make room in the context and schedule a step again that found none; None if nothing is left to run."""
        may_draft = step.may_draft
        if not self.slots.evict():
            if any(scheduled.draft.tokens for scheduled in step.scheduled):
                may_draft = False
            elif len(step.candidates) > 1:
                self.preempt(step.candidates[-1])
            else:
                self.outputs.fail(step.candidates[0], error)
                return None
        return self._next_step(may_draft)

    def n_drafts_max(self, step: Step, n_sequences: int) -> int:
        """Tokens that a step has room to verify for each of so many sequences."""
        n = min((self.n_batch - step.n_rows) // n_sequences, self.verifier.n_drafts_max)
        return min(n, self.prefill_budget.n_drafts(n_sequences)) if step.n_prefill_rows else n

    def _next_step(self, may_draft: bool = True) -> Step | None:
        while True:
            self._settle()
            candidates = [s for s in self.running if not s.result.finish_reason]
            self.verifier.choose_argmax(candidates)
            for s in candidates:
                if len(s.tokens) > self.n_ctx:
                    self._end_or_shift(s)
                elif s.n_past == len(s.tokens) and not s.rows:
                    self.memory.go_back(s, s.n_past - 1, same_next=True)
                if s.n_past < s.n_prompt and s.lacks_media and not s.result.finish_reason:
                    self.outputs.fail(s, _no_media())
            candidates = [s for s in candidates if not s.result.finish_reason]
            step = self._resample(candidates) or self._fill_batch(candidates)
            if step is None:
                return None
            media = step.scheduled[0].media
            if media is not None:
                try:
                    media.encode()
                except Exception as e:
                    self.outputs.fail(step.scheduled[0].sequence, e)
                    continue
            step.candidates, step.may_draft = candidates, may_draft
            return step

    def _resample(self, sequences: SequenceOf[Sequence]) -> Step | None:
        """A step that only samples from rows of the last one, before the next batch overwrites them."""
        again = [
            ScheduledSequence(s, s.n_past, [], is_prefill=True, root=s.rows[-1])
            for s in sequences
            if s.n_past == len(s.tokens)
        ]
        return Step(again) if again else None

    def _fill_batch(self, sequences: SequenceOf[Sequence]) -> Step | None:
        """Fill a batch: first the sequences that decode, then chunks of prompts."""
        scheduled: list[ScheduledSequence] = []
        prefills: list[Sequence] = []
        images: list[Sequence] = []
        n_room = self.n_batch
        is_crowded = False
        for s in sequences:
            if s.n_past < s.n_prompt or len(s.tokens) > s.n_past + 1:
                (images if s.tokens[s.n_past] < 0 else prefills).append(s)
                continue
            n = 1 + self.memory.n_replay(s)
            if n > n_room:
                is_crowded = True
                continue
            n_room -= n
            scheduled.append(ScheduledSequence(s, s.n_past, s.tokens[-1:], is_prefill=False))
        # until some sequence has sampled its second token, prefill may use the whole batch: prompts start together
        is_decoding = any(len(x.sequence.tokens) > x.sequence.n_prompt + 1 for x in scheduled)
        read = self._read_prompts(prefills, n_room, is_decoding) if prefills else []
        scheduled += read
        n_prefill_rows = sum(len(x.tokens) for x in read)
        n_room -= sum(self.memory.n_replay(x.sequence) + len(x.tokens) for x in read)
        if images and not (scheduled and self._is_token_turn):
            self._is_token_turn = True
            return self._image_step(images[0])
        self._is_token_turn = False
        if not scheduled:
            return None
        if len(scheduled) > 1:
            scheduled.sort(key=attrgetter("sequence.seq_id"))
        # a full batch has no drafts, so that no tokens must be evaluated again and the next one has room for all
        n_rows = self.n_batch if is_crowded else self.n_batch - n_room
        return Step(scheduled, n_rows, n_prefill_rows)

    def _read_prompts(self, prompts: SequenceOf[Sequence], n_room: int, is_decoding: bool) -> list[ScheduledSequence]:
        """Chunks of prompts for a step that has room for n_room rows."""
        budget, target = self.prefill_budget, self.memory.target
        may_wait = len(prompts) > 1 or (self._may_vary and target.n_seq > 1)
        n_max = budget.n_rows if is_decoding else budget.n_rows_alone(target.n_ubatch, self.n_batch, may_wait=may_wait)
        ordered = self.turns.order(prompts, n_max)
        read: list[ScheduledSequence] = []
        for s in ordered:
            n_replay = self.memory.n_replay(s)
            n = min(n_room - n_replay, n_max)
            if n <= 0:
                break
            chunk = s.next_chunk(n)
            if read and ordered[0] is not prompts[0] and s.n_past + len(chunk) < len(s.tokens):
                continue  # prompts that pass the oldest wait for no piece of another
            read.append(ScheduledSequence(s, s.n_past, chunk, is_prefill=True))
            n_max -= len(chunk)
            n_room -= n_replay + len(chunk)
        self.turns.count(prompts[0], read)
        return read

    def _image_step(self, s: Sequence) -> Step:
        """A step for rows of one image: a batch of llama.cpp holds either tokens or embeddings."""
        media = s.next_media()
        assert media is not None
        n = min(media.end - s.n_past, self.n_batch)
        chunk = s.tokens[s.n_past : s.n_past + n]
        return Step([ScheduledSequence(s, s.n_past, chunk, is_prefill=True, media=media)], n, n)

    def _settle(self) -> None:
        """Settle interrupted sequences, also paused ones, whose drafts would keep cells and leaves."""
        for slot in self.slots.all:
            if slot.user is not None and slot.user.is_dirty:
                self.memory.settle(slot.user)

    def _end_or_shift(self, sequence: Sequence) -> None:
        """End a sequence, or cut tokens out of its middle, since the context is full."""
        if sequence.request.shift is None:
            self.outputs.end(sequence, "length")
        else:
            self._shift(sequence, sequence.request.shift)

    def _shift(self, s: Sequence, shift: Shift) -> None:
        """Cut tokens out of a full context. Those after them are evaluated again: drafters cannot cut theirs."""
        n_keep = min(shift.n_keep, self.n_ctx - 4)
        n_left = self.n_ctx - n_keep
        n_cut = min(shift.n_discard or n_left // 2, n_left - 1)
        self.memory.go_back(s, n_keep)
        del s.tokens[n_keep : n_keep + n_cut]
        if not self._has_shifted:
            self._has_shifted = True
            _log.warning(
                "a context is full: of its %d tokens, %d after the first %d are dropped, and %d are evaluated again "
                "(said once)",
                *(self.n_ctx, n_cut, n_keep, len(s.tokens) - s.n_past),
            )
        n_cut_prompt = max(0, min(s.n_prompt, n_keep + n_cut) - n_keep)
        s.n_prompt -= n_cut_prompt
        s.n_cut += n_cut - n_cut_prompt
        s.saves.cut(n_keep)


def _no_media() -> ValueError:
    return ValueError(
        "expected tokens of the vocabulary, found those of an image that is not in memory any more, or of what was "
        "decoded outside of the engine: give its messages again"
    )
