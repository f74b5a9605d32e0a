"""Text files, whichever editor wrote them."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""Byte order marks, with which editors of Windows begin a file -> its encoding; a file without one is UTF-8."""


def read_text(path: str | Path) -> str:
    r"""Text of a file: without a byte order mark, and with \n where lines end by \r\n.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, and has no mark of UTF-16.
    """
    return as_text(Path(path).read_bytes(), f"'{path}'")


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a file, as `read_text` reads it, ended only by \n. Files that were joined have marks inside.

    `str.splitlines` also cuts at U+2028, U+0085 and others, which stand inside the texts of JSON Lines as they are.
    """
    lines = [line.removeprefix("\ufeff") for line in read_text(path).split("\n")]
    return lines if lines[-1] else lines[:-1]


def iter_lines(path: str | Path) -> Iterator[str]:
    r"""Lines of a file, as `read_lines` has them, but read one after another, and unpacked if its name ends in .gz.

    Bytes that are no text do not end the reading: they become half surrogates, as Python has them in names of files.

    Raises:
        OSError: it cannot be read.
        ValueError: gzip cannot unpack it, or its mark of UTF-16 is wrong.
    """
    is_packed = str(path).lower().endswith(".gz")
    try:
        with gzip.open(path) if is_packed else open(path, "rb") as file:
            mark = _mark_of(file.read(4))
            file.seek(len(mark))
            reader = io.TextIOWrapper(file, _MARKS.get(mark, "utf-8"), errors="surrogateescape", newline="\n")
            for line in reader:
                yield line.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
    except (gzip.BadGzipFile, zlib.error, EOFError) as e:
        raise ValueError(f"'{path}': gzip cannot unpack it: {e}") from None
    except UnicodeDecodeError as e:
        raise ValueError(f"'{path}': expected text in UTF-16, as its mark says: {e}") from None


def as_text(data: bytes, source: str) -> str:
    """Text of bytes, as `read_text` reads them. source: where they come from, for the error."""
    mark = _mark_of(data)
    try:
        return data[len(mark) :].decode(_MARKS.get(mark, "utf-8")).replace("\r\n", "\n")
    except UnicodeDecodeError as e:
        raise ValueError(f"{source}: expected text in UTF-8: {e}") from None


def _mark_of(data: bytes) -> bytes:
    return next((mark for mark in _MARKS if data.startswith(mark)), b"")
