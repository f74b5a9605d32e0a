"""A cache folder that cannot be written: it is said once, and nothing fails."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.files import cache_dir, trial, whole_file
from llama_cpp_eagle3.files.cache_dir import ENV_CACHE, keep
from llama_cpp_eagle3.files.json_file import read_json
from loading import load, take


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache_dir, "_refused", set())
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_that_is_a_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("")
    path = folder / "costs" / "a.json"
    assert not keep(path, "{}")
    assert not keep(folder / "priors" / "b.json", "{}")
    (text,) = caplog.messages
    assert text.startswith(f"cannot write '{path}', so what it is to keep is found out again at each start: ")
    assert text.endswith(f"; {ENV_CACHE} names another folder")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes FIFOs and links")
@pytest.mark.parametrize("kind", ["fifo", "device", "large"])
def test_what_has_no_end_is_not_read(folder: Path, kind: str) -> None:
    """Others may write to the folder: a FIFO would wait for its writer, a device and a sparse file fill the memory."""
    folder.mkdir()
    path = folder / "a.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(3 << 30)
    with pytest.raises(OSError, match="expected a regular file" if kind != "large" else "expected at most 64 MiB"):
        read_json(path)


@pytest.mark.parametrize("text", ["[" * 200_000, "1" * 1000, "{", "\xff"])
def test_what_is_no_json(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"."):
        read_json(folder / "a.json")


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_links_are_replaced(folder: Path, tmp_path: Path) -> None:
    """A link in the folder does not make a file elsewhere be overwritten."""
    other = tmp_path / "precious"
    other.write_text("precious")
    folder.mkdir()
    (folder / "a.json").symlink_to(other)
    assert keep(folder / "a.json", "{}")
    assert (other.read_text(), read_json(folder / "a.json")) == ("precious", {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes FIFOs")
def test_a_fifo_in_each_place(folder: Path, tiny_target: Any, tiny_head: Any) -> None:
    """Loading and drafting look at all that is kept, and wait for none of it."""
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        expected = take(llm, [1, 2, 3], 20)
    trial._remember("0")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"costs", folder.name}
    for path in files:
        path.unlink()
        os.mkfifo(path)
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        assert take(llm, [1, 2, 3], 20) == expected
    assert trial._known() == []
    trial._remember("0")


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_file.os, "replace", fail)
    assert not keep(folder / "costs" / "a.json", "{}")
    assert not keep(folder / "costs" / "a.json", "{}")
    (text,) = caplog.messages
    assert os.strerror(errno.ENOSPC) in text
    assert list(folder.rglob("*.part")) == []
