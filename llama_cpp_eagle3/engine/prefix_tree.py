"""The tree of prefixes: which beginnings of texts are held, and where.

A path from the root spells tokens. At its nodes are

- *prefixes*: all that target and draft hold of the path, in a slot or in host memory. Attention can be cut anywhere;
- *states* of recurrent layers and sliding windows, which serve only where they were saved, in any prefix through there.

So a text goes on from the deepest point that some prefix can be cut to: anywhere, or at a state. A state without a
prefix through its node is of no use, and goes with the last one. Host memory has a limit of bytes; what goes first is
what saves the fewest tokens per byte, weighted by how often and how recently it served.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from .._core import SavedState
from .sequence import Saved

_N_BYTES = 4
"""Of a token in a key."""
_N_LOOKED_AT = 64
"""Prefixes that one look-up compares: those that have more in common come first."""


def key_of(tokens: SequenceOf[int]) -> bytes:
    """Tokens as the tree has them: comparing bytes takes microseconds for 100,000 of them."""
    return array("i", tokens).tobytes()


@dataclass(eq=False, slots=True)
class _Node:
    parent: _Node | None
    edge: bytes
    """Tokens from the parent to here."""
    n_tokens: int
    """From the root to here."""
    children: dict[bytes, _Node] = field(default_factory=dict)
    """By the first token of their edges."""
    prefixes: list[Prefix] = field(default_factory=list)
    """That end here."""
    state: State | None = None
    n_through: int = 0
    """Prefixes that end here or below."""
    n_slots: int = 0
    """Those of them that are in slots."""

    @property
    def above(self) -> Iterator[_Node]:
        """The nodes on the path, this one first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(eq=False, slots=True)
class _Item:
    n_bytes: int
    """Of host memory."""
    used_at: int = 0
    n_hits: int = 0
    node: _Node | None = None
    """None: it is not in the tree."""

    @property
    def n_tokens(self) -> int:
        """Where it ends."""
        assert self.node is not None
        return self.node.n_tokens


@dataclass(eq=False, slots=True)
class Prefix(_Item):
    """What target and draft hold of the tokens up to a node."""

    seq_id: int = -1
    """The slot that it is in; -1: it is in host memory."""
    saved: Saved | None = None
    """In host memory."""
    n_turn: int = 0
    """Where its last answer begins: what follows is not likely to be asked for again."""
    n_past_min: int = 1
    """The least number of tokens that it can be cut to without a state; of a slot its memory is asked instead."""
    is_pinned: bool = False
    """A sequence goes on from it: it is neither counted nor evicted."""


@dataclass(eq=False, slots=True)
class State(_Item):
    """What cannot be cut anywhere, as it was when a sequence had the tokens up to a node."""

    saved: SavedState = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Match:
    """How far a text is in the tree."""

    n_tokens: int
    nodes: list[_Node]
    """On its path, the root first."""
    below: _Node | None
    """The node whose edge it leaves in the middle."""

    def state(self, n_tokens: int) -> State | None:
        """The deepest state at this many tokens or before."""
        for node in reversed(self.nodes):
            if node.n_tokens <= n_tokens and node.state is not None:
                return node.state
        return None

    @property
    def states(self) -> list[State]:
        """All on its path, the shallowest first."""
        return [node.state for node in self.nodes if node.state is not None]

    @property
    def saved(self) -> list[SavedState]:
        """Theirs, as the target takes them."""
        return [state.saved for state in self.states]

    @property
    def prefixes(self) -> Iterator[tuple[int, Prefix]]:
        """(tokens in common, prefix), the most in common first."""
        points = [(node.n_tokens, node) for node in self.nodes]
        if self.below is not None:
            points.append((self.n_tokens, self.below))
        seen: _Node | None = None
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


class PrefixTree:
    """Prefixes and states by the tokens that they are of. For one thread at a time."""

    def __init__(self, n_bytes_max: int, n_states_max: int):
        """n_bytes_max: of host memory. n_states_max: of one path."""
        self.n_bytes_max, self.n_states_max = n_bytes_max, n_states_max
        self.n_bytes = 0
        """Of host memory, of what is not pinned."""
        self.n_evicted = 0
        """Prefixes and states that had to go so far."""
        self.hosted: dict[Prefix, None] = {}
        """Prefixes in host memory, pinned ones too, in the order in which they came."""
        self.states: dict[State, None] = {}
        self.clock = 0
        """Counts requests."""
        self._root = _Node(None, b"", 0)

    # looking up

    def match(self, key: bytes) -> Match:
        """Find a text."""
        node, nodes, at = self._root, [self._root], 0
        while (child := node.children.get(key[at : at + _N_BYTES])) is not None:
            if not key.startswith(child.edge, at):
                n = at + _n_common(key[at : at + len(child.edge)], child.edge)
                return Match(n // _N_BYTES, nodes, child)
            node = child
            nodes.append(node)
            at += len(child.edge)
        return Match(at // _N_BYTES, nodes, None)

    def use(self, *items: Prefix | State | None) -> None:
        """A request begins with them."""
        for item in items:
            if item is not None:
                item.used_at = self.clock
                item.n_hits += 1

    def value(self, item: Prefix | State) -> float:
        """Tokens that would have to be evaluated again without it, by how likely they are to be asked for."""
        node = item.node
        assert node is not None
        if isinstance(item, State):
            n_else = next((n.n_tokens for n in node.above if n is not node and n.state is not None), 0)
        elif item.saved is None:
            n_else = next((n.n_tokens for n in node.above if n.n_slots > 1), 0)
        else:
            n_else = next((n.n_tokens for n in node.above if n.n_through > 1), 0)
        return (node.n_tokens - n_else) * (1 + item.n_hits) / (1 + self.clock - item.used_at)

    # changing

    def insert(self, prefix: Prefix, key: bytes) -> None:
        """Put a prefix where its tokens end, wherever it was before."""
        before = prefix.node
        node = self._node(key)
        node.prefixes.append(prefix)
        for n in node.above:
            n.n_through += 1
            n.n_slots += prefix.saved is None
        if before is not None:
            self._take(prefix, before)
        else:
            self._count(prefix, 1)
            prefix.used_at = self.clock
        prefix.node = node

    def drop(self, item: Prefix | State) -> None:
        """Remove a prefix or a state, if it is there."""
        node, item.node = item.node, None
        if node is None:
            return
        if isinstance(item, Prefix):
            self._count(item, -1)
            self._take(item, node)
        else:
            self._forget(node)
            self._merge(node)

    def pin(self, prefix: Prefix) -> None:
        """A prefix in host memory is about to be loaded and dropped: neither count nor evict it."""
        if not prefix.is_pinned:
            prefix.is_pinned = True
            self.n_bytes -= prefix.n_bytes

    def insert_state(self, key: bytes, saved: SavedState) -> None:
        """Put a state where its tokens end: some prefix goes through there, or it goes at once."""
        node = self._node(key)
        if node.state is None:
            state = node.state = State(saved.n_bytes, self.clock, saved=saved, node=node)
            self.states[state] = None
            self.n_bytes += state.n_bytes
        if node.n_through == 0:
            self._prune(node)
            return
        on_path = [n.state for n in node.above if n.state is not None]
        if len(on_path) > self.n_states_max:
            self.drop(min(on_path, key=self.value))
        self.evict()

    def evict(self) -> None:
        """Evict until host memory is within its limit."""
        while self.n_bytes > self.n_bytes_max:
            items: list[Prefix | State] = [prefix for prefix in self.hosted if not prefix.is_pinned]
            self.drop(min([*items, *self.states], key=lambda item: self.value(item) / item.n_bytes))
            self.n_evicted += 1

    def clear_states(self) -> None:
        """Drop all states."""
        for state in list(self.states):
            self.drop(state)

    def _count(self, prefix: Prefix, sign: int) -> None:
        if prefix.saved is not None:
            if sign > 0:
                self.hosted[prefix] = None
            else:
                self.hosted.pop(prefix, None)
            if not prefix.is_pinned:
                self.n_bytes += sign * prefix.n_bytes

    def _node(self, key: bytes) -> _Node:
        """The node at the end of a path, which is made if there is none."""
        match = self.match(key)
        node, n = match.nodes[-1], match.n_tokens
        if match.below is not None:  # split its edge
            below = match.below
            cut = (n - node.n_tokens) * _N_BYTES
            if cut > 0:
                middle = _Node(node, below.edge[:cut], n, n_through=below.n_through, n_slots=below.n_slots)
                node.children[middle.edge[:_N_BYTES]] = middle
                below.parent, below.edge = middle, below.edge[cut:]
                middle.children[below.edge[:_N_BYTES]] = below
                node = middle
        rest = key[n * _N_BYTES :]
        if rest:
            child = _Node(node, rest, len(key) // _N_BYTES)
            node.children[rest[:_N_BYTES]] = child
            node = child
        return node

    def _take(self, prefix: Prefix, node: _Node) -> None:
        node.prefixes.remove(prefix)
        for n in node.above:
            n.n_through -= 1
            n.n_slots -= prefix.saved is None
        self._prune(node)

    def _prune(self, node: _Node) -> None:
        """Remove what no prefix goes through any more."""
        top = None
        for n in node.above:
            if n.n_through > 0:
                break
            top = n
        if top is None:
            self._merge(node)
            return
        parent = top.parent
        assert parent is not None
        del parent.children[top.edge[:_N_BYTES]]
        todo = [top]
        while todo:
            gone = todo.pop()
            todo += gone.children.values()
            if gone.state is not None:
                gone.state.node = None
                self._forget(gone)
        self._merge(parent)

    def _forget(self, node: _Node) -> None:
        state, node.state = node.state, None
        assert state is not None
        self.states.pop(state, None)
        self.n_bytes -= state.n_bytes

    def _merge(self, node: _Node) -> None:
        """Join a node at which nothing is with the only one below."""
        parent = node.parent
        if parent is None or node.prefixes or node.state is not None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.edge[:_N_BYTES]] = child


def _n_common(a: bytes, b: bytes) -> int:
    """Bytes of the tokens that both begin with."""
    n_same, n_other = 0, min(len(a), len(b))
    if a[:n_other] == b[:n_other]:
        return n_other
    while n_other - n_same > _N_BYTES:
        n = (n_same + n_other) // (2 * _N_BYTES) * _N_BYTES
        if a[n_same:n] == b[n_same:n]:
            n_same = n
        else:
            n_other = n
    return n_same


def n_common(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])
