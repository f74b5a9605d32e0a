"""Locks on files, of which one process at a time has one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOCKED_BYTE = (1 << 31) - 2
"""Windows locks bytes, which need not exist: here one far after those that are read."""


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Wait until no other process has locked a file, and lock it. fd: open for writing.

    Raises:
        OSError: the system's.
    """
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                _lock_byte(fd, msvcrt.LK_LOCK)
                break
            except OSError as e:  # Windows gives up after ten attempts, one a second
                if e.errno != errno.EDEADLK:
                    raise
        try:
            yield
        finally:
            _lock_byte(fd, msvcrt.LK_UNLCK)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)


def lock_if_free(fd: int) -> bool:
    """Lock a file until it is closed, if no other process has; False too where files cannot be locked. Does not wait.

    fd: open for writing.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            _lock_byte(fd, msvcrt.LK_NBLCK)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_byte(fd: int, mode: int) -> None:
    """Lock or unlock the byte. Windows does so at the file's position, which is restored."""
    import msvcrt

    position = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(fd, mode, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(fd, position, os.SEEK_SET)
