"""Files of whole lines, to which threads and processes append."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from .file_lock import locked
from .whole_file import output_path

_log = logging.getLogger("llama_cpp_eagle3")
_N_WAITING = 1024
"""Items that wait for the disk, at most; further ones are left out."""
_N_TAIL = 1 << 16
T = TypeVar("T")


class LineFile:
    """A file of whole lines. Several processes may append to it.

    A line is one write, under a lock that also covers the limit. A line that a crash has cut off is removed by the next
    who opens the file.
    """

    def __init__(self, path: Path, n_bytes_max: int):
        """Open it, or make it: readable by its owner alone, since it holds conversations.

        Raises:
            OSError: the file cannot be written, or is no regular file.
        """
        self.path, self.n_bytes_max = output_path(path), n_bytes_max
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o600)
        with locked(self._fd):
            self._cut_tail()

    @property
    def n_bytes(self) -> int:
        """Bytes of all lines."""
        return os.fstat(self._fd).st_size

    def append(self, line: bytes) -> bool:
        """Write a line; False = it would exceed the limit.

        Raises:
            OSError: the line could not be written; a part of it was removed again.
        """
        with locked(self._fd):
            before = self.n_bytes
            if before + len(line) > self.n_bytes_max:
                return False
            try:
                if os.write(self._fd, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                os.ftruncate(self._fd, before)
                raise
            return True

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def _cut_tail(self) -> None:
        end = self.n_bytes
        while end > 0:
            first = max(0, end - _N_TAIL)
            os.lseek(self._fd, first, os.SEEK_SET)
            newline = os.read(self._fd, end - first).rfind(b"\n")
            if newline >= 0:
                end = first + newline + 1
                break
            end = first
        if end < self.n_bytes:
            os.ftruncate(self._fd, end)


class LineWriter(Generic[T]):
    """Appends lines that are made of items, in a thread of its own, until the limit or an error ends it."""

    def __init__(self, file: LineFile, make: Callable[[T], bytes | None], flag: str, what: str):
        """Start the thread; `close` closes the file too.

        Args:
            file: the file.
            make: an item as a line; None: it is left out.
            flag: the name of the limit, for users.
            what: what happens to the items, for the log: "recorded".
        """
        self.file, self._make, self._flag, self._what = file, make, flag, what
        self.n_written = 0
        """Lines of this process."""
        self._is_over = False
        self._is_late = False
        self._waiting: queue.Queue[T | None] = queue.Queue(_N_WAITING)
        self._thread = threading.Thread(target=self._run, name=f"{what} texts", daemon=True)
        self._thread.start()

    def add(self, item: T) -> None:
        """Queue an item, without waiting."""
        if self._is_over:
            return
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            if not self._is_late:
                self._is_late = True
                why = "the disk is too slow for all answers, some are left out"
                _log.warning("'%s': %s", self.file.path, why)

    def close(self) -> None:
        """Write the queue, and end."""
        self._waiting.put(None)
        self._thread.join()
        self.file.close()
        _log.info("%d answers were %s in '%s'", self.n_written, self._what, self.file.path)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self._is_over:
                self._write(item)

    def _write(self, item: T) -> None:
        try:
            line = self._make(item)
            if line is None:
                return
            if self.file.append(line):
                self.n_written += 1
                return
            why = f"it has reached {self.file.n_bytes_max / 2**20:.1f} MiB ({self._flag})"
        except Exception as e:  # a full disk, for example
            why = str(e)
        self._is_over = True
        _log.warning("'%s': nothing more is %s, serving goes on: %s", self.file.path, self._what, why)
