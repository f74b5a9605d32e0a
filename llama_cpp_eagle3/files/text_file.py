"""Text files, whichever editor wrote them."""

from __future__ import annotations

import codecs
import io
import re
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
_N_MAX = 1 << 30  # bytes of a text that is read at once
_N_LINE = 1 << 26  # characters of a line that is read at once
_HALF = re.compile("[\ud800-\udfff]")
_NUL = "found a NUL character: save it as UTF-8, or as UTF-16 with a byte order mark"


class _LongLineError(ValueError):
    """A line has more characters than are read."""


def read_text(path: str | Path) -> str:
    r"""Text of a file: without a byte order mark, and with \n where lines end by \r\n.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, and has no mark of UTF-16, or it is too large, such as a device without an end.
    """
    with open(path, "rb") as file:
        pieces = iter(lambda: file.read(1 << 20), b"")  # Python allocates as much as it is asked to read
        data = b"".join(piece for piece, _ in zip(pieces, range((_N_MAX >> 20) + 1), strict=False))
    if len(data) > _N_MAX:
        raise ValueError(f"'{path}': expected a text of at most {_N_MAX >> 20} MiB, found more")
    return as_text(data, f"'{path}'")


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a file, as `read_text` reads it, ended only by \n. Files that were joined have marks inside.

    `str.splitlines` also cuts at U+2028, U+0085 and others, which stand inside the texts of JSON Lines as they are.
    """
    lines = [line.removeprefix("\ufeff") for line in read_text(path).split("\n")]
    return lines if lines[-1] else lines[:-1]


def iter_lines(path: str | Path) -> Iterator[str]:
    r"""Lines of a file, as `read_lines` has them, but read one after another, and unpacked (gzip, bzip2, xz).

    Bytes that are no text do not end the reading: they become half surrogates, as Python has them in names of files.

    Raises:
        OSError: it cannot be read.
        ValueError: it cannot be unpacked, its mark of UTF-16 is wrong, or a line has no end, as a device's may.
    """
    packer = _packer_of(path)
    try:
        with _opened(path, packer) as file:
            mark = _mark_of(file.read(4))
            file.seek(len(mark))
            reader = io.TextIOWrapper(file, _MARKS.get(mark, "utf-8"), errors="surrogateescape", newline="\n")
            for line in iter(lambda: reader.readline(_N_LINE), ""):
                if len(line) == _N_LINE:
                    raise _LongLineError(f"'{path}': expected lines of less than {_N_LINE} characters, found more")
                yield line.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        raise ValueError(f"'{path}': expected text in {e.encoding[:6].upper()}, as its mark says: {e}") from None
    except Exception as e:  # each module has errors of its own
        if not packer or isinstance(e, _LongLineError) or (isinstance(e, OSError) and e.errno is not None):
            raise
        raise ValueError(f"'{path}': {packer} cannot unpack it: {e}") from None


def _packer_of(path: str | Path) -> str:
    """The module that unpacks a file; empty: it is not packed."""
    with open(path, "rb") as file:
        begin = file.read(10)
    for name, other in _OTHER_PACKERS.items():
        if begin.startswith(other):
            raise ValueError(f"'{path}': {name} has packed it: unpack it first, or pack it by gzip")
    found = next((name for name, begins in _PACKERS.items() if begin.startswith(begins)), "")
    return "gzip" if str(path).lower().endswith(".gz") else found


def _opened(path: str | Path, packer: str) -> IO[Any]:
    return open(path, "rb") if not packer else import_module(packer).open(path)


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
