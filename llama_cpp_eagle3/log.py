"""Log lines for the user, and progress bars."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llama_cpp._logger import set_verbose

_log = logging.getLogger("llama_cpp_eagle3")


def show_llama_cpp(verbose: bool) -> None:
    """Show llama.cpp's messages, or only its errors; until then llama_cpp shows all of them.

    Must be called before anything asks for devices, as drivers print messages then.
    """
    set_verbose(verbose)


def log_info(verbose: bool, text: str) -> None:
    """Log a text, which is shown with `verbose`. No method of the model, as a callback would keep the model alive."""
    if verbose and not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("Eagle3Llama: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    _log.log(logging.INFO if verbose else logging.DEBUG, text)


def log_fetch(verbose: bool, text: str) -> None:
    """Log what takes minutes: it is shown without `verbose` too, as a warning."""
    if verbose:
        log_info(verbose, text)
    else:
        _log.warning(text)


class TextLines(logging.Formatter):
    """A message as a line of text. Control characters are escaped, as clients' text must forge no lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback has several."""
        return printable(super().format(record), keep="\n")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        return printable(super().formatMessage(record))


def printable(text: str, keep: str = "") -> str:
    """A text whose control characters, other than `keep`, are escaped: they would forge lines or move the cursor."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str) -> str:
    """A text without its middle if it is very long: it quotes what a stranger gave."""
    return text if len(text) <= 2000 else f"{text[:1000]} [{len(text) - 1500} characters] {text[-500:]}"


def log_to(path: Path) -> None:
    """Append the log to a file too.

    Raises:
        OSError: it cannot be written.
    """
    handler = _LogFile(path.expanduser(), encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler())
    _log.setLevel(min(_log.level or logging.INFO, logging.INFO))
    _log.addHandler(handler)


class _LogFile(logging.FileHandler):
    """A log's file. If it cannot be written, that is said once where else the log is seen, and no more is written."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Remove the file from the log, in the place of a traceback for each line."""
        if not isinstance(e := sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        _log.removeHandler(self)
        with suppress(OSError):  # it cannot write what is left
            self.close()
        _log.warning("'%s': nothing more is logged to it: %s", self.baseFilename, e.strerror)


@contextmanager
def without_details() -> Iterator[None]:
    """Keep llama_cpp from showing llama.cpp's debugging messages, hundreds of lines for each graph that is built.

    With verbose=True it shows them, since it counts them as INFO.
    """
    theirs = logging.getLogger("llama-cpp-python")
    level = theirs.level
    theirs.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        theirs.setLevel(level)


class _NoBar:
    n, disable = 0, True

    def update(self, n: float = 1) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


def progress_bar(total: float, unit: str, progress: bool | None = None, **options: Any) -> Any:
    """A tqdm bar, or an object without effect. progress: None shows it on a terminal if tqdm (extra `cli`) is there.

    Raises:
        ImportError: progress is True, and tqdm is missing.
    """
    if progress is not False:
        try:
            from tqdm import tqdm
        except ImportError:
            if progress:
                raise
        else:
            return tqdm(total=total, unit=unit, disable=None if progress is None else False, **options)
    return _NoBar()
