"""verbose=True prints no more than Llama does, and our own messages in lines of their own."""

from __future__ import annotations

import gc
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import Llama

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.model.target import load_target
from loading import path_of

OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "verbose": True}


def printed(llm: Any, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return all lines from before loading until after closing."""
    with closing(llm):
        llm.create_completion("the", max_tokens=8, temperature=0)
    del llm
    gc.collect()
    out, err = capfd.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize("has_head", [False, True])
def test_lines(
    has_head: bool,
    tiny_target: Any,
    tiny_head: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    theirs = printed(Llama(path_of(tiny_target), **OPTIONS), capfd)
    assert len(theirs) > 100
    head = path_of(tiny_head) if has_head else None
    caplog.clear()
    ours = printed(Eagle3Llama(path_of(tiny_target), head, **OPTIONS), capfd)
    told = [record for record in caplog.records if record.name == "llama_cpp_eagle3"]  # pytest handles these itself
    told = [record for record in told if "other programs had" not in record.getMessage()]  # on a busy machine
    assert 0 < len(told) <= (5 if has_head else 2), told
    assert len(ours) <= len(theirs) + (5 if has_head else 0)  # a line for each layer that is read
    quiet = printed(Eagle3Llama(path_of(tiny_target), head, **OPTIONS | {"verbose": False}), capfd)
    assert quiet == []


def test_quiet_before_devices_are_asked_for(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU drivers print lines when they are first called; llama_cpp shows them until its log is switched off."""
    theirs = logging.getLogger("llama-cpp-python")
    monkeypatch.setattr(theirs, "level", logging.NOTSET)
    levels = []

    def noted(*args: Any) -> Any:
        levels.append(theirs.level)
        return load_target(*args)

    monkeypatch.setattr("llama_cpp_eagle3.llama.llama.load_target", noted)
    with closing(Eagle3Llama(path_of(tiny_target), **OPTIONS | {"verbose": False})):
        assert levels == [logging.ERROR]
