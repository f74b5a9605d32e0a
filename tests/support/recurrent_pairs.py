"""Random pairs whose target keeps a recurrent state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest

from random_arch import N_VOCAB, load_random_arch
from tiny import write_head

KINDS = {"lfm2": "snapshots", "qwen35": "snapshots", "qwen3next": "checkpoint", "mamba2": "checkpoint"}
"""Architecture -> its way of taking rejected tokens back."""


def write_pair(folder: Path, arch: str) -> tuple[str, str]:
    """Write a random target to a file, and a random head for it."""
    model = load_random_arch(folder, arch)
    path = folder / f"{arch}-model.gguf"
    llama_cpp.llama_model_save_to_file(model, str(path).encode())
    target = SimpleNamespace(
        arch=arch,
        path=str(path),
        n_embd=llama_cpp.llama_model_n_embd(model),
        n_layer=llama_cpp.llama_model_n_layer(model),
        n_vocab=N_VOCAB,
    )
    llama_cpp.llama_model_free(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny.head.add_vocab", lambda *args: None)  # this target's vocabulary is another one
        head = write_head(
            folder / f"{arch}-head.gguf", target, boundaries=(0, 1, 2), n_embd=target.n_embd, n_vocab_dft=None
        )
    return str(path), head.path
