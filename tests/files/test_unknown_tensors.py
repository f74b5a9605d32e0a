"""Files with tensors that their graph does not have: they are named, whoever loads the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash import SHAPES, shape_of, write_dflash
from gguf_raw import Tensor, spoil
from llama_cpp_eagle3 import ModelFileError
from llama_cpp_eagle3.files import model_file, trial
from llama_cpp_eagle3.files.model_file import check_file
from loading import load
from random_arch import write_random_arch
from tiny import write_head

TRY_FILE = trial.try_file
F32 = 0


def add(n: int) -> Any:
    """A change that adds tensors to a file."""
    names = [f"blk.0.unknown_{i}.weight".encode() for i in range(n)]
    return lambda file: file.tensors.extend(Tensor(name, [4], F32, bytes(16)) for name in names)


@pytest.mark.parametrize(
    ("n", "named"),
    [(1, r"1 tensors .*: 'blk\.0\.unknown_0\.weight'"), (9, r"9 tensors .*'blk\.0\.unknown_7\.weight', \.\.\.")],
)
def test_a_head(tiny_target: Any, tmp_path: Path, n: int, named: str) -> None:
    path = spoil(Path(write_head(tmp_path / "head.gguf", tiny_target).path), add(n))
    with pytest.raises(ModelFileError, match=rf"spoilt-head\.gguf': {named}"):
        load(tiny_target, path)


@pytest.mark.parametrize(
    ("n", "named"), [(1, r"'blk\.0\.unknown_0\.weight'\."), (9, r"'blk\.0\.unknown_7\.weight', \.\.\.")]
)
def test_a_target(tmp_path: Path, n: int, named: str) -> None:
    path = spoil(write_random_arch(tmp_path, "llama"), add(n))
    with pytest.raises(ModelFileError, match=rf"graph of 'llama' has no place for {n} tensors of the file: .*{named}"):
        load(path)


def test_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` and `doctor` load a file in a child process alone."""
    monkeypatch.setattr(model_file, "try_file", TRY_FILE)
    path = spoil(write_random_arch(tmp_path, "llama"), add(1))
    with pytest.raises(
        ModelFileError, match=r"'llama' has no place for 1 tensors of the file: 'blk\.0\.unknown_0\.weight'"
    ):
        check_file(str(path), {}, True, is_all=True)


def test_a_block_drafter(tiny_target: Any, tmp_path: Path) -> None:
    """llama.cpp loads it beside a target."""
    assert "plain" in SHAPES
    shape = shape_of("plain", n_embd=tiny_target.n_embd, n_vocab=tiny_target.n_vocab)
    path = spoil(write_dflash(tmp_path / "dflash.gguf", shape), add(1))
    with pytest.raises(
        ModelFileError, match=r"'dflash' has no place for 1 tensors of the file: 'blk\.0\.unknown_0\.weight'"
    ):
        load(tiny_target, path)
