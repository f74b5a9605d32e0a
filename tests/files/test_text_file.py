"""Text files are the same text, whichever editor wrote them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_cpp_eagle3.files.text_file import as_text, iter_lines, read_lines, read_text, whole_characters

TEXT = "größe 😀\n\n\x85 \u2028 next\n"
LINES = ["größe 😀", "", "\x85 \u2028 next"]

EDITORS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "Notepad": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "PowerShell 5": lambda text: b"\xff\xfe" + text.replace("\n", "\r\n").encode("utf-16-le"),
    "UTF-16, big endian": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "PowerShell 5, UTF-32": lambda text: b"\xff\xfe\0\0" + text.encode("utf-32-le"),
    "UTF-32, big endian": lambda text: b"\0\0\xfe\xff" + text.encode("utf-32-be"),
}


@pytest.mark.parametrize("editor", EDITORS)
def test_editors(tmp_path: Path, editor: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(EDITORS[editor](TEXT))
    assert read_text(path) == as_text(path.read_bytes(), "here") == TEXT
    assert read_lines(path) == list(iter_lines(path)) == LINES
    path.write_bytes(EDITORS[editor](TEXT.removesuffix("\n")))
    assert read_lines(path) == list(iter_lines(path)) == LINES
    for name, pack in {
        "a.txt.GZ": gzip.compress,
        "a": gzip.compress,
        "a.bz2": bz2.compress,
        "xz": lzma.compress,
    }.items():
        packed = tmp_path / name
        packed.write_bytes(pack(path.read_bytes()))
        assert list(iter_lines(packed)) == LINES


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert read_text(tmp_path / "a") == ""
    assert read_lines(tmp_path / "a") == list(iter_lines(tmp_path / "a")) == []


def test_a_mark_within_a_text_and_lone_returns_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("a\ufeffb\rc".encode())
    assert read_text(tmp_path / "a") == "a\ufeffb\rc"


def test_marks_of_files_that_were_joined(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\r\n")
    assert read_lines(tmp_path / "a") == list(iter_lines(tmp_path / "a")) == ["one", "two"]


@pytest.mark.parametrize("data", [b"a\0\n", b"\0\xd8x\0\n\0"], ids=["cut off", "half a character"])
def test_damaged_utf_16(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe" + data)
    with pytest.raises(ValueError, match=r"a\.txt': expected text in UTF-16"):
        list(iter_lines(tmp_path / "a.txt"))


def test_no_text(tmp_path: Path) -> None:
    """One reader names the file; the other one keeps the bytes of the line, and reads on."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\ncaf\xe9\nb\n")
    for read in (read_text, read_lines):
        with pytest.raises(ValueError, match=r"a\.txt': expected text in UTF-8: .* 0xe9"):
            read(path)
    assert list(iter_lines(path)) == ["a", "caf\udce9", "b"]


def test_utf_16_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a key\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"a\.txt': expected text, found a NUL character"):
        read_lines(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("packer", "data"),
    [("zip", b"PK\3\4..."), ("zstd", b"\x28\xb5\x2f\xfd..."), ("7-zip", b"7z\xbc\xaf..."), ("bz2", b"BZh91AY&SY..."),
     ("lzma", lzma.compress(b"line\n" * 9999)[:-20])],
)  # fmt: skip
def test_files_that_are_not_unpacked(tmp_path: Path, packer: str, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=rf"a\.jsonl': {packer} (has packed it|cannot unpack it)"):
        list(iter_lines(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b"line\n" * 9999)[:-20]], ids=["other", "cut off"])
def test_damaged_gzip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.gz': gzip cannot unpack it"):
        list(iter_lines(tmp_path / "a.gz"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("größe 😀", "größe 😀"),
        ("gr\udcc3\udcb6\udcc3\udc9fe", "größe"),  # as a path in the locale C
        ("caf\udce9.gguf", "caf\ufffd.gguf"),
        ("a\ud83d b\ude00 \udce9", "a\ufffd b\ufffd \ufffd"),
    ],
)
def test_half_surrogates(text: str, expected: str) -> None:
    assert whole_characters(text) == expected


def test_a_text_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_cpp_eagle3.files.text_file._N_MAX", 1 << 20)
    for read in (read_text, lambda path: list(iter_lines(path))):
        with pytest.raises(ValueError, match="'/dev/zero': expected a text of at most 1 MiB, found more"):
            read("/dev/zero")


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_cpp_eagle3.files.text_file._N_MAX", 1000)
    path = tmp_path / "long.jsonl"
    path.write_text("short\n" + "a" * 1001)
    with pytest.raises(OSError, match=r"lines of at most 1,000 characters, found a longer one: .*long\.jsonl'"):
        list(iter_lines(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes FIFOs")
@pytest.mark.parametrize("read", [read_lines, lambda path: list(iter_lines(path))], ids=["whole", "lines"])
def test_pipes(read: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a shell are read, and a FIFO if something writes to it, however late."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with monkeypatch.context() as changed:
        changed.setattr("llama_cpp_eagle3.files.text_file._FIFO_SECONDS", 0.1)
        with pytest.raises(OSError, match=r"it is a FIFO that nothing writes to: .*fifo'"):
            read(fifo)
    for script in (f"exec > '{fifo}'; echo one; sleep 0.5; echo two", f"echo one > '{fifo}'"):
        with subprocess.Popen(["sh", "-c", script]):
            assert read(fifo) == ["one", "two"][: script.count("echo")]
    for script, lines in (
        ("sleep 0.3; echo one", ["one"]),
        ("true", []),
        ("printf 'one\\ntwo' | gzip", ["one", "two"]),
    ):
        if lines != ["one", "two"] or read is not read_lines:
            with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as writer:
                assert writer.stdout is not None
                assert read(Path(f"/dev/fd/{writer.stdout.fileno()}")) == lines
