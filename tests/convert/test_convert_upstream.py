"""Converted heads in llama.cpp itself: it runs those that it can express, and refuses the others by name."""

from contextlib import ExitStack

import llama_cpp
import numpy as np
import pytest

from checkpoints import FAMILIES, write_family
from llama_cpp_eagle3_heads.convert import convert
from llamacpp_head import LlamaCppHead, rel_error
from reference import ReferenceHead
from tiny import Head, write_head, write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("upstream") / "target.gguf", n_layer=8, rope_theta=500000.0)


def make(tmp_path, name, target) -> Head:
    """Convert a checkpoint; llama.cpp runs a head by itself only if it has its own embedding."""
    family = FAMILIES[name]
    head = write_head(tmp_path / "unused.gguf", target, **(family.variant | {"own_embd": True}))
    write_family(tmp_path / name, family, head)
    path = convert(tmp_path / name, target.path, tmp_path / "out.gguf", outtype="f32").path
    return Head(str(path), head.arch, head.variant, head.target, head.weights, head.d2t)


@pytest.mark.parametrize(
    "name",
    [
        "safeailab",
        "safeailab_own_embedding",
        "specforge",
        "specforge_full_vocabulary",
        "qwen3.5",
        "angelslim",
        "speculators",
        "llama4",
        "modelopt_v3",
        "transformers_5",
    ],
)
def test_llama_cpp_runs_it(name, tmp_path, target):
    head = make(tmp_path, name, target)
    assert head.arch == "eagle3"
    rng = np.random.default_rng(7)
    n, n_steps = 20, 4
    rows = rng.normal(0.0, 2.0, (n, head.n_embd_inp))
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, n + 1)]
    reference = ReferenceHead(head)
    reference.process(rows, tokens[:n], 0)
    want = reference.propose(tokens[n], n_steps)
    with ExitStack() as stack:
        llama = LlamaCppHead(head, stack)
        logits, state = llama.decode(tokens[1:], llama.encode(rows), 0)
        for step in range(n_steps):
            assert rel_error(logits, want.logits[step]) < 1e-4
            assert rel_error(state, want.states[step]) < 1e-4
            logits, state = llama.decode([want.ids[step]], state[None], n + step)


def test_llama_cpp_shares_the_targets_embedding(tmp_path, target, monkeypatch):
    """For a head without its own embedding, as most are, llama.cpp finds the target's through ctx_other."""
    family = FAMILIES["speculators"]
    head = write_head(tmp_path / "unused.gguf", target, **family.variant)
    write_family(tmp_path / "head", family, head)
    head.path = str(convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="f32").path)
    rng = np.random.default_rng(7)
    rows = rng.normal(0.0, 2.0, (12, head.n_embd_inp))
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, 13)]
    reference = ReferenceHead(head)
    reference.process(rows, tokens[:12], 0)
    want = reference.propose(tokens[12], 2)

    llm = llama_cpp.Llama(target.path, n_ctx=64, verbose=False)
    default_params = llama_cpp.llama_context_default_params

    def params():
        cparams = default_params()
        cparams.ctx_other = llm.ctx
        return cparams

    monkeypatch.setattr(llama_cpp, "llama_context_default_params", params)
    with ExitStack() as stack:
        llama = LlamaCppHead(head, stack)
        logits, state = llama.decode(tokens[1:], llama.encode(rows), 0)
        assert rel_error(logits, want.logits[0]) < 1e-4
        logits, _ = llama.decode(want.ids[:1], state[None], 12)
        assert rel_error(logits, want.logits[1]) < 1e-4
    llm.close()


@pytest.mark.parametrize("name", ["specforge_3.1", "speculators_qwen3", "two_layers", "nemo"])
def test_llama_cpp_refuses_what_it_cannot_express(name, tmp_path, target, capfd):
    head = make(tmp_path, name, target)
    assert head.arch == "eagle3-ext"
    lines = []
    callback = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode()))
    llama_cpp.llama_log_set(callback, None)
    try:
        model = llama_cpp.llama_model_load_from_file(head.path.encode(), llama_cpp.llama_model_default_params())
    finally:
        from llama_cpp import _logger

        llama_cpp.llama_log_set(_logger.llama_log_callback, None)
    assert not model
    assert "unknown model architecture: 'eagle3-ext'" in "".join(lines)


def test_without_a_tokenizer(tmp_path, target):
    """llama.cpp also loads a head from a Hugging Face target without tokenizer.json."""
    import json

    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **target.hf_config}))
    family = FAMILIES["angelslim"]
    head = write_head(tmp_path / "unused.gguf", target, **(family.variant | {"own_embd": True}))
    write_family(tmp_path / "head", family, head)
    path = convert(tmp_path / "head", folder, tmp_path / "out.gguf").path
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model
    assert llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)) == target.n_vocab
    llama_cpp.llama_model_free(model)
