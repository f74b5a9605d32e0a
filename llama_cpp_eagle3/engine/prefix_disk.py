"""The prefix cache's files: which prefixes and states are written to a folder, and read again.

Threads of the folder read and write; the engine's steps start that and take over the results. Prefixes and states in
host memory are written one by one, those that are worth the most per byte first, a state after a prefix that goes
through it. So little is lost when the process is killed, and most of what host memory evicts is in a file.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol, TypeVar

from .._core import SavedState
from .memory import Memory
from .prefix_nodes import KeptState, Prefix, StoredFile, key_of
from .prefix_tree import PrefixTree
from .sequence import Saved, StoredPrefix

_READ_NS = 1.0
"""Nanoseconds to read a byte, until files were read: 1 GB/s."""
_N_TIMED = 1 << 20
"""Smaller files, in bytes, do not change that time."""
T = TypeVar("T")
_log = logging.getLogger("llama_cpp_eagle3")


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file of a folder, as its header describes it."""

    file: StoredFile
    tokens: SequenceOf[int]
    n_turn: int
    n_memory_bytes: int
    """Bytes of host memory that its contents take."""
    is_state: bool


class PrefixFiles(Protocol):
    """Reads and writes files of prefixes and states in threads of its own, which log errors."""

    n_bytes_max: int
    """Bytes of all files."""

    def entries(self) -> Iterable[FolderEntry]:
        """The files that fit target and settings, the most recently used first."""

    def use_drafters(self, draft: str) -> None:
        """Note that states of other drafters are written from now on. draft: the fingerprint of their files."""

    def size_of(self, stored: StoredPrefix) -> int:
        """Bytes of a file."""

    def write(self, stored: StoredPrefix, kept: Collection[str]) -> Future[StoredFile | None]:
        """Write a file; None: it cannot be written. kept: names of files that must not be removed for it."""

    def read(self, file: StoredFile) -> Future[StoredPrefix | None]:
        """Read a file; None: it does not exist any more, or is damaged."""

    def remove(self, files: SequenceOf[StoredFile]) -> None:
        """Remove files, once those that are being written are written; missing ones are no error."""

    def touch(self, file: StoredFile) -> None:
        """Note that a file was used now."""

    def close(self) -> None:
        """Wait until all reading and writing has ended."""


class PrefixDisk:
    """The part of a tree that is in a folder."""

    def __init__(self, folder: PrefixFiles, tree: PrefixTree, memory: Memory):
        """Add the folder's files to a tree that has none."""
        tree.n_file_bytes_max = folder.n_bytes_max
        self._folder, self._tree, self._memory = folder, tree, memory
        self._written: tuple[Prefix | KeptState, Future[StoredFile | None]] | None = None
        self._read: dict[Prefix | KeptState, Future[StoredPrefix | None]] = {}
        self._has_said_size = self._has_read_ahead = False
        self._read_ns = _READ_NS
        entries = [entry for entry in folder.entries() if entry.n_memory_bytes <= tree.n_bytes_max]
        for is_state in (False, True):  # a state needs a prefix that goes through it
            for age, entry in enumerate(entries):
                if entry.is_state is is_state:
                    self._add(entry, -age)
        tree.evict_files()
        self._remove_unused()

    def _add(self, entry: FolderEntry, used_at: int) -> None:
        key = key_of(entry.tokens)
        if (known := self._tree.find(key, is_state=entry.is_state)) is not None:  # from before the folder was open
            self._tree.insert_file(key, known, entry.file)
            return
        item: Prefix | KeptState = KeptState(entry.n_memory_bytes) if entry.is_state else Prefix(entry.n_memory_bytes)
        item.used_at = used_at
        if isinstance(item, Prefix):
            item.n_turn = entry.n_turn
            item.n_past_min = 1 if self._memory.is_cut_anywhere else len(entry.tokens)
        self._tree.insert_file(key, item, entry.file)

    # reading

    def read_ns(self, items: Iterable[Prefix | KeptState]) -> float:
        """Nanoseconds that reading these takes."""
        return self._read_ns * sum(item.file.n_bytes for item in items if item.file is not None)

    def fetch(self, items: SequenceOf[Prefix | KeptState], blocks: bool) -> bool:
        """Read items into host memory; False: they are still being read, ask again. blocks: wait for that."""
        start, n_bytes = perf_counter_ns(), 0
        for item in items:
            if item not in self._read:
                assert item.file is not None
                self._read[item] = self._folder.read(item.file)
                n_bytes += item.file.n_bytes
        if blocks:
            self._take_read(blocks)
            if n_bytes > _N_TIMED:
                self._read_ns += (max(1, perf_counter_ns() - start) / n_bytes - self._read_ns) / 4
        return blocks

    def read_ahead(self) -> bool:
        """Read what was used last before this process into host memory, once; returns whether that still goes on.

        The next text often begins with it, and then waits neither for the disk nor for the check of all bytes.
        """
        if not self._has_read_ahead:
            self._has_read_ahead = True
            tree = self._tree
            for kind in (Prefix, KeptState):
                filed = (item for item in tree.filed if isinstance(item, kind))
                last = max(filed, key=lambda item: item.used_at, default=None)
                if last is not None and last.saved is None and tree.n_bytes + last.n_bytes <= tree.n_bytes_max:
                    self.fetch([last], blocks=False)
        self._take_read(False)
        return bool(self._read)

    def _take_read(self, blocks: bool) -> None:
        """Put what was read into host memory, within its limit, and remove from the tree what cannot be read."""
        for item, future in list(self._read.items()):
            if not (blocks or future.done()):
                continue
            del self._read[item]
            stored = _result(future)
            if item.node is None or item.saved is not None:
                continue
            saved = None if stored is None else self._saved_of(item, stored)
            if saved is None:
                self._tree.drop(item)
                continue
            self._tree.host(item, saved)
            item.was_read, is_busy, item.is_busy = True, item.is_busy, True
            self._tree.evict()
            item.is_busy = is_busy

    def _saved_of(self, item: Prefix | KeptState, stored: StoredPrefix) -> Saved | SavedState | None:
        if key_of(stored.tokens) != self._tree.key(item):
            return None
        if isinstance(item, KeptState):
            return stored.states[0][1] if len(stored.states) == 1 else None
        return self._memory.saved_of(stored)

    def used(self, *items: Prefix | KeptState | None) -> None:
        """Tell that a request begins with these."""
        for item in items:
            if item is not None and item.file is not None:
                self._folder.touch(item.file)

    # writing

    def sync(self) -> bool:
        """Take over what was read and written, and write what is worth the most; returns whether more is left."""
        self._take_read(False)
        if self._written is not None and self._written[1].done():
            self._take_written()
        self._remove_unused()
        while self._written is None and self._tree.unfiled:
            best = self._best()
            if best is None:
                return False
            self._begin_to_write(best)
        return self._written is not None

    def flush(self) -> None:
        """Write everything that is worth it."""
        while self.sync():
            assert self._written is not None
            _result(self._written[1])

    def close(self) -> None:
        """Wait for what is being written."""
        self.flush()
        self._remove_unused()
        self._folder.close()

    def _best(self) -> Prefix | KeptState | None:
        """The item to write next: a prefix, or a state through which a prefix in a file goes."""
        tree = self._tree
        items = [x for x in tree.unfiled if isinstance(x, Prefix) or (x.node is not None and x.node.n_filed > 0)]
        return max(items, key=lambda item: tree.file_value(item) / item.n_bytes, default=None)

    def _begin_to_write(self, item: Prefix | KeptState) -> None:
        tree = self._tree
        stored = self._stored_of(item)
        n_bytes = self._folder.size_of(stored)
        if n_bytes <= tree.n_file_bytes_max < tree.n_file_bytes + n_bytes:
            self._drop_beginnings(item)
        if tree.makes_room(item, n_bytes):
            self._remove_unused()
            item.is_busy = True
            kept = {other.file.name for other in tree.filed if other.file is not None}
            self._written = item, self._folder.write(stored, kept)
            return
        if n_bytes > tree.n_file_bytes_max and not self._has_said_size:
            self._has_said_size = True
            _log.warning(
                "a %s of %d tokens has %.1f MiB and is not written: the prefix cache may have %.1f MiB on disk, a "
                "quarter of what is free there unless --cache-disk-size, prefix_cache_disk_bytes says otherwise",
                "state" if isinstance(item, KeptState) else "prefix",
                *(item.n_tokens, n_bytes / 2**20, tree.n_file_bytes_max / 2**20),
            )
        self._give_up(item)

    def _stored_of(self, item: Prefix | KeptState) -> StoredPrefix:
        tokens = array("i", self._tree.key(item)).tolist()
        if isinstance(item, KeptState):
            assert item.saved is not None
            return StoredPrefix(tokens, b"", b"", [(len(tokens), item.saved)])
        assert item.saved is not None
        draft = item.saved.draft if self._memory.knows_draft(item.saved) else b""
        return StoredPrefix(tokens, item.saved.target, draft, [], item.n_turn)

    def _take_written(self) -> None:
        assert self._written is not None
        (item, future), self._written = self._written, None
        file = _result(future)
        item.is_busy = False
        if file is None:
            self._give_up(item)
        elif item.node is None:  # it was removed from the tree meanwhile
            self._tree.unused_files.append(file)
        else:
            self._tree.insert_file(b"", item, file)
            self._drop_beginnings(item)

    def _give_up(self, item: Prefix | KeptState) -> None:
        """Do not try to write an item again while it is where it is."""
        item.is_busy = False
        self._tree.unfiled.pop(item, None)

    def _drop_beginnings(self, item: Prefix | KeptState) -> None:
        """Remove files of prefixes that are beginnings of this one."""
        if isinstance(item, Prefix):
            for other in self._tree.beginnings_of(item):
                self._tree.leave_file(other)

    def _remove_unused(self) -> None:
        if self._tree.unused_files:
            self._folder.remove(self._tree.unused_files)
            self._tree.unused_files = []


def _result(future: Future[T | None]) -> T | None:
    """What a thread of the folder has read or written; None: it failed, which is logged."""
    try:
        return future.result()
    except Exception as e:
        _log.warning("the prefix cache's folder: %s: %s", type(e).__name__, e)
        return None
