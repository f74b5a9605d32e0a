"""Conveniences: types by name, paths, positional arguments, messages about devices in use."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from llama_cpp_eagle3 import Eagle3Llama, ModelFileError
from llama_cpp_eagle3.machine import default_threads
from llama_cpp_eagle3.model import loaded, target
from loading import load, take


def test_types_by_name(tiny_target: Any, tiny_head: Any) -> None:
    with closing(
        load(tiny_target, tiny_head, draft_type="Q8_0", type_k="F16", type_v="bf16", draft_type_k="f16")
    ) as llm:
        assert llm.draft_type == 8
        assert (llm.context_params.type_k, llm.context_params.type_v) == (1, 30)
        assert len(take(llm, [1, 2, 3], 5)) == 5
    with pytest.raises(ValueError, match=r"draft_type: expected one of f32 \(0\), .*, found 'q9'"):
        load(tiny_target, tiny_head, draft_type="q9")


def test_target_and_head_by_position(tiny_target: Any, tiny_head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(tiny_target.path).parent))
    paths = [os.path.join("~", Path(m.path).name) for m in (tiny_target, tiny_head)]
    with Eagle3Llama(*paths, verbose=False, draft_n_max=2) as llm:
        assert llm.draft_model_path == tiny_head.path
        assert repr(llm) == (
            f"<Eagle3Llama {tiny_target.path!r} draft={tiny_head.path!r} n_ctx={llm.n_ctx()} n_parallel=1>"
        )
        assert llm.n_threads == llm.n_threads_batch == default_threads()
    assert repr(llm) == "<Eagle3Llama closed>"


def test_pointers_of_git_lfs(tiny_target: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 639158176\n")
    for pair in ((path, None), (tiny_target, path)):
        with pytest.raises(ModelFileError, match=r"model.gguf': a pointer of Git LFS .* `git lfs pull`"):
            load(*pair)


def test_what_runs_where(
    tiny_target: Any, tiny_head: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Gpu:
        name, description, memory = "GPU7", "a card", (1 << 30, 1 << 30)

    with caplog.at_level(logging.DEBUG, "llama_cpp_eagle3"):
        load(tiny_target, tiny_head).close()
        assert "target on CPU; head on CPU; 1 CPU threads" in caplog.text
        assert "n_gpu_layers=-1" not in caplog.text
        for module in (loaded, target):
            monkeypatch.setattr(module, "local_accelerators", lambda: [Gpu()])
        load(tiny_target).close()
        assert "runs on the CPU although this machine has GPU7 (a card): use n_gpu_layers=-1" in caplog.text
        with load(tiny_target, n_gpu_layers=-1) as llm:
            n = tiny_target.n_layer + 1
            assert f"target {n} of {n} layers (with the output's) on GPU7" in llm.loaded.where
            assert llm.loaded.where in caplog.text


def test_fixed_drafts_without_weights(tiny_target: Any, caplog: pytest.LogCaptureFixture) -> None:
    """N-grams alone draft in auto; chains and trees that nobody can draft are told."""
    text = {"draft_sources": ("ngram",)}
    for options, mode, told in (
        (text | {"draft_n_max": 4}, "auto", ""),
        (text | {"draft_p_min": 0.5, "draft_tree_topk": 2}, "auto", ""),
        (text | {"draft": "chain"}, "chain", "nothing is drafted: chains"),
        (text | {"draft": "tree"}, "tree", "nothing is drafted: trees"),
        ({"draft": "chain", "draft_n_max": 4}, "chain", "nothing is drafted: chains"),
        ({"draft_n_max": 4}, "auto", ""),
        ({"draft_n_max": 0}, "chain", ""),
        ({"draft_n_max": 4, "draft_sources": ()}, "chain", ""),
        ({"draft_n_max": 4, "draft_model": LlamaPromptLookupDecoding()}, "chain", ""),
        ({}, "auto", ""),
    ):
        caplog.clear()
        with load(tiny_target, **options) as llm:
            assert llm.draft == mode
            assert llm.draft_ngram_n_max == (options.get("draft_n_max") or 64)
        warnings = [r.getMessage() for r in caplog.records if r.getMessage().startswith("nothing is drafted")]
        assert [warning.startswith(told) for warning in warnings] == ([True] if told else [])


def test_verbose_shows_the_log(tiny_target: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """verbose shows the log if logging is not set up."""
    log = logging.getLogger("llama_cpp_eagle3")
    handlers, log.propagate = log.handlers.copy(), False
    try:
        load(tiny_target).close()
        assert "Eagle3Llama: " not in capsys.readouterr().err
        load(tiny_target, verbose=True).close()
        assert "Eagle3Llama: target on CPU; 1 CPU threads" in capsys.readouterr().err
    finally:
        log.handlers[:], log.propagate = handlers, True
        log.setLevel(logging.NOTSET)
