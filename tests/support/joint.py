"""Targets with two drafters: a block for multi-token prediction or a small model, and a head."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_cpp_eagle3._core import read_target
from mtp import write_able
from tiny import write_head


def write_both(folder: Path, row: str) -> tuple[str, str]:
    """Write a random target with a block, and a random head for it that reads hidden states of layers."""
    path = str(write_able(folder, row))
    return path, write_head_of(path, folder / f"{row}-head.gguf")


def write_head_of(path: str, out: Path) -> str:
    """Write a random head for a target's file; returns its path."""
    info = read_target(path)
    target = SimpleNamespace(arch=info.arch, path=path, n_embd=info.n_embd, n_layer=info.n_layer, n_vocab=info.n_vocab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny.head.add_vocab", lambda *args: None)  # this target's vocabulary is another one
        return write_head(out, target, boundaries=(0, 1, 2), n_embd=info.n_embd, n_vocab_dft=None).path
