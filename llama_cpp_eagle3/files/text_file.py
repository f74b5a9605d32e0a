"""Text files, whichever editor wrote them."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import select
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before the mark that it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Byte order marks, with which editors of Windows begin a file -> its encoding; a file without one is UTF-8."""
_PACKERS = {
    "gzip": (b"\x1f\x8b\x08",),
    "bz2": tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)),
    "lzma": (b"\xfd7zXZ\0",),
}
"""Python's modules -> how their files begin."""
_OTHER_PACKERS = {"zip": b"PK\3\4", "zstd": b"\x28\xb5\x2f\xfd", "7-zip": b"7z\xbc\xaf"}
_N_MAX = 1 << 30  # bytes of a text that is read at once, characters of a line
_FIFO_SECONDS = 2.0  # so long may a FIFO be without a writer
_HALF = re.compile("[\ud800-\udfff]")
_NUL = "found a NUL character: save it as UTF-8, or as UTF-16 with a byte order mark"


def read_text(path: str | Path) -> str:
    r"""Text of a file: without a byte order mark, and with \n where lines end by \r\n.

    Raises:
        OSError, ValueError: as `read_bytes`.
        ValueError: it is not UTF-8, and has no mark of UTF-16.
    """
    return as_text(read_bytes(path), f"'{path}'")


def read_bytes(path: str | Path) -> bytes:
    """Bytes of a file, or what comes from a pipe or a terminal until its end.

    Raises:
        OSError: it cannot be read, or is a FIFO that nothing writes to.
        ValueError: it is too large, such as a device without an end.
    """
    pieces: list[bytes] = []
    n_bytes, flag = 0, getattr(os, "O_NONBLOCK", 0)  # opening a FIFO waits for its writer without the flag
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | flag)) as file:
        may_wait = flag and not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        while n_bytes <= _N_MAX:
            if may_wait:
                select.select([file], [], [], _FIFO_SECONDS)
            piece = file.read(1 << 20)  # Python allocates as much as it is asked to read
            if piece is not None:  # else a writer has written nothing yet
                pieces.append(piece)
                n_bytes += len(piece)
                if not piece:
                    break
    if n_bytes > _N_MAX:
        raise ValueError(f"'{path}': expected a text of at most {_N_MAX >> 20} MiB, found more")
    if not n_bytes and Path(os.path.realpath(path)).is_fifo():
        raise OSError(errno.EINVAL, "it is a FIFO that nothing writes to", str(path))
    return b"".join(pieces)


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a file, as `read_text` reads it, ended only by \n. Files that were joined have marks inside.

    `str.splitlines` also cuts at U+2028, U+0085 and others, which stand inside the texts of JSON Lines as they are.
    """
    lines = [line.removeprefix("\ufeff") for line in read_text(path).split("\n")]
    return lines if lines[-1] else lines[:-1]


def iter_lines(path: str | Path) -> Iterator[str]:
    r"""Lines of a file, as `read_lines` has them, but read one after another, and unpacked (gzip, bzip2, xz).

    Bytes that are no text do not end the reading: they become half surrogates, as Python has them in names of files.
    What is no regular file is read whole first, as it cannot be read twice.

    Raises:
        OSError, ValueError: as `read_bytes`.
        ValueError: it cannot be unpacked, its mark of UTF-16 is wrong, or a line is too long.
    """
    packer = ""
    try:
        with open(path, "rb") if Path(path).is_file() else io.BytesIO(read_bytes(path)) as whole:
            packer = _packer_of(whole, path)
            file = _unpacked(whole, packer)
            mark = _mark_of(file.read(4))
            file.seek(len(mark))
            reader = io.TextIOWrapper(file, _MARKS.get(mark, "utf-8"), errors="surrogateescape", newline="\n")
            while line := reader.readline(_N_MAX + 1):
                if len(line) > _N_MAX:
                    why = f"expected lines of at most {_N_MAX:,} characters, found a longer one"
                    raise OSError(errno.EFBIG, why, str(path))
                yield line.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        raise ValueError(f"'{path}': expected text in {e.encoding[:6].upper()}, as its mark says: {e}") from None
    except Exception as e:  # each module has errors of its own
        if not packer or (isinstance(e, OSError) and e.errno is not None):
            raise
        raise ValueError(f"'{path}': {packer} cannot unpack it: {e}") from None


def _packer_of(file: IO[bytes], path: str | Path) -> str:
    """The module that unpacks a file; empty: it is not packed."""
    begin = file.read(10)
    file.seek(0)
    for name, other in _OTHER_PACKERS.items():
        if begin.startswith(other):
            raise ValueError(f"'{path}': {name} has packed it: unpack it first, or pack it by gzip")
    found = next((name for name, begins in _PACKERS.items() if begin.startswith(begins)), "")
    return "gzip" if str(path).lower().endswith(".gz") else found


def _unpacked(file: IO[bytes], packer: str) -> IO[Any]:
    return import_module(packer).open(file) if packer else file


def as_text(data: bytes, source: str) -> str:
    """Text of bytes, as `read_text` reads them. source: where they come from, for the error."""
    mark = _mark_of(data)
    try:
        text = data[len(mark) :].decode(_MARKS.get(mark, "utf-8"))
    except UnicodeDecodeError as e:
        raise ValueError(f"{source}: expected text in UTF-8: {e}") from None
    if "\0" in text:
        raise ValueError(f"{source}: expected text, {_NUL}")
    return text.replace("\r\n", "\n")


def whole_characters(text: str) -> str:
    """A text with a mark for each half surrogate: of a character that was cut, or of a byte that Python could not read.

    Such bytes are in names of files; those that are UTF-8, which other locales do not read, become their characters.
    """
    try:
        return text.encode(errors="surrogateescape").decode(errors="replace")
    except UnicodeEncodeError:
        return _HALF.sub("\ufffd", text)


def _mark_of(data: bytes) -> bytes:
    return next((mark for mark in _MARKS if data.startswith(mark)), b"")
