"""Lines of text files."""

from __future__ import annotations

from pathlib import Path


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a UTF-8 file, ended only by \n or \r\n; a byte order mark is no part of the first.

    `str.splitlines` also cuts at U+2028, U+0085 and others, which stand inside the texts of JSON Lines as they are.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ValueError(f"'{path}': expected text in UTF-8: {e}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]
