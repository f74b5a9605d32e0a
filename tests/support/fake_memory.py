"""Target and slots that hold texts instead of numbers, so that everything that the prefix cache returns can be read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from llama_cpp_eagle3._core import SavedState
from llama_cpp_eagle3.engine.memory import Memory
from llama_cpp_eagle3.errors import ContextFullError


def to_bytes(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def to_tokens(data: bytes) -> list[int]:
    return array("i", data).tolist()


class FakeTarget:
    """The methods of a target that `Memory` and `Slots` call; its layers are attention or (is_cut=False) recurrent."""

    def __init__(self, n_seq: int, *, is_cut: bool, n_ctx: int = 1 << 20):
        self.n_seq, self.is_cut, self.n_ctx, self.is_pooled = n_seq, is_cut, n_ctx, False
        self.rollback_kind = "trim" if is_cut else "checkpoint"
        self.texts: list[list[int]] = [[] for _ in range(n_seq)]
        self.known: list[list[SavedState]] = [[] for _ in range(n_seq)]

    def n_past(self, seq_id: int) -> int:
        return len(self.texts[seq_id])

    def n_past_min(self, seq_id: int) -> int:
        return 1 if self.is_cut else len(self.texts[seq_id])

    def n_replay(self, seq_id: int) -> int:
        return 0

    def attach(self, states: Sequence[SavedState], seq_id: int) -> None:
        self.known[seq_id] += states

    def save(self, seq_id: int) -> SavedState | None:
        text = self.texts[seq_id]
        return None if self.is_cut else SavedState(len(text), to_bytes(text))

    def truncate(self, n_past: int, seq_id: int = 0) -> int:
        text = self.texts[seq_id]
        assert n_past <= len(text)
        if n_past == len(text):
            return n_past
        if self.is_cut:
            del text[n_past:]
            return n_past
        states = [state for state in self.known[seq_id] if state.n_past <= n_past]
        text[:] = to_tokens(max(states, key=lambda state: state.n_past).data) if n_past and states else []
        self.known[seq_id] = states
        return len(text)

    def copy(self, source: int, seq_id: int, n_past: int) -> int:
        if not self.is_cut:
            return 0
        self.texts[seq_id] = self.texts[source][:n_past]
        return n_past

    def state_get(self, seq_id: int) -> bytes:
        return to_bytes(self.texts[seq_id])

    def state_set(self, seq_id: int, state: bytes) -> None:
        if 4 * self.n_ctx < len(state):
            raise ContextFullError("full")
        self.texts[seq_id] = to_tokens(state)


def fake_memory(n_seq: int, *, is_cut: bool) -> Memory:
    target: Any = FakeTarget(n_seq, is_cut=is_cut)
    return Memory(target, (), None)


class Pool:
    """An executor whose functions run when a test says so."""

    def __init__(self) -> None:
        self.todo: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_held = False

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Waiting(self)
        self.todo.append((future, function))
        if not self.is_held:
            self.run()
        return future

    def run(self) -> None:
        while self.todo:
            future, function = self.todo.pop(0)
            try:
                future.set_result(function())
            except Exception as e:
                future.set_exception(e)

    def shutdown(self) -> None:
        self.run()


class Waiting(Future):  # type: ignore[type-arg]
    """A future whose function runs, at the latest, when a thread waits for it."""

    def __init__(self, pool: Pool):
        super().__init__()
        self._pool = pool

    def result(self, timeout: float | None = None) -> Any:
        self._pool.run()
        return super().result(timeout)
