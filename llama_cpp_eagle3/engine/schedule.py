"""Who runs and who waits: slots are given in the order of arrival, for as long as there is room for what is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from .memory import Memory
from .sequence import Sequence, State

_N_WORTH_MOVING = 16
"""Tokens that a sequence must still want before it is moved to another slot."""
_N_CELLS_EACH = 16
"""Cells that every running sequence should have left when another one joins."""


class Schedule:
    """The sequences of an engine that have not ended. Only `submit` and `cancel` may be called from any thread."""

    def __init__(self, memory: Memory, on_run: Callable[[Sequence], None]):
        """on_run: told of each sequence that gets a slot."""
        self.memory = memory
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._on_run = on_run
        self._has_cancelled = False

    def submit(self, sequence: Sequence) -> None:
        """Have a sequence wait for a slot."""
        self.waiting.append(sequence)
        if sequence.is_cancelled:  # before it came here
            self._has_cancelled = True

    def cancel(self, sequence: Sequence) -> None:
        """Have a sequence end with the next `end_cancelled`, wherever it is."""
        sequence.is_cancelled = self._has_cancelled = True

    def end_cancelled(self, end: Callable[[Sequence, Literal["cancelled"]], None]) -> None:
        """End those that were cancelled. end: told of each."""
        if not self._has_cancelled:
            return
        try:
            self._has_cancelled = False  # first: others may be cancelled meanwhile
            for sequence in [s for s in list(self.waiting) if s.is_cancelled]:
                end(sequence, "cancelled")
                self.withdraw(sequence)
            for sequence in self.running:
                if sequence.is_cancelled and not sequence.finish_reason:
                    end(sequence, "cancelled")
            self.retire()
        except BaseException:
            self._has_cancelled = True
            raise

    def admit(self) -> None:
        """Give slots to those that wait. Who waits for a slot that is taken lets others pass."""
        target = self.memory.target
        while len(self.running) < target.n_seq:
            taken = {s.seq_id for s in self.running}
            sequence = next((s for s in list(self.waiting) if s.seq_id_wanted not in taken), None)
            if sequence is None:
                return
            n_held = sum(len(s.tokens) for s in self.running)
            n_spare = _N_CELLS_EACH * (1 + len(self.running))
            if target.is_pooled and self.running and n_held + len(sequence.tokens) + n_spare > target.n_ctx:
                return
            while not self.memory.assign(sequence, sequence.seq_id_wanted):
                if not self.memory.evict():
                    return
            self.waiting.remove(sequence)
            self._run(sequence, len(self.running))

    def compact_slots(self) -> None:
        """Without a pool llama.cpp cuts a batch where the ids of its sequences leave a gap: move the last there."""
        if self.memory.target.is_pooled:
            return
        while True:
            taken = sorted(s.seq_id for s in self.running)
            holes = [i for i in range(taken[0], taken[-1]) if i not in taken] if taken else []
            if not holes:
                return
            last = max(self.running, key=lambda s: s.seq_id)
            hole = self.memory.emptiest(holes)
            n_left = last.max_tokens - last.n_generated
            if n_left < _N_WORTH_MOVING or last.seq_id_wanted is not None:
                return
            i = self.running.index(last)
            self.preempt(last)
            if not self.memory.assign(last, hole):
                return
            self.waiting.popleft()
            self._run(last, i)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's slot away; it comes back by itself, before all that were never there."""
        self.memory.preempt(sequence)
        self.running.remove(sequence)
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)
        self.memory.tidy()

    def retire(self) -> None:
        """Free the slots of those that have ended."""
        done = [s for s in self.running if s.finish_reason]
        if done:
            self.running = [s for s in self.running if not s.finish_reason]
            for sequence in done:
                self._finish(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """One that waited has ended."""
        self.waiting.remove(sequence)
        self._finish(sequence)

    def _run(self, sequence: Sequence, i: int) -> None:
        """A sequence that was waiting has a slot now."""
        sequence.state = State.RUNNING
        if sequence.n_cached < 0:
            sequence.n_cached = sequence.n_past
        self.running.insert(i, sequence)
        self._on_run(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.memory.release(sequence)
        sequence.state = State.DONE
        sequence.saved = sequence.chain = None
