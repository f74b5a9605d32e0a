"""tools/upstream.py: its comparisons, and that the record is of this release."""

from __future__ import annotations

import inspect
from pathlib import Path

import llama_cpp
import pytest

import upstream

ROOT = Path(__file__).parents[2]


def test_differences() -> None:
    old = {"a": {"same": 1, "gone": "x", "list": ["p", "q"]}, "n": 1}
    new = {"a": {"same": 1, "come": "y", "list": ["q", "r"]}, "n": 2}
    assert list(upstream.differences(old, new)) == [
        *("- a: gone: x", "- a: list: p", "+ a: list: r", "+ a: come: y", "  n: 1 -> 2"),
    ]
    assert list(upstream.differences({"l": [1, 2]}, {"l": [2, 1]})) == ["  l: in another order"]
    assert list(upstream.differences(old, old)) == []


def test_recorded() -> None:
    known = upstream.pinned_release()
    assert known["version"] == upstream.PIN.read_text().strip()
    assert set(known) == {*upstream.PARTS, "version", "chat code compiles"}
    assert known["chat code compiles"]
    assert all((ROOT / name).is_file() for name in upstream.TESTS)
    files = known["spoilt files"]
    assert (files["cases"], files["signals"], files["hangs"], files["unclean"]) == (300, 0, 0, 0)
    assert "| trim | tree | yes" in known["architectures"]["llama"]
    assert len(known["architectures"]) > 120
    arguments = inspect.signature(llama_cpp.Llama.__init__).parameters
    assert known["surface"]["Llama's arguments"] == {name: repr(p.default) for name, p in arguments.items()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs git")
def test_the_copy_has_another_pin(tmp_path: Path) -> None:
    trial = upstream.Trial("9.9.9", tmp_path)
    trial._copy()
    assert (trial.source / "vendor" / "llama_cpp_python_version").read_text().strip() == "9.9.9"
    assert "llama-cpp-python==9.9.9" in (trial.source / "pyproject.toml").read_text()
    assert 'LLAMA_CPP_PYTHON_VERSION = "9.9.9"' in (trial.source / "llama_cpp_eagle3" / "_version.py").read_text()
    gone = trial.source / "llama_cpp_eagle3" / "_chat.py"
    gone.write_text("")
    trial._copy()
    assert not gone.exists()
