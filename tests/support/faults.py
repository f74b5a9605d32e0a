"""Errors from single calls of target and drafter, as an interrupt or a lost server causes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llama_cpp_eagle3 import ContextFullError, Eagle3Error
from llama_cpp_eagle3.engine import Drafters, Engine


class Interrupt(KeyboardInterrupt):
    """Ctrl-C was pressed: Python raises this once the running call has returned."""


class Lost(Eagle3Error):
    """The device is gone."""


class Full(ContextFullError):
    """There is no room, whatever the context holds."""


class Fault:
    """An error in some calls, counted from when it is armed: raised in place of the call, or after it."""

    def __init__(
        self, kind: type[BaseException], *, names: tuple[str, ...] = (), after: bool, skip: int, times: int = 1
    ):
        """names: the calls that count; none = all. skip: the first of them, which succeed."""
        self.kind, self.names, self.after, self.skip, self.times = kind, names, after, skip, times
        self.raised: list[BaseException] = []

    def __repr__(self) -> str:
        when = "after" if self.after else "before"
        what = "|".join(self.names) or "any call"
        return f"Fault({self.kind.__name__} {when} {what}, skip={self.skip}, times={self.times})"

    def call(self, name: str, function: Any, *args: Any, **options: Any) -> Any:
        if self.names and name not in self.names:
            return function(*args, **options)
        self.skip -= 1
        if self.skip >= 0 or len(self.raised) >= self.times:
            return function(*args, **options)
        if self.after:
            function(*args, **options)
        self.raised.append(self.kind(f"{'after' if self.after else 'before'} {name}"))
        raise self.raised[-1]


class _Watched:
    """A target, a drafter or a policy in whose calls a fault occurs."""

    def __init__(self, real: Any, fault: Fault):
        self._real, self._fault = real, fault

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if not callable(value):
            return value
        return lambda *args, **options: self._fault.call(name, value, *args, **options)


def watched(drafters: Drafters, tap: Any, watch: Callable[[Any], Any]) -> Drafters:
    """Return the same drafters, each of them watched."""
    result = Drafters([watch(drafter) for drafter in drafters], tap)
    result.names = drafters.names
    return result


@contextmanager
def armed(engine: Engine, fault: Fault | None) -> Iterator[None]:
    """Let a fault occur in an engine's calls of target and drafter."""
    if fault is None:
        yield
        return
    memory, drafting = engine.memory, engine.drafting
    target, drafters, policy = memory.target, memory.drafters, drafting.policy
    memory.target = _Watched(target, fault)  # type: ignore[assignment]
    memory.drafters = watched(drafters, memory.tap, lambda drafter: _Watched(drafter, fault))
    drafting.policy = _Watched(policy, fault)  # type: ignore[assignment]
    try:
        yield
    finally:
        memory.target, memory.drafters, drafting.policy = target, drafters, policy
