"""Standard streams that cannot hold a character, whose reader leaves, that are full or closed: never a traceback."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import cli
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.cli.streams import open_streams

COMMAND = [sys.executable, "-m", "llama_cpp_eagle3"]


class Stdout(io.TextIOWrapper):
    """A standard output with an encoding of its own."""

    def __init__(self, encoding: str):
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding)

    @property
    def text(self) -> bytes:
        self.flush()
        return self.bytes.getvalue()


def runs(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> int:
    """The status of a command that does this."""
    monkeypatch.setattr(cli, "_run", lambda *_: run() or 0)
    return main(["doctor"])


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", rb"gr\xf6\xdfe \U0001f600"),
        ("cp1252", b"gr\xf6\xdfe \\U0001f600"),
        ("utf-8", "größe 😀".encode()),
    ],
)
def test_characters_that_an_output_lacks(monkeypatch: pytest.MonkeyPatch, encoding: str, expected: bytes) -> None:
    out = Stdout(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert runs(monkeypatch, lambda: print("größe 😀", end="")) == 0
    assert out.text == expected


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_what_is_typed(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """A byte order mark is no part of it, other bytes than text are an error."""
    data = b"\xef\xbb\xbfone\n" if encoding == "utf-8" else b"one\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding))
    open_streams()
    assert sys.stdin.read() == "one\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding, errors="surrogateescape"))
    expected = (2, "can't decode byte 0xe9") if encoding == "utf-8" else (0, "")
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    assert (runs(monkeypatch, lambda: sys.stdin.read() and None), errors.getvalue().count("\n")) == (
        expected[0],
        1 if expected[0] else 0,
    )
    assert expected[1] in errors.getvalue()


ERRORS: dict[str, tuple[Exception, str]] = {
    "a file": (FileNotFoundError(errno.ENOENT, "No such file", "/a/b"), "'/a/b': No such file"),
    "no file": (OSError(errno.EADDRINUSE, "Address already in use"), "Address already in use"),
    "a library's": (OSError("it failed"), "it failed"),
    "memory": (MemoryError(), "out of memory"),
    "bytes of an argument": (
        UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed"),
        "expected text in UTF-8, found 'caf\\udce9'",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    error, expected = ERRORS[name]

    def run() -> None:
        raise error

    assert runs(monkeypatch, run) == 2
    assert capsys.readouterr().err == f"llama-cpp-eagle3: error: {expected}\n"


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        ("| head -1; exit ${PIPESTATUS[0]}", 0, b""),
        (">/dev/full", 2, b"llama-cpp-eagle3: error: standard output: No space left on device\n"),
        (">&-", 0, b""),
        ("<&- >&- 2>&-", 0, b""),
    ],
)
def test_streams_of_a_shell(redirection: str, status: int, said: bytes) -> None:
    result = shell(f"{' '.join(COMMAND)} serve --help-all {redirection}")
    assert (result.returncode, result.stderr) == (status, said)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(true)"])
def test_an_error_that_cannot_be_said(redirection: str) -> None:
    """It has its status all the same, with a name that is no text too."""
    result = shell(f"{' '.join(COMMAND)} inspect $'no such \\xff' {redirection}")
    assert (result.returncode, result.stdout) == (2, b"")


@pytest.mark.skipif(os.name != "posix", reason="names are text elsewhere")
def test_bytes_that_are_no_text(tiny_target: Any, tmp_path: Path) -> None:
    """A path may be any bytes, with any locale; a text may not."""
    name = os.fsencode(tmp_path) + b"/caf\xe9 gr\xc3\xb6\xc3\x9fe %s.gguf"
    os.symlink(os.fsencode(tiny_target.path), name)
    flags = [b"-n", b"2", b"-t", b"1", b"-c", b"256", b"--spec-type", b"none"]
    for locale in ("C.UTF-8", "C"):
        environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [*map(os.fsencode, COMMAND), b"speculative-simple", b"-m", name, *flags, b"-p"]
        good = subprocess.run([*command, b"a"], env=environment, capture_output=True, timeout=120)
        assert good.returncode == 0, good.stderr
        bad = subprocess.run([*command, b"caf\xe9"], env=environment, capture_output=True, timeout=120)
        assert bad.returncode == 2
        (said,) = bad.stderr.splitlines()
        assert b"error: argument -p/--prompt: expected text in UTF-8, found 'caf" in said
