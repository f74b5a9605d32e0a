"""What programs keep in folders that others can write to: it has an end, and is JSON of plain numbers."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

N_BYTES_MAX = 64 << 20


def read_regular(path: Path) -> bytes:
    """Bytes of a regular file of at most 64 MiB: a FIFO would wait for its writer, and a device may have no end.

    Raises:
        OSError: it is no regular file, is larger, or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "expected a regular file, found a folder, a FIFO or a device", str(path))
        if status.st_size > N_BYTES_MAX:
            raise OSError(errno.EFBIG, f"expected at most {N_BYTES_MAX >> 20} MiB, found {status.st_size} B", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(N_BYTES_MAX)
    finally:
        os.close(fd)


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
