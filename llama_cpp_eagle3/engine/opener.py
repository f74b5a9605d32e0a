"""A pass is opened whatever stands in its way: interrupts, full contexts, images, memory that has no room for it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..errors import ContextFullError, Eagle3Error
from .memory import Memory
from .outputs import Outputs
from .rounds import Rounds
from .schedule import Schedule
from .sequence import ScheduledSequence, Sequence, Shift, State, Step


class Opener:
    """Opens the passes of an engine. Who cannot take part ends; or it is said to who drives it by hand."""

    def __init__(self, memory: Memory, rounds: Rounds, schedule: Schedule, outputs: Outputs):
        self.memory, self.rounds, self.schedule, self.outputs = memory, rounds, schedule, outputs
        self.n_ctx = memory.target.n_ctx

    def open(self, only: Sequence | None = None) -> Step | None:
        """Draft and verify for all that run, or for one that is held; None if nothing is to be done."""
        if only is None:
            self.schedule.admit()
            self.schedule.compact_slots()
            return self._pass(self.schedule.running, by_hand=False)
        only.state = State.RUNNING  # nobody may take its slot now
        try:
            return self._pass([only], by_hand=True)
        finally:
            if self.rounds.opened is None:
                only.state = State.IDLE

    def _pass(self, sequences: list[Sequence], by_hand: bool) -> Step | None:
        with_drafts = True
        while True:
            self._settle_all(sequences)
            for sequence in sequences:
                if len(sequence.tokens) > self.n_ctx and not sequence.finish_reason:
                    self._full(sequence, by_hand)
                if sequence.n_past < sequence.n_prompt and sequence.lacks_media and not sequence.finish_reason:
                    self._fail_or_raise(sequence, _no_media(), by_hand)
            going = [s for s in sequences if not s.finish_reason]
            opened = self.rounds.plan(going, by_hand)
            if opened is None:
                return None
            if opened.parts[0].media is not None and not self._encode(opened.parts[0], by_hand):
                continue
            if with_drafts:
                self.rounds.propose(opened)
            try:
                self.rounds.verify(opened)
            except ContextFullError as e:
                if self.memory.evict():
                    continue
                if any(part.draft.tokens for part in opened.parts):
                    with_drafts = False
                elif by_hand:
                    raise
                elif len(going) > 1:
                    self.schedule.preempt(going[-1])
                else:
                    self.outputs.fail(going[0], e)
                    return None
            else:
                return opened

    def _encode(self, part: ScheduledSequence, by_hand: bool) -> bool:
        """Have an image's rows; False if that ends its sequence."""
        assert part.media is not None
        try:
            part.media.encode()
        except Exception as e:
            self._fail_or_raise(part.sequence, e, by_hand)
            return False
        return True

    def _fail_or_raise(self, sequence: Sequence, error: Exception, by_hand: bool) -> None:
        if by_hand:
            raise error
        self.outputs.fail(sequence, error)

    def _settle_all(self, sequences: SequenceOf[Sequence]) -> None:
        """Settle what was interrupted: of these, and of others too, whose drafts would take up cells and leaves."""
        for slot in self.memory.slots:
            user = slot.user
            if user is None or not user.is_dirty:
                continue
            n_past, is_there = user.n_past, self.memory.settle(user)
            if user in sequences:
                if not is_there:
                    raise lost_error()
            elif user.n_past < n_past:
                self.memory.release(user)  # whoever holds it evaluates nothing now: all is there, or nothing

    def _full(self, sequence: Sequence, by_hand: bool) -> None:
        if by_hand:
            raise ContextFullError(
                f"{sequence.n_pending} tokens do not fit behind {sequence.n_past}: the context holds {self.n_ctx}. "
                "Use a larger n_ctx."
            )
        if sequence.shift is None:
            self.outputs.end(sequence, "length")
        else:
            self._shift(sequence, sequence.shift)

    def _shift(self, s: Sequence, shift: Shift) -> None:
        """Cut tokens out of a full context. What comes behind is read again: the head cannot be shown a cut."""
        n_keep = min(shift.n_keep, self.n_ctx - 4)
        n_left = self.n_ctx - n_keep
        n_cut = min(shift.n_discard or n_left // 2, n_left - 1)
        self.memory.go_back(s, n_keep)
        del s.tokens[n_keep : n_keep + n_cut]
        n_cut_prompt = max(0, min(s.n_prompt, n_keep + n_cut) - n_keep)
        s.n_prompt -= n_cut_prompt
        s.n_cut += n_cut - n_cut_prompt
        s.n_save = -1


def lost_error() -> Eagle3Error:
    """What is raised for a held sequence that cannot be settled."""
    return Eagle3Error("the target's memory cannot go back to what others decoded into it: it was reset")


def _no_media() -> ValueError:
    return ValueError(
        "expected tokens of the vocabulary, found those of an image that is not in memory any more: give its messages "
        "again"
    )
