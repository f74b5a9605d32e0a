"""A cache folder that cannot be written: it is said once, and nothing fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from llama_cpp_eagle3.files import cache_dir, whole_file
from llama_cpp_eagle3.files.cache_dir import ENV_CACHE, keep


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


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_file.os, "replace", fail)
    assert not keep(folder / "costs" / "a.json", "{}")
    assert not keep(folder / "costs" / "a.json", "{}")
    (text,) = caplog.messages
    assert os.strerror(errno.ENOSPC) in text
    assert list(folder.rglob("*.part")) == []
