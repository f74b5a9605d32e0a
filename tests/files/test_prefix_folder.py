"""Files of prefixes: only written prefixes come back, whatever the folder holds, and failures are reported."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3._core import SavedState
from llama_cpp_eagle3.engine import StoredPrefix
from llama_cpp_eagle3.files import prefix_file, prefix_folder
from llama_cpp_eagle3.files.prefix_file import (
    MAGIC,
    Maker,
    PrefixFileError,
    read_head,
    read_prefix,
    size_of,
    write_prefix,
)
from llama_cpp_eagle3.files.prefix_folder import PrefixFolder, open_folder

MAKER = Maker("target", {"type_k": 1, "lora": [["a", 1.0]]}, "draft")


def stored(n: int = 5, n_bytes: int = 100) -> StoredPrefix:
    states = [(2, SavedState(2, b"ab")), (n, SavedState(n, b"c" * 7))]
    return StoredPrefix([7 - i for i in range(n)], bytes(range(n_bytes)), b"draft", states, 3)


def same(a: StoredPrefix, b: StoredPrefix) -> bool:
    states = [[(n, state.n_past, state.data) for n, state in x.states] for x in (a, b)]
    return (a.tokens, a.target, a.draft, a.n_turn) == (b.tokens, b.target, b.draft, b.n_turn) and states[0] == states[1]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrefixFolder]:
    opened = open_folder(tmp_path / "cache", 1 << 20, MAKER)
    assert opened is not None
    yield opened
    opened.close()


# files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, before = tmp_path / "file", stored()
    assert write_prefix(path, MAKER, before) == path.stat().st_size == size_of(MAKER, before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    head, found = read_prefix(path)
    assert same(found, before)
    assert head == read_head(path)
    assert (head.maker, head.n_file_bytes) == (MAKER, path.stat().st_size)


def test_any_bit_that_is_another_one(tmp_path: Path) -> None:
    """A changed bit is found in every byte: magic, lengths, JSON, tokens, both digests and the data between."""
    path = tmp_path / "file"
    write_prefix(path, MAKER, stored())
    data = path.read_bytes()
    n_head = read_head(path).n_bytes
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :])
        with pytest.raises(PrefixFileError):
            read_prefix(path)
        if i < n_head:
            with pytest.raises(PrefixFileError):
                read_head(path)


def test_any_other_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_prefix(path, MAKER, stored())
    data = path.read_bytes()
    for found in (*(data[:n] for n in range(len(data))), data + b"x", data + data):
        path.write_bytes(found)
        for read in (read_head, read_prefix):
            with pytest.raises(PrefixFileError):
                read(path)


def test_what_differs_is_named() -> None:
    assert MAKER.differs(MAKER) == ""
    for other, word in (
        (Maker("x", MAKER.settings, "draft"), "another target"),
        (Maker("target", MAKER.settings, ""), "another draft: fingerprint none"),
        (Maker("target", {"type_k": 8}, "draft"), "another lora: null"),
        (Maker("target", dict(MAKER.settings) | {"type_k": 8}, "draft"), "another type_k: 8, this one has 1"),
        (Maker("target", MAKER.settings, "draft", {"draft_type_k": 8}), "another draft_type_k: 8, this one has null"),
    ):
        assert word in MAKER.differs(other)
        is_of_draft = "draft" in word
        assert (MAKER.key == other.key) == is_of_draft
        assert MAKER.has_draft_of(other) != is_of_draft


# the folder


def names(folder: PrefixFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_a_restart(folder: PrefixFolder) -> None:
    """The last used files come first; the folder is for its owner alone."""
    files = [folder.write(stored(n), ()).result() for n in (3, 4, 5)]
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    for age, file in enumerate(files):
        assert file is not None
        os.utime(folder.path / file.name, (time.time() + age, time.time() + age))
    for _ in range(2):
        again = open_folder(folder.path, 1 << 20, MAKER)
        assert again is not None
        found = list(again.entries())
        assert [entry.file for entry in found] == files[::-1]
        entry = found[0]
        assert (entry.tokens, entry.n_turn, entry.n_memory_bytes, entry.is_state) == (stored(5).tokens, 3, 114, False)
        read = again.read(entry.file).result()
        assert read is not None
        assert same(read, stored(5))


@pytest.mark.parametrize("draft", [("another",), ("draft", {"draft_type_k": 8})])
def test_another_draft(folder: PrefixFolder, draft: Any) -> None:
    """With another draft, or other types of its K/V, the prefix is found, without the draft's part."""
    file = folder.write(stored(), ()).result()
    assert file is not None
    other = PrefixFolder(folder.path, 1 << 20, Maker("target", MAKER.settings, *draft))
    assert [entry.file for entry in other.entries()] == [file]
    read = other.read(file).result()
    assert read is not None
    assert (read.draft, read.target) == (b"", stored().target)


def test_others_are_left_alone(folder: PrefixFolder, caplog: pytest.LogCaptureFixture) -> None:
    """Other models' and settings' files, notes, links and folders are neither read nor removed; a line counts files."""
    folder.write(stored(), ()).result()
    for maker in (Maker("another", MAKER.settings, ""), Maker("target", {"type_k": 8}, "draft")):
        PrefixFolder(folder.path, 1 << 20, maker).write(stored(), ()).result()
    (folder.path / "README").write_text("mine")
    (folder.path / "x.prefix").write_text("mine")
    name = folder._name_of([1], is_state=False)
    (folder.path / name).symlink_to(folder.path / "README")
    (folder.path / folder._name_of([2], is_state=False)).mkdir()
    before = names(folder)
    with caplog.at_level("INFO", "llama_cpp_eagle3"):
        assert len(list(PrefixFolder(folder.path, 1 << 20, MAKER).entries())) == 1
    assert names(folder) == before
    assert ["2 files" in text and "of other models, settings or versions" in text for text in caplog.messages] == [True]


def test_another_version(folder: PrefixFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another version of the format is another maker's; with our name it is damaged."""
    file = folder.write(stored(), ()).result()
    assert file is not None
    data = (folder.path / file.name).read_bytes()
    (folder.path / file.name).write_bytes(data.replace(MAGIC, b"EAGLE3SLOT\x03\n"))
    assert folder.read(file).result() is None
    monkeypatch.setattr(prefix_file, "MAGIC", b"EAGLE3SLOT\x05\n")
    assert Maker("target", MAKER.settings, "draft").key[:16] != file.name[:16]


@pytest.mark.parametrize("at", [0, 20, 200, -40, -1])
def test_damaged(folder: PrefixFolder, caplog: pytest.LogCaptureFixture, at: int) -> None:
    """A damaged file is dropped with a line in the log, at the start or when it is read."""
    file = folder.write(stored(), ()).result()
    assert file is not None
    path = folder.path / file.name
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    found = list(PrefixFolder(folder.path, 1 << 20, MAKER).entries())
    if found:
        assert folder.read(file).result() is None
    assert not path.exists()
    assert len(caplog.messages) == 1
    assert str(path) in caplog.text
    assert "is dropped" in caplog.text
    assert folder.read(file).result() is None  # the file is gone now
    assert len(caplog.messages) == 1


def test_files_of_other_users(folder: PrefixFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(stored(), ()).result()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not list(PrefixFolder(folder.path, 1 << 20, MAKER).entries())
    assert len(names(folder)) == 1


def test_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert open_folder(tmp_path, 1 << 20, MAKER) is None
    assert [str(tmp_path) in text and "belongs to another user" in text for text in caplog.messages] == [True]


def test_no_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert open_folder(tmp_path / "file", 1 << 20, MAKER) is None
    assert open_folder(tmp_path / "file" / "folder", 1 << 20, MAKER) is None
    assert len(caplog.messages) == 2


def test_a_read_only_folder(
    folder: PrefixFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Existing files are read; one line says that nothing new is written."""
    file = folder.write(stored(), ()).result()
    assert file is not None
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    again = open_folder(folder.path, 1 << 20, MAKER)
    assert again is not None
    assert again.write(stored(8), ()).result() is None
    assert again.write(stored(9), ()).result() is None
    assert again.read(file).result() is not None
    assert ["Read-only" in text for text in caplog.messages] == [True]


def test_a_full_disk(folder: PrefixFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A file that did not fit leaves nothing, one line says so, and once there is room again writing continues."""
    usage = shutil.disk_usage(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
        assert [folder.write(stored(n), ()).result() for n in (5, 6)] == [None, None]
    small = folder.write(stored(1), ()).result()  # fits in what a full disk has left
    assert small is not None
    os.unlink(folder.path / small.name)
    with monkeypatch.context() as patch:

        def fail(*args: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "replace", fail)
        assert folder.write(stored(7), ()).result() is None
    assert names(folder) == []
    assert ["No space left" in text for text in caplog.messages] == [True]
    assert folder.write(stored(), ()).result() is not None


def test_what_others_wrote_goes_first(folder: PrefixFolder) -> None:
    """The oldest files of other processes go first; the engine removes its own."""
    other = PrefixFolder(folder.path, 1 << 20, Maker("another", {}, ""))
    theirs = [other.write(stored(n), ()).result() for n in (5, 6, 7)]
    for age, file in enumerate(theirs):
        assert file is not None
        os.utime(folder.path / file.name, (1e9 + age, 1e9 + age))
    mine = folder.write(stored(), ()).result()
    assert mine is not None
    size = sum(path.stat().st_size for path in folder.path.iterdir())
    folder.n_bytes_max = size + mine.n_bytes // 2
    new = folder.write(stored(8), {mine.name}).result()
    assert new is not None
    assert names(folder) == sorted([theirs[1].name, theirs[2].name, mine.name, new.name])  # type: ignore[union-attr]
    assert sum(path.stat().st_size for path in folder.path.iterdir()) <= folder.n_bytes_max


def test_what_a_killed_process_was_writing(folder: PrefixFolder) -> None:
    """A partly written file is removed once it is too old to be in progress."""
    name = folder._name_of([1, 2, 3], is_state=True)
    parts = [folder.path / f".{name}.{'0' * 15}{i}.part" for i in range(2)]
    for part in parts:
        part.write_bytes(b"x")
    os.utime(parts[0], (1e9, 1e9))
    assert all(prefix_folder._PART.fullmatch(part.name) for part in parts)
    list(folder.entries())
    assert names(folder) == [parts[1].name]


CHILD = """
import sys, time
from pathlib import Path
from llama_cpp_eagle3.files.whole_file import whole_file
with whole_file(Path(sys.argv[1]), mode=0o600, follows=False) as part:
    part.write_bytes(b"half")
    print(part.name, flush=True)
    sys.stdin.readline()
    part.write_bytes(b"whole")
print("renamed", flush=True)
"""


def test_what_a_living_process_is_writing(folder: PrefixFolder) -> None:
    """It is left alone however old it is, also where there is no room, and removed once that process was killed."""
    name = folder._name_of([1, 2, 3], is_state=False)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, folder.path / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        part = folder.path / child.stdout.readline().strip()
        os.utime(part, (1e9, 1e9))
        list(folder.entries())
        folder.n_bytes_max = 3
        assert folder.write(stored(), ()).result() is None
        folder.n_bytes_max = 1 << 20
        assert names(folder) == [part.name]
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "renamed\n"
    assert names(folder) == [name]
    assert (folder.path / name).read_bytes() == b"whole"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, folder.path / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        part = folder.path / child.stdout.readline().strip()
        child.kill()
        child.wait()
    os.utime(part, (1e9, 1e9))
    assert part.exists()
    list(folder.entries())
    assert not part.exists()


@pytest.mark.skipif(os.name != "posix", reason="links and FIFOs")
def test_links_and_fifos(folder: PrefixFolder, tmp_path: Path) -> None:
    """What a link names is neither read, touched nor written; a FIFO in the place of a file does not block."""
    file = folder.write(stored(), ()).result()
    assert file is not None
    path, outside = folder.path / file.name, tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    os.utime(outside, (1e9, 1e9))
    before = outside.read_bytes(), outside.stat().st_mtime
    path.unlink()
    path.symlink_to(outside)
    assert not list(folder.entries())
    assert folder.read(file).result() is None
    folder.touch(file)
    folder.remove([])
    assert folder.write(StoredPrefix(stored().tokens, b"new", b"", [], 0), ()).result() is not None
    assert (outside.read_bytes(), outside.stat().st_mtime) == before
    assert not path.is_symlink()
    assert read_prefix(path)[1].target == b"new"
    path.unlink()
    path.symlink_to(tmp_path / "none")
    assert folder.write(stored(), ()).result() is not None
    assert not (tmp_path / "none").exists()
    path.unlink()
    os.mkfifo(path)
    assert folder.read(file).result() is None
    assert not list(folder.entries())


def sealed(text: bytes, rest: bytes = b"") -> bytes:
    """A file with this JSON whose checksums are right."""
    head = MAGIC + struct.pack("<I", len(text)) + text
    head += hashlib.sha256(head).digest()
    return head + rest + hashlib.sha256(head + rest).digest()


GOOD: dict[str, Any] = {
    "target": "target", "settings": dict(MAKER.settings), "draft": "draft",
    "n_tokens": 0, "n_turn": 0, "n_target": 0, "n_draft": 0, "states": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"settings":' + b"[" * 900 + b"]" * 900 + b"}", b"null", b"\xff\xfe{}"),
        *(
            json.dumps(GOOD | {"n_tokens": value}).encode()
            for value in (1.0, "0", None, True, -1, 1 << 62, 10**400, [])
        ),
        *(json.dumps(GOOD | {"n_target": value}).encode() for value in (1 << 62, 10**4000, -(10**400), 0.5)),
        json.dumps(GOOD).replace('"n_tokens": 0', '"n_tokens": 1e999').encode(),
        json.dumps(GOOD).replace('"n_turn": 0', '"n_turn": ' + "9" * 5000).encode(),
        json.dumps(GOOD).replace('"n_turn": 0', '"n_turn": NaN').encode(),
        *(
            json.dumps(GOOD | {"states": value}).encode()
            for value in (1, [1], [[1, 1, 1]], [[0, 0, 0]], [[0, 0]], "abc")
        ),
        *(json.dumps(GOOD | {"states": [[0, value, 1]]}).encode() for value in (1 << 40, -1, 10**400)),
        *(
            json.dumps(GOOD | {name: value}).encode()
            for name in ("settings", "draft_settings")
            for value in (1, "a", [1])
        ),
        *(json.dumps(GOOD | {name: 1}).encode() for name in ("target", "draft")),
        json.dumps([GOOD]).encode(),
    ],
    ids=lambda text: text[:40].decode("latin-1"),
)
def test_headers_that_no_one_wrote(folder: PrefixFolder, caplog: pytest.LogCaptureFixture, text: bytes) -> None:
    """Whatever a header says, with right checksums too, the file is dropped, and others are found."""
    good = folder.write(stored(), ()).result()
    name = f"{MAKER.key[:16]}-{'0' * 24}.prefix"
    (folder.path / name).write_bytes(sealed(text, b"x"))
    for read in (read_head, read_prefix):
        with pytest.raises(PrefixFileError):
            read(folder.path / name)
    assert [entry.file for entry in folder.entries()] == [good]
    assert [name in line and "is dropped" in line for line in caplog.messages] == [True]
    assert names(folder) == [good.name]  # type: ignore[union-attr]


def test_default_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((4 << 30, 1 << 30), (1 << 40, 8 << 30)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(1 << 50, 0, free))
        folder = open_folder(tmp_path, None, MAKER)
        assert folder is not None
        assert folder.n_bytes_max == expected
