"""Write a file as a whole or not at all, to a path that may be written."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeGuard

from .file_lock import lock_if_free

_CANNOT_WRITE = {getattr(errno, name, -1) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EPIPE")}
_OF_RUST = re.compile(r"\(os error (\d+)\)")  # how its standard library ends the system's errors
_N_FULL = 1 << 20
"""Free bytes of a disk that was full for some library: the last block of a file may not have been written."""


def output_path(path: str | Path, *inputs: str | Path | None) -> Path:
    """The file that an output's name stands for, with links followed: a regular file or a new one.

    Args:
        path: the name.
        inputs: files that are read for it (None: not given); it must be none of them.

    Raises:
        OSError: it is a device, a FIFO, a folder or the like, or one of the inputs.
    """
    found = Path(os.path.realpath(path))
    try:
        status = found.stat()
    except FileNotFoundError:
        return found
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, give the name of a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        why = "it is no regular file (a device, a FIFO or a socket), give the name of a file"
        raise OSError(errno.EINVAL, why, str(path))
    for other in (name for name in inputs if name is not None):
        with suppress(FileNotFoundError):
            if os.path.samestat(status, os.stat(other)):
                why = f"it is the input '{other}', which would be lost: give another name for the output"
                raise OSError(errno.EINVAL, why, str(path))
    return found


@contextmanager
def whole_file(path: Path, *inputs: str | Path, mode: int = 0o666, follows: bool = True) -> Iterator[Path]:
    """A temporary file that replaces `path` if the block succeeds, and is removed if not.

    Writes a unique temporary file beside `path` and renames it; readers see the old or the new file. Processes that
    write `path` at the same time write to files of their own, which they hold locked (`is_abandoned`).

    Args:
        path: the name of a regular file or a new one.
        inputs: files that are read in the block; the output must be none of them.
        mode: permissions of a new file, less the umask's; a file that is replaced passes on its own, within `mode`.
        follows: links are followed; else a link is replaced, and what it names does not change.

    Raises:
        OSError: as `output_path`, or the system's.
    """
    found = output_path(path, *inputs) if follows or not path.is_symlink() else path
    part = found.with_name(f".{found.name[:50]}.{secrets.token_hex(8)}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # so that the system applies the umask
    try:
        lock_if_free(fd)
        with naming(found, fd):
            yield part
        if follows:
            with suppress(FileNotFoundError):
                os.chmod(part, stat.S_IMODE(found.stat().st_mode) & mode)
        if sys.platform == "win32":  # it renames no open file
            os.close(fd)
            fd = -1
        os.replace(part, found)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def is_abandoned(part: str | Path) -> bool:
    """Whether no process writes a temporary file of `whole_file` any more: it was killed.

    Raises:
        OSError: the system's.
    """
    fd = os.open(part, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        return lock_if_free(fd)
    finally:
        os.close(fd)


@contextmanager
def naming(path: str | Path, fd: int = -1) -> Iterator[None]:
    """Name a file if it cannot be written, since errors of a full disk do not say where, and libraries' say less.

    fd: of the open file that the block writes by its name; it is tried where an error does not say why.

    Raises:
        OSError: the disk is full, a quota is used up, or the like.
    """
    try:
        yield
    except Exception as e:
        if is_unnamed(e):
            e.filename = str(path)
        elif not isinstance(e, OSError) or e.errno is None:  # else of another kind, or it has a name
            number = _why_not_written(Path(path), fd, e)
            if number:
                raise OSError(number, os.strerror(number), str(path)) from e
        raise


def _why_not_written(path: Path, fd: int, e: Exception) -> int:
    """The system's number for what a library's error may be about; 0: the file can be written."""
    rusts = _OF_RUST.search(str(e))
    if rusts and int(rusts[1]) in _CANNOT_WRITE:
        return int(rusts[1])
    if shutil.disk_usage(path.parent).free < _N_FULL:
        return errno.ENOSPC
    if fd < 0:
        return 0
    try:
        os.lseek(fd, 0, os.SEEK_END)
        n = 0
        while n < _N_FULL:  # a part of it may be written before the error
            n += os.write(fd, bytes(_N_FULL - n))
    except OSError as why:
        return why.errno if why.errno and why.errno in _CANNOT_WRITE else 0
    return 0


def is_unnamed(e: Exception) -> TypeGuard[OSError]:
    """Whether something could not be written, and the error does not say where: a file within `naming`, or a stream."""
    return isinstance(e, OSError) and e.filename is None and e.errno in _CANNOT_WRITE


def write_whole(path: str | Path, text: str) -> None:
    """Write a text to a temporary file and rename it: readers see the old text or the new one.

    Raises:
        OSError: as `whole_file`.
    """
    with whole_file(Path(path)) as part:
        part.write_text(text, encoding="utf-8")
