"""The parts of the tree of prefixes: nodes with their prefixes and states, slots, and matches of a text."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

from .._core import SavedState
from .sequence import Saved, Sequence, State

N_BYTES = 4
"""Bytes of a token in a key."""
_N_LOOKED_AT = 64
"""Prefixes that one look-up compares at most, those with more common tokens first."""


def key_of(tokens: SequenceOf[int]) -> bytes:
    """Tokens as bytes, the tree's keys: comparing 100,000 of them takes microseconds."""
    return array("i", tokens).tobytes()


@dataclass(eq=False, slots=True)
class Node:
    """A place in the tree where texts part, or where a prefix or a state ends."""

    parent: Node | None
    edge: bytes
    """Tokens from the parent to here."""
    n_tokens: int
    """Number of tokens from the root to here."""
    children: dict[bytes, Node] = field(default_factory=dict)
    """The nodes below, by the first token of their edges."""
    prefixes: list[Prefix] = field(default_factory=list)
    """Prefixes that end here."""
    state: KeptState | None = None
    n_through: int = 0
    """Prefixes that end here or below."""
    n_slots: int = 0
    """Those of them that are in slots."""
    n_hosted: int = 0
    """Those of them that are in host memory."""
    n_filed: int = 0
    """Those of them that are in files."""

    @property
    def above(self) -> Iterator[Node]:
        """The nodes on the path, this one first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that holds a prefix or a state."""

    name: str
    n_bytes: int
    """Size of the file."""


@dataclass(eq=False, slots=True)
class _Item:
    n_bytes: int
    """Bytes of host memory that it takes while it is there."""
    used_at: int = 0
    n_hits: int = 0
    node: Node | None = None
    """Its node; None: it is not in the tree."""
    file: StoredFile | None = None
    """Its file; None: it is in none."""
    is_busy: bool = False
    """It is being written or was just read: others are evicted first."""
    n_waiting: int = 0
    """Requests that are about to begin with it: it stays in host memory."""
    was_read: bool = False
    """It came from its file for the request that begins with it next."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens up to where it ends."""
        assert self.node is not None
        return self.node.n_tokens


@dataclass(eq=False, slots=True)
class Prefix(_Item):
    """What target and drafters hold of the tokens up to a node."""

    seq_id: int = -1
    """The slot that it is in; -1: it is in host memory."""
    saved: Saved | None = None
    """What host memory holds of it."""
    n_turn: int = 0
    """Where its last answer begins: other prompts rarely have the tokens after that."""
    n_past_min: int = 1
    """The least number of tokens that it can be cut to without a state; for a slot the memory knows it."""
    is_pinned: bool = False
    """A sequence goes on from it: it is neither counted nor evicted."""

    @property
    def is_in_slot(self) -> bool:
        """Whether it is what a slot holds now."""
        return self.seq_id >= 0


@dataclass(eq=False, slots=True)
class KeptState(_Item):
    """A state of memories that cannot be cut anywhere, saved after the tokens up to a node."""

    saved: SavedState | None = None
    """What host memory holds of it."""


@dataclass(slots=True)
class Slot:
    """A sequence id of target and draft."""

    seq_id: int
    prefix: Prefix
    """Its contents in the tree; for a running sequence, those after its prompt will be evaluated."""
    user: Sequence | None = None
    cached: list[int] = field(default_factory=list)
    """Tokens of the cached prefix, while no sequence uses the slot."""
    ends: list[int] = field(default_factory=list)
    """Where other prompts may differ from its own."""
    is_dirty: bool = False
    """No sequence uses it, and its contents in target and drafters must be cleared."""

    @property
    def is_free(self) -> bool:
        """Whether another sequence may have it."""
        return self.user is None or self.user.state is State.PAUSED

    @property
    def tokens(self) -> SequenceOf[int]:
        """The tokens that target and drafters hold there."""
        return self.cached if self.user is None else self.user.tokens[: self.user.n_past]

    @property
    def is_intact(self) -> bool:
        """Whether other sequences can use its contents."""
        return not self.is_dirty if self.user is None else not self.user.is_dirty


@dataclass(frozen=True, slots=True)
class Match:
    """The part of a text that is in the tree."""

    n_tokens: int
    nodes: list[Node]
    """Nodes on its path, the root first."""
    below: Node | None
    """The node in the middle of whose edge the text leaves the tree."""

    def state(self, n_tokens: int, *, in_files: bool = False) -> KeptState | None:
        """The deepest state at n_tokens or before, in host memory or, with in_files, in a file."""
        for node in reversed(self.nodes):
            state = node.state
            if node.n_tokens <= n_tokens and state is not None and (in_files or state.saved is not None):
                return state
        return None

    @property
    def states(self) -> list[KeptState]:
        """All states on its path, the shallowest first."""
        return [node.state for node in self.nodes if node.state is not None]

    @property
    def saved(self) -> list[SavedState]:
        """The states in host memory, as the target takes them."""
        return [state.saved for state in self.states if state.saved is not None]

    @property
    def prefixes(self) -> Iterator[tuple[int, Prefix]]:
        """(tokens in common, prefix), the most in common first."""
        points = [(node.n_tokens, node) for node in self.nodes]
        if self.below is not None:
            points.append((self.n_tokens, self.below))
        seen: Node | None = None
        n_left = _N_LOOKED_AT
        for n, point in reversed(points):
            todo = [point]
            while todo:
                node = todo.pop()
                if node is seen:
                    continue
                for prefix in node.prefixes:
                    yield n, prefix
                    n_left -= 1
                    if n_left == 0:
                        return
                todo += node.children.values()
            seen = point


def n_common_bytes(a: bytes, b: bytes) -> int:
    """Length in bytes of the common prefix, in whole tokens."""
    n_same, n_other = 0, min(len(a), len(b))
    if a[:n_other] == b[:n_other]:
        return n_other
    while n_other - n_same > N_BYTES:
        n = (n_same + n_other) // (2 * N_BYTES) * N_BYTES
        if a[n_same:n] == b[n_same:n]:
            n_same = n
        else:
            n_other = n
    return n_same


def n_common(a: SequenceOf[Any], b: SequenceOf[Any]) -> int:
    """Length of the common prefix, in tokens."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])
