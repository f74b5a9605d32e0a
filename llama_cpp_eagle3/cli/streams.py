"""The standard streams of a command: whatever they are, they are no traceback."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress

from ..files.whole_file import is_unnamed


def open_streams() -> None:
    """Make streams of those that the caller has closed, and choose what becomes of characters that one cannot hold.

    They are written as escapes, as Python does on stderr. Bytes of standard input that are no text are an error,
    whatever the locale; it may begin with a byte order mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the next file that is opened would get its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        is_utf8 = codecs.lookup(sys.stdin.encoding).name == "utf-8" and not sys.stdin.isatty()
        sys.stdin.reconfigure(encoding="utf-8-sig" if is_utf8 else None, errors="strict")


def broken_stdout(e: Exception) -> OSError | None:
    """The error, if it is one of writing to stdout: its reader has left, its disk is full. It is the null device then.

    Otherwise Python would try again at its end, and show a traceback.
    """
    found = e if is_unnamed(e) else None  # errors of files have their names
    try:
        sys.stdout.flush()
    except OSError as again:
        found = again
    if found is not None:
        with suppress(OSError):  # it is no file, as in a notebook
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
    return found
