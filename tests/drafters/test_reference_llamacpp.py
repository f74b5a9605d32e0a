"""The NumPy reference matches llama.cpp: its targets, and its own eagle3 graph for the heads that it can run."""

from contextlib import ExitStack

import llama_cpp
import numpy as np
import pytest

from llamacpp_head import GGML_TYPE_F32, LlamaCppHead, rel_error
from reference import ReferenceHead, run_target
from tiny import write_head, write_perfect_pair, write_target

VARIANTS = {
    "plain": {},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "full_vocab": {"n_vocab_dft": None},
    "head_dim": {"head_dim": 24},
    "partial_rotary": {"n_rot": 8},
    "rope_theta": {"rope_theta": 500000.0},
    "rope_linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "rope_yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "rope_llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "other_hidden_size": {"n_embd": 96},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_reference_head_is_what_llama_cpp_computes(name, tmp_path):
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "head.gguf", target, own_embd=True, **VARIANTS[name])
    assert head.arch == "eagle3"
    rng = np.random.default_rng(7)
    n = 40
    rows = rng.normal(0.0, 2.0, (n, head.n_embd_inp))
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, n + 1)]
    reference = ReferenceHead(head)
    reference.process(rows, tokens[:n], 0)
    want = reference.propose(tokens[n], 6)

    with ExitStack() as stack:
        llama = LlamaCppHead(head, stack)
        logits, state = llama.decode(tokens[1:], llama.encode(rows), 0)
        for step in range(6):
            assert rel_error(logits, want.logits[step]) < 1e-4
            assert rel_error(state, want.states[step]) < 1e-4
            best = int(np.argmax(logits))
            token = best if head.d2t is None else int(head.d2t[best])
            assert token == want.ids[step]
            logits, state = llama.decode([token], state[None], n + step)


@pytest.mark.parametrize("tied", [False, True], ids=["own_output", "tied"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_reference_target_is_what_llama_cpp_computes(arch, tied, tmp_path):
    target = write_target(tmp_path / "target.gguf", arch, tied=tied)
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, 300, 60)]
    llm = llama_cpp.Llama(
        target.path, n_ctx=256, logits_all=True, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, verbose=False
    )
    llm.eval(tokens)
    assert rel_error(llm.scores[: len(tokens)], run_target(target, tokens).logits) < 1e-4


@pytest.mark.parametrize("kind", ["row", "token"])
def test_perfect_pair_is_perfect(kind, tmp_path):
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf", kind=kind)
    tokens = [5]
    while len(tokens) < 40:
        tokens.append(int(run_target(target, tokens).logits[-1].argmax()))
    rows = run_target(target, tokens).rows(head.boundaries)
    reference = ReferenceHead(head)
    for n in range(1, 30):
        reference.process(rows[n - 1 : n], tokens[n - 1 : n], n - 1)
        assert reference.propose(tokens[n], 8).ids == tokens[n + 1 : n + 9]
