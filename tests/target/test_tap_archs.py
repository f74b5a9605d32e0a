"""Facts that the tap knows of llama.cpp's graphs. tests/target/test_targets.py runs the graphs."""

from __future__ import annotations

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Error, _core
from lowlevel import LowLevel
from random_arch import load_random_arch


def tap(arch: str, boundaries: list[int], kind: str = "auto") -> _core.FeatureTap:
    return _core.FeatureTap(boundaries, 4, 64, arch, kind)


def test_what_llama_cpp_publishes_is_not_copied_again():
    assert tap("llama", [0, 1, 3]).kind == "native"
    assert tap("llama", [0, 1, 4]).kind == "callback"
    assert tap("gpt-oss", [1, 4]).kind == "native"
    assert tap("qwen35", [1, 5]).kind == "native"
    assert tap("nemotron_h", [0, 1, 2, 3, 4, 5]).kind == "native"
    assert tap("qwen2", [1]).kind == "callback"


@pytest.mark.parametrize("arch", ["gemma3n", "glm5-next", "hy_v4", "qwen4exp"])
def test_several_streams_are_refused(arch: str):
    """No row of width n_embd is the residual stream."""
    for b in range(6):
        with pytest.raises(Eagle3Error, match=f"boundary {b} of architecture {arch} cannot be read"):
            tap(arch, [b])


def test_the_mean_of_streams_is_what_llama_cpp_publishes():
    assert tap("deepseek4", [0, 2, 4]).kind == "native"
    with pytest.raises(Eagle3Error, match="boundary 5 of architecture deepseek4 cannot be read"):
        tap("deepseek4", [5])
    with pytest.raises(Eagle3Error, match="boundary 2 of architecture deepseek4 cannot be read"):
        tap("deepseek4", [2], "callback")


@pytest.mark.parametrize(("arch", "b"), [("bloom", 0), ("rwkv6", 0), ("rwkv7", 0), ("arwkv7", 0), ("plamo3", 5)])
def test_unnamed_tensors_are_refused(arch: str, b: int):
    with pytest.raises(Eagle3Error, match=f"boundary {b} of architecture {arch} cannot be read"):
        tap(arch, [2, b])
    assert tap(arch, [1, 2, 4]).kind == "callback"


@pytest.mark.parametrize("n_rs_seq", [0, 4])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("n_ubatch", [8, 13, 64])
def test_sequences_of_a_hybrid_model(tmp_path, n_ubatch, kv_unified, n_rs_seq):
    """Recurrent layers need equally many tokens of each sequence, and the tail of each in one piece."""
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
