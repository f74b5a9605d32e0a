"""The tree of prefixes: which beginnings of texts are held, and where.

A path from the root spells tokens. At its nodes are

- *prefixes*: all that target and draft hold of the path, in a slot, in host memory or in a file. Attention can be cut
  anywhere;
- *states* of recurrent layers and sliding windows, which serve only where they were saved, in any prefix through there.

So a text goes on from the deepest point that some prefix can be cut to: anywhere, or at a state. A state is useless
without a prefix through its node, and is removed with the last one. Host memory and files have limits of bytes; evicted
first is what saves the fewest tokens per byte, weighted by how often and how recently it was used. One prefix, or one
state, may be both in host memory and in a file.
"""

from __future__ import annotations

from typing import Any

from .._core import SavedState
from .prefix_nodes import N_BYTES, KeptState, Match, Node, Prefix, StoredFile, n_common_bytes
from .sequence import Saved


class PrefixTree:
    """Prefixes and states by the tokens that they are of. For one thread at a time."""

    def __init__(self, n_bytes_max: int, n_states_max: int, n_file_bytes_max: int = 0):
        """n_bytes_max: limit of host memory. n_states_max: states on one path. n_file_bytes_max: limit of files."""
        self.n_bytes_max, self.n_states_max, self.n_file_bytes_max = n_bytes_max, n_states_max, n_file_bytes_max
        self.n_bytes = 0
        """Bytes of host memory, without what is pinned."""
        self.n_file_bytes = 0
        self.n_evicted = 0
        """Prefixes and states that were evicted from host memory so far."""
        self.n_evicted_files = 0
        self.hosted: dict[Prefix, None] = {}
        """Prefixes in host memory, pinned ones included, the oldest first."""
        self.states: dict[KeptState, None] = {}
        """States in host memory."""
        self.filed: dict[Prefix | KeptState, None] = {}
        """Prefixes and states in files."""
        self.unfiled: dict[Prefix | KeptState, None] = {}
        """Prefixes and states that are only in host memory, except those that were given up."""
        self.unused_files: list[StoredFile] = []
        """Files that are not in the tree any more: the owner of the folder removes them."""
        self.clock = 0
        """Counts requests."""
        self._root = Node(None, b"", 0)

    # looking up

    def match(self, key: bytes) -> Match:
        """Find how much of a text is in the tree."""
        node, nodes, at = self._root, [self._root], 0
        while (child := node.children.get(key[at : at + N_BYTES])) is not None:
            if not key.startswith(child.edge, at):
                n = at + n_common_bytes(key[at : at + len(child.edge)], child.edge)
                return Match(n // N_BYTES, nodes, child)
            node = child
            nodes.append(node)
            at += len(child.edge)
        return Match(at // N_BYTES, nodes, None)

    def find(self, key: bytes, *, is_state: bool) -> Prefix | KeptState | None:
        """The prefix in host memory, or the state, that ends where a text does and that is in no file."""
        match = self.match(key)
        node = match.nodes[-1]
        if node.n_tokens * N_BYTES != len(key) or match.below is not None:
            return None
        items = [node.state] if is_state else node.prefixes
        return next((x for x in items if x is not None and x.saved is not None and x.file is None), None)

    def use(self, *items: Prefix | KeptState | None) -> None:
        """Tell that a request begins with these."""
        for item in items:
            if item is not None:
                item.used_at, item.was_read = self.clock, False
                item.n_hits += 1

    def value(self, item: Prefix | KeptState) -> float:
        """Tokens that would have to be evaluated again without it, times how likely they are needed.

        Files do not reduce it, as reading takes time too.
        """
        node = item.node
        assert node is not None
        if isinstance(item, KeptState):
            n_else = next((n.n_tokens for n in node.above if n is not node and n.state and n.state.saved), 0)
        elif item.is_in_slot:
            n_else = next((n.n_tokens for n in node.above if n.n_slots > 1), 0)
        else:
            n_own = item.saved is not None
            n_else = next((n.n_tokens for n in node.above if n.n_slots + n.n_hosted > n_own), 0)
        return self._weigh(item, n_else)

    def file_value(self, item: Prefix | KeptState) -> float:
        """The value of its file, by the files alone, since only these are left after a restart."""
        node, n_own = item.node, item.file is not None
        assert node is not None
        if isinstance(item, KeptState):
            n_else = next((n.n_tokens for n in node.above if n is not node and n.state and n.state.file), 0)
        else:
            n_else = next((n.n_tokens for n in node.above if n.n_filed > n_own), 0)
        return self._weigh(item, n_else)

    def _weigh(self, item: Prefix | KeptState, n_else: int) -> float:
        """n_else: how many of its tokens something else holds too."""
        return (item.n_tokens - n_else) * (1 + item.n_hits) / (1 + self.clock - item.used_at)

    def key(self, item: Prefix | KeptState) -> bytes:
        """The key of an item in the tree: its tokens."""
        assert item.node is not None
        return b"".join(reversed([node.edge for node in item.node.above]))

    def beginnings_of(self, prefix: Prefix) -> list[Prefix]:
        """Prefixes in files that are beginnings of this one."""
        assert prefix.node is not None
        return [other for node in prefix.node.above for other in node.prefixes if other.file and other is not prefix]

    # changing

    def insert(self, prefix: Prefix, key: bytes) -> None:
        """Put a prefix where its tokens end, and remove it from where it was."""
        before = prefix.node
        node = self._node(key)
        node.prefixes.append(prefix)
        if before is not None:
            self._walk(node, prefix, 1)
            before.prefixes.remove(prefix)
            self._walk(before, prefix, -1)
            self._prune(before)
            prefix.node = node
            return
        prefix.node, prefix.used_at = node, self.clock
        self._count(prefix, 1)

    def drop(self, item: Prefix | KeptState) -> None:
        """Remove a prefix or a state from the tree."""
        node = item.node
        if node is None:
            return
        if isinstance(item, Prefix):
            self._count(item, -1)
            node.prefixes.remove(item)
            item.node = None
            self._prune(node)
            self._drop_files_of_states(node)
        else:
            self._drop_state(node)
            self._merge(node)
        if item.file is not None:
            self.unused_files.append(item.file)

    def pin(self, prefix: Prefix) -> None:
        """Neither count nor evict a prefix in host memory, since it is about to be loaded and dropped."""
        if not prefix.is_pinned:
            prefix.is_pinned = True
            self.n_bytes -= prefix.n_bytes

    def insert_state(self, key: bytes, saved: SavedState) -> None:
        """Put a state where its tokens end. It is removed at once unless a prefix goes through there."""
        node = self._node(key)
        if node.state is None:
            node.state = KeptState(saved.n_bytes, self.clock, node=node, saved=saved)
            self._count(node.state, 1)
        elif node.state.saved is None:
            self.host(node.state, saved)
        if node.n_through == 0:
            self._prune(node)
            return
        on_path = [n.state for n in node.above if n.state is not None and n.state.saved is not None]
        if len(on_path) > self.n_states_max:
            spare = [state for state in on_path if not state.n_waiting]
            self.leave_host(min(spare or on_path, key=self.value))
        self.evict()

    def host(self, item: Prefix | KeptState, saved: Saved | SavedState) -> None:
        """Put what a file holds into host memory too; call `evict` next."""
        item.n_bytes = saved.n_bytes
        self._set(item, saved, item.file)

    def leave_host(self, item: Prefix | KeptState) -> None:
        """Remove an item from host memory; its file stays, if it has one."""
        if item.file is None:
            self.drop(item)
        elif item.node is not None:
            self._set(item, None, item.file)

    def insert_file(self, key: bytes, item: Prefix | KeptState, file: StoredFile) -> None:
        """Put what a file holds where its tokens end, or note the file of an item that is in the tree already.

        A state's file is useless unless a prefix in a file goes through its path. Call `evict_files` next.
        """
        node = self._node(key) if item.node is None else item.node
        if isinstance(item, KeptState) and (node.n_filed == 0 or (item.node is None and node.state is not None)):
            self.unused_files.append(file)
            self._prune(node)
        elif item.node is not None:
            self._set(item, item.saved, file)
        else:
            item.node, item.file = node, file
            if isinstance(item, Prefix):
                node.prefixes.append(item)
            else:
                node.state = item
            self._count(item, 1)

    def leave_file(self, item: Prefix | KeptState) -> None:
        """Remove an item's file; what is in host memory stays."""
        node, file = item.node, item.file
        if node is None or file is None:
            return
        if item.saved is None:
            self.drop(item)
            return
        self._set(item, item.saved, None)
        self.unfiled.pop(item)
        self.unused_files.append(file)
        if isinstance(item, Prefix):
            self._drop_files_of_states(node)

    def evict(self) -> None:
        """Evict until host memory is within its limit, except what requests are about to begin with."""
        while self.n_bytes > self.n_bytes_max:
            items: list[Prefix | KeptState] = [p for p in self.hosted if not p.is_pinned and not p.n_waiting]
            items += [state for state in self.states if not state.n_waiting]
            if not items:
                return
            self.leave_host(min(items, key=lambda item: (item.is_busy, self.value(item) / item.n_bytes)))
            self.n_evicted += 1

    def makes_room(self, item: Prefix | KeptState, n_bytes: int) -> bool:
        """Evict files that are worth less than an item's, for its file; False: the item is not worth it."""
        if n_bytes > self.n_file_bytes_max:
            return False
        worth = self.file_value(item) / n_bytes
        while self.n_file_bytes + n_bytes > self.n_file_bytes_max:
            worst = min(self.filed, key=self._file_worth)
            if self._file_worth(worst) > worth:
                return False
            self.leave_file(worst)
            self.n_evicted_files += 1
        return True

    def evict_files(self) -> None:
        """Evict until files are within their limit."""
        while self.n_file_bytes > self.n_file_bytes_max:
            self.leave_file(min(self.filed, key=self._file_worth))
            self.n_evicted_files += 1

    def _file_worth(self, item: Prefix | KeptState) -> float:
        assert item.file is not None
        return self.file_value(item) / item.file.n_bytes

    def clear_states(self) -> None:
        """Remove all states from host memory."""
        for state in list(self.states):
            self.leave_host(state)

    def _set(self, item: Prefix | KeptState, saved: Saved | SavedState | None, file: StoredFile | None) -> None:
        """Change where an item in the tree is held."""
        self._count(item, -1)
        item.saved, item.file = saved, file
        if isinstance(item, Prefix) and saved is None:
            item.is_pinned = False
        self._count(item, 1)

    def _count(self, item: Prefix | KeptState, sign: int) -> None:
        """Add (sign 1) or subtract (-1) an item's bytes in host memory and in a file."""
        if item.saved is not None:
            places: dict[Any, None] = self.hosted if isinstance(item, Prefix) else self.states
            _mark(places, item, sign > 0)
            _mark(self.unfiled, item, sign > 0 and item.file is None)
            if not (isinstance(item, Prefix) and item.is_pinned):
                self.n_bytes += sign * item.n_bytes
        if item.file is not None:
            _mark(self.filed, item, sign > 0)
            self.n_file_bytes += sign * item.file.n_bytes
        if isinstance(item, Prefix):
            assert item.node is not None
            self._walk(item.node, item, sign)

    def _walk(self, node: Node, prefix: Prefix, sign: int) -> None:
        """Add (sign 1) or subtract (-1) a prefix on all nodes of its path."""
        for n in node.above:
            n.n_through += sign
            n.n_slots += sign * prefix.is_in_slot
            n.n_hosted += sign * (prefix.saved is not None)
            n.n_filed += sign * (prefix.file is not None)

    def _drop_files_of_states(self, node: Node) -> None:
        """Drop files of states on a path through which no prefix in a file goes: they are useless after a restart."""
        for n in node.above:
            if n.n_filed > 0:
                return
            if n.state is not None:
                self.leave_file(n.state)

    def _node(self, key: bytes) -> Node:
        """The node at the end of a path, which is made if there is none."""
        match = self.match(key)
        node, n = match.nodes[-1], match.n_tokens
        if match.below is not None:  # its edge must be split
            below = match.below
            cut = (n - node.n_tokens) * N_BYTES
            if cut > 0:
                middle = Node(node, below.edge[:cut], n)
                middle.n_through, middle.n_slots = below.n_through, below.n_slots
                middle.n_hosted, middle.n_filed = below.n_hosted, below.n_filed
                node.children[middle.edge[:N_BYTES]] = middle
                below.parent, below.edge = middle, below.edge[cut:]
                middle.children[below.edge[:N_BYTES]] = below
                node = middle
        rest = key[n * N_BYTES :]
        if rest:
            child = Node(node, rest, len(key) // N_BYTES)
            node.children[rest[:N_BYTES]] = child
            node = child
        return node

    def _prune(self, node: Node) -> None:
        """Remove nodes and states through which no prefix goes any more."""
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
        del parent.children[top.edge[:N_BYTES]]
        todo = [top]
        while todo:
            gone = todo.pop()
            todo += gone.children.values()
            if gone.state is not None:
                if gone.state.file is not None:
                    self.unused_files.append(gone.state.file)
                self._drop_state(gone)
        self._merge(parent)

    def _drop_state(self, node: Node) -> None:
        state, node.state = node.state, None
        assert state is not None
        self._count(state, -1)
        state.node = None

    def _merge(self, node: Node) -> None:
        """Join a node that holds nothing with the only node below it."""
        parent = node.parent
        if parent is None or node.prefixes or node.state is not None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.edge[:N_BYTES]] = child


def _mark(items: dict[Any, None], item: Prefix | KeptState, is_there: bool) -> None:
    if is_there:
        items[item] = None
    else:
        items.pop(item, None)
