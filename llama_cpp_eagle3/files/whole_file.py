"""Write a file as a whole or not at all, to a path that may be written."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
def whole_file(path: Path, *inputs: str | Path, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file that replaces `path` if the block succeeds, and is removed if not.

    Writes a unique temporary file beside `path` and renames it; readers see the old or the new file. Processes that
    write `path` at the same time write to files of their own.

    Args:
        path: the name of a regular file or a new one; links are followed.
        inputs: files that are read in the block; the output must be none of them.
        mode: permissions of a new file, less the umask's; a file that is replaced passes on its own, within `mode`.

    Raises:
        OSError: as `output_path`, or the system's.
    """
    found = output_path(path, *inputs)
    part = found.with_name(f".{found.name[:50]}.{secrets.token_hex(8)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))  # so that the system applies the umask
    try:
        yield part
        with suppress(FileNotFoundError):
            os.chmod(part, stat.S_IMODE(found.stat().st_mode) & mode)
        os.replace(part, found)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def write_whole(path: str | Path, text: str) -> None:
    """Write a text to a temporary file and rename it: readers see the old text or the new one.

    Raises:
        OSError: as `whole_file`.
    """
    with whole_file(Path(path)) as part:
        part.write_text(text, encoding="utf-8")
