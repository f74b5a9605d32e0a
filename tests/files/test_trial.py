"""A file that llama.cpp does not survive is refused after a trial in a process; any other is tried once."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llama_cpp.llama_chat_format import MTMDChatHandler

from gguf_raw import RawFile, set_key, spoil
from llama_cpp_eagle3 import ModelFileError, _core
from llama_cpp_eagle3.files import model_file, trial
from loading import load, take
from random_arch import write_random_arch
from vlm_pairs import load_vlm

TRY_FILE = trial.try_file


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """Try files, with a memory of their own; return how each trial ended."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_file, "try_file", TRY_FILE)
    ends: list[str | None] = []
    run = trial._run

    def record(request: Any) -> str | None:
        ends.append(run(request))
        return ends[-1]

    monkeypatch.setattr(trial, "_run", record)
    return ends


def test_a_good_file_is_tried_once(tmp_path: Path, trials: list[Any]) -> None:
    path = write_random_arch(tmp_path, "gpt-oss")
    for _ in range(2):
        with closing(load(path)) as llm:
            assert len(take(llm, [1, 2, 3], 3)) == 3
    assert trials == [None]
    # a trial depends on the header and the changed options, not on the name
    moved = path.rename(tmp_path / "other.gguf")
    load(moved).close()
    assert trials == [None]
    load(moved, kv_overrides={"gpt-oss.attention.sliding_window": 8}).close()
    load(moved, flash_attn=False).close()
    assert trials == [None] * 3
    load(moved, checked=False, kv_overrides={"gpt-oss.attention.sliding_window": 12}).close()
    assert trials == [None] * 3


def test_what_llama_cpp_does_not_survive(tmp_path: Path, trials: list[Any]) -> None:
    path = spoil(write_random_arch(tmp_path, "afmoe"), set_key("attention.sliding_window", 0))
    for n in (1, 2):
        with pytest.raises(ModelFileError, match=r"does not survive loading it: SIGSEGV.*checked=False") as info:
            load(path)
        assert str(path) in str(info.value)
        assert trials == ["SIGSEGV"] * n


def test_a_projector_that_llama_cpp_does_not_survive(tmp_path: Path, trials: list[Any]) -> None:
    vlm = load_vlm("qwen25vl")
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(Path(vlm.mmproj).read_bytes())
    for _ in range(2):
        load(vlm.path, mmproj_path=str(path)).close()
    assert trials == [None, None]  # the model's, and that of both

    def remove(file: RawFile) -> None:
        file.tensors = [t for t in file.tensors if t.name != b"v.patch_embd.weight.1"]

    bad = spoil(path, remove)
    with pytest.raises(ModelFileError, match=r"does not survive loading it: SIGSEGV") as info:
        load(vlm.path, mmproj_path=str(bad))
    assert str(bad) in str(info.value)
    with closing(load(vlm.path)) as llm, pytest.raises(ModelFileError, match=r"does not survive"):
        llm.chat_handler = MTMDChatHandler(clip_model_path=str(bad), verbose=False)


def test_what_it_refuses_is_an_error(tmp_path: Path, trials: list[Any]) -> None:
    path = spoil(write_random_arch(tmp_path, "llama"), set_key("attention.head_count", 3))
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load it: "):
        load(path)
    assert len(trials) == 1
    assert isinstance(trials[0], trial.Refusal)
    assert "attn_q" in trials[0].reason


def test_vocab_only(tmp_path: Path, trials: list[Any]) -> None:
    with closing(load(write_random_arch(tmp_path, "llama"), vocab_only=True)) as llm:
        assert llm.tokenize(b"hello")
    assert trials == [None]


@pytest.mark.parametrize(
    ("hang", "message"),
    [
        ("time.sleep(60)", "no answer within 0 seconds in"),
        ("_trial_child._limit(1)\nwhile True: pass", "no answer within 60 seconds of the processor in"),
    ],
)
def test_a_trial_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: str, message: str) -> None:
    child = tmp_path / "child.py"
    folder = str(trial._CHILD.parent)
    child.write_text(f"import sys, time\nsys.path.append({folder!r})\nimport _trial_child\n{hang}\n")
    monkeypatch.setattr(trial, "_CHILD", child)
    if "sleep" in hang:
        monkeypatch.setattr(trial, "TIMEOUT", 0.4)
    with pytest.raises(ModelFileError, match=message):
        load(write_random_arch(tmp_path, "llama"))


@pytest.mark.parametrize("why", ["no_interpreter", "error", "killed"])
def test_a_trial_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: list[Any], why: str
) -> None:
    """A trial that cannot be made is not the file's fault: it is loaded, and tried again the next time."""
    child = tmp_path / "child.py"
    child.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n" if why == "killed" else "1 / 0\n")
    monkeypatch.setattr(trial, "_CHILD", child)
    if why == "no_interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    path = write_random_arch(tmp_path, "llama")
    for _ in range(2):
        load(path).close()
    assert trials == ["", ""]


def test_a_cache_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """That is said once."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "file"))
    path = write_random_arch(tmp_path, "llama")
    for _ in range(2):
        load(path).close()
    assert trials == [None, None]
    (said,) = [text for text in caplog.messages if "cannot write" in text]
    assert str(tmp_path / "file") in said


def test_what_is_remembered_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_N_KEPT", 8)
    for i in range(20):
        trial._remember(f"{i:032x}")
    known = trial._known()
    assert 4 <= len(known) <= 8
    assert known[-1] == f"{19:032x}"


def test_header_size(tmp_path: Path) -> None:
    """Weights do not change a trial, so it does not read them."""
    path = write_random_arch(tmp_path, "llama")
    n_header = _core.check_header(str(path))
    assert 0 < n_header < path.stat().st_size - 100_000
