"""Write a file as a whole or not at all, to a path that may be written."""

from __future__ import annotations

import errno
import os
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
        with naming(found):
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
def naming(path: str | Path) -> Iterator[None]:
    """Name a file if it cannot be written, since errors of a full disk do not say where, and libraries' say less.

    Raises:
        OSError: the disk is full, a quota is used up, or the like.
    """
    try:
        yield
    except Exception as e:
        if is_unnamed(e):
            e.filename = str(path)
        elif isinstance(e, OSError) and e.errno is not None:
            pass  # of another kind, or it has a name
        elif shutil.disk_usage(Path(path).parent).free < _N_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from e
        elif isinstance(e, OSError) and str(e).endswith("written"):  # NumPy's, at a limit for the size of files
            raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)}: {e}", str(path)) from e
        raise


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
