"""The tap on random models of many architectures: what llama.cpp publishes is what its graphs compute."""

from __future__ import annotations

import numpy as np
import pytest
from lowlevel import LowLevel, describe
from random_arch import N_VOCAB, load_random_arch

from llama_cpp_eagle3 import Eagle3Error, _core

# how many boundaries llama.cpp publishes beyond layer inputs, and which (relative to n_layer)
NATIVE = {
    "bailingmoe3": [1],
    "gemma4": [1],
    "gpt-oss": [0],
    "hunyuan-dense": [],
    "hunyuan_vl": [],
    "lfm2": [],
    "lfm2moe": [],
    "llama": [],
    "mimo2": [0],
    "minimax-01": [],
    "minimax-m2": [],
    "muse-glimmer": [],
    "nanbeige": [],
    "nemotron_h": [0, 1],
    "nemotron_h_moe": [0, 1],
    "qwen3": [],
    "qwen35": [1],
    "qwen35moe": [1],
    "qwen3moe": [],
    "qwen3next": [1],
}
CALLBACK = [
    "bitnet", "command-r", "deepseek2", "exaone", "falcon", "gemma2", "gemma3", "glm4", "glm4moe", "gpt2", "granite",
    "llama4", "mamba2", "minicpm", "mistral3", "olmo2", "phi3", "qwen3vl", "smollm3", "stablelm", "starcoder2",
]  # fmt: skip


def random_tokens(n: int) -> list[int]:
    return np.random.default_rng(0).integers(0, N_VOCAB, n).tolist()


def decode(folder, arch, boundaries, kind, **params):
    with LowLevel(load_random_arch(folder, arch), boundaries, kind, **params) as low:
        low.target.decode(random_tokens(40), 0)
        return low.tap.rows


def layers_of(folder, arch) -> int:
    with LowLevel(load_random_arch(folder, arch)) as low:
        return describe(low.model)[0]


@pytest.mark.parametrize("arch", NATIVE)
def test_native_equals_callback(tmp_path, arch):
    n_layer = layers_of(tmp_path, arch)
    native = [*range(n_layer), *(n_layer + beyond for beyond in NATIVE[arch])]
    published = [b for b in range(n_layer + 2) if _core.FeatureTap([b], n_layer, 8, arch).kind == "native"]
    assert published == native
    callback = decode(tmp_path, arch, list(range(n_layer + 2)), "callback", n_ubatch=16)
    rows = decode(tmp_path, arch, native, "native", n_ubatch=16)
    for i, b in enumerate(native):
        np.testing.assert_array_equal(rows[:, i], callback[:, b], err_msg=f"boundary {b}")
    # every layer changes the stream
    for b in range(n_layer + 1):
        assert not np.array_equal(callback[:, b], callback[:, b + 1])


@pytest.mark.parametrize("arch", CALLBACK)
def test_callback(tmp_path, arch):
    n_layer = layers_of(tmp_path, arch)
    rows = decode(tmp_path, arch, list(range(n_layer + 2)), "auto", n_ubatch=16)
    assert rows.shape[:2] == (40, n_layer + 2)
    assert np.isfinite(rows).all()
    for b in range(n_layer + 1):
        assert not np.array_equal(rows[:, b], rows[:, b + 1])


def test_several_streams_are_refused(tmp_path):
    """Gemma 3n carries four streams: no row of width n_embd is the residual stream."""
    with (
        LowLevel(load_random_arch(tmp_path, "gemma3n"), [1]) as low,
        pytest.raises(Eagle3Error, match=r"gemma3n.*tensor l_out-0 is f32 \[128, 3, 4, 1\], expected f32 \[128, n_tok"),
    ):
        low.target.decode([1, 2, 3], 0)


def test_unnamed_embedding_is_refused():
    with pytest.raises(Eagle3Error, match="boundary 0 of architecture bloom cannot be read"):
        _core.FeatureTap([0, 1], 4, 64, "bloom")


@pytest.mark.parametrize("n_rs_seq", [0, 4])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("n_ubatch", [8, 13, 64])
def test_sequences_of_a_hybrid_model(tmp_path, n_ubatch, kv_unified, n_rs_seq):
    """Recurrent layers want equally many tokens of each sequence, and the tail of each in one piece."""
    rng = np.random.default_rng(n_ubatch)
    seq = rng.permutation(np.repeat([0, 1, 2], [9, 17, 5])).tolist()
    pos = [seq[:i].count(s) for i, s in enumerate(seq)]
    tokens = rng.integers(0, 4, len(seq)).tolist()
    rows = []
    for kind in ("native", "callback"):
        params = {"n_ubatch": n_ubatch, "n_seq_max": 3, "kv_unified": kv_unified, "n_rs_seq": n_rs_seq}
        with LowLevel(load_random_arch(tmp_path, "qwen35"), [0, 1, 2], kind, **params) as low:
            low.target.decode_batch(tokens, pos, [[s] for s in seq], [True] * len(seq))
            rows.append(low.tap.rows)
    np.testing.assert_array_equal(*rows)


def test_recurrent_memory_cannot_go_back(tmp_path):
    with LowLevel(load_random_arch(tmp_path, "qwen35"), [1]) as low:
        low.target.decode([1, 2, 3, 4], 0)
        with pytest.raises(Eagle3Error, match="cannot go back from position 4 to 2"):
            low.target.decode([1], 2)
        low.target.decode([5], 4)
        low.target.decode([1], 0)
