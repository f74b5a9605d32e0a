"""The host side of the prefix cache: evicted prefixes, up to a limit of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf

from .sequence import Saved


class HostPrefixCache:
    """Evicted prefixes in host memory; the least recently used is dropped first."""

    def __init__(self, n_bytes_max: int):
        self.n_bytes_max = n_bytes_max
        self.n_bytes = 0
        self._entries: OrderedDict[tuple[int, ...], Saved] = OrderedDict()

    def put(self, tokens: SequenceOf[int], state: Saved) -> None:
        """Store a prefix; those that it begins with are dropped."""
        key = tuple(tokens)
        if state.n_bytes > self.n_bytes_max:
            return
        for other in [other for other in self._entries if key[: len(other)] == other]:
            self._drop(other)
        self._entries[key] = state
        self.n_bytes += state.n_bytes
        while self.n_bytes > self.n_bytes_max:
            self._drop(next(iter(self._entries)))

    def find(self, tokens: SequenceOf[int]) -> tuple[tuple[int, ...], int]:
        """The prefix with the most tokens in common, and how many; ((), 0) if none has any."""
        best: tuple[int, ...] = ()
        n_best = 0
        for key in self._entries:
            n = n_common(key, tokens)
            if n > n_best:
                best, n_best = key, n
        return best, n_best

    def take(self, key: tuple[int, ...]) -> Saved:
        """Remove a prefix, to restore it."""
        state = self._entries[key]
        self._drop(key)
        return state

    def clear(self) -> None:
        """Drop all."""
        self._entries.clear()
        self.n_bytes = 0

    def _drop(self, key: tuple[int, ...]) -> None:
        self.n_bytes -= self._entries.pop(key).n_bytes

    def __len__(self) -> int:
        return len(self._entries)


def n_common(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])
