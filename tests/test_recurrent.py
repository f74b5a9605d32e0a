"""Targets with a recurrent state: fine alone, refused with a head, because rejected tokens cannot be taken back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
from random_arch import N_VOCAB, load_random_arch
from tiny import write_head

from llama_cpp_eagle3 import Eagle3Llama, IncompatibleDraftError


@pytest.fixture(scope="module")
def hybrid_target(tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("hybrid")
    model = load_random_arch(folder, "lfm2")
    path = folder / "lfm2.gguf"
    llama_cpp.llama_model_save_to_file(model, str(path).encode())
    n_embd, n_layer = llama_cpp.llama_model_n_embd(model), llama_cpp.llama_model_n_layer(model)
    llama_cpp.llama_model_free(model)
    return SimpleNamespace(path=str(path), n_embd=n_embd, n_layer=n_layer, n_vocab=N_VOCAB)


def test_refused_with_a_head(hybrid_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiny.head.add_vocab", lambda *args: None)  # this target's vocabulary is not the usual one
    head = write_head(
        tmp_path / "head.gguf", hybrid_target, boundaries=(0, 1, 2), n_embd=hybrid_target.n_embd, n_vocab_dft=None
    )
    with pytest.raises(IncompatibleDraftError, match=r"lfm2.*recurrent state"):
        Eagle3Llama(hybrid_target.path, draft_model_path=head.path, n_ctx=64, verbose=False)


def test_plain(hybrid_target: Any) -> None:
    tokens = [1, 5, 9, 13]
    out = []
    for cls in (llama_cpp.Llama, Eagle3Llama):
        llm = cls(hybrid_target.path, n_ctx=64, verbose=False)
        generator = llm.generate(tokens, temp=0.0)
        out.append([next(generator) for _ in range(20)])
        generator.close()
        llm.close()
    assert out[0] == out[1]
