"""What programs keep in folders that others can write to: it has an end, and is JSON of plain numbers."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

N_BYTES_MAX = 64 << 20


def open_regular(path: Path, follow_link: bool = True) -> BinaryIO:
    """Open a regular file for reading: a FIFO would wait for its writer, and a device may have no end.

    Raises:
        OSError: it is none, is a link that is not to be followed, or cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    fd = os.open(path, flags if follow_link else flags | getattr(os, "O_NOFOLLOW", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "expected a regular file, found a folder, a FIFO or a device", str(path))
    return os.fdopen(fd, "rb")


def read_regular(path: Path) -> bytes:
    """Bytes of a regular file of at most 64 MiB.

    Raises:
        OSError: it is no regular file, is larger, or cannot be read.
    """
    with open_regular(path) as file:
        if (n := os.fstat(file.fileno()).st_size) > N_BYTES_MAX:
            raise OSError(errno.EFBIG, f"expected at most {N_BYTES_MAX >> 20} MiB, found {n} B", str(path))
        return file.read(n)  # not more: Python allocates what it is asked to read


def read_json(path: Path) -> Any:
    """The value of a file as `read_regular` takes it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, is nested too deeply, or has an integer that no float holds.
    """
    text = read_regular(path).decode("utf-8")
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)
