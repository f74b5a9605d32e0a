"""--log-file on a disk that is full."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_cpp_eagle3.log import log_to


@pytest.fixture
def seen() -> Iterator[io.StringIO]:
    """What a terminal shows of the log."""
    log = logging.getLogger("llama_cpp_eagle3")
    before, level, propagates = log.handlers[:], log.level, log.propagate
    stream = io.StringIO()
    log.handlers[:], log.propagate = [logging.StreamHandler(stream)], False
    yield stream
    for handler in log.handlers:
        handler.close()
    log.handlers[:], log.level, log.propagate = before, level, propagates


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_said_once(seen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    log_to(Path("/dev/full"))
    log = logging.getLogger("llama_cpp_eagle3")
    log.info("one")
    log.info("two")
    assert seen.getvalue() == "one\n'/dev/full': nothing more is logged to it: No space left on device\ntwo\n"
    assert "Traceback" not in capsys.readouterr().err


def test_names_that_are_no_text(seen: io.StringIO, tmp_path: Path) -> None:
    log_to(tmp_path / "log")
    handlers = logging.getLogger("llama_cpp_eagle3").handlers
    (handler,) = [handler for handler in handlers if isinstance(handler, logging.FileHandler)]
    # not by the logger: pytest captures what it logs, and its workers cannot send half a surrogate
    handler.handle(logging.LogRecord("llama_cpp_eagle3", logging.INFO, __file__, 1, "'%s'", ("caf\udce9",), None))
    assert r"'caf\udce9'" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_line_cannot_be_forged(seen: io.StringIO, tmp_path: Path) -> None:
    log_to(tmp_path / "log")
    logging.getLogger("llama_cpp_eagle3.chat").info("property %s", "a\nforged\x1b[2J\u202e")
    (line,) = (tmp_path / "log").read_text(encoding="utf-8").split("\n")[:-1]
    assert line.endswith(r"property a\nforged\x1b[2J\u202e")
