"""Rows that only make a pass faster: nobody sees them, and nothing is left of them."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import ContextFullError
from llama_cpp_eagle3._core import BatchPart, CostCurve
from lowlevel import LowLevel, parts_of
from random_arch import N_VOCAB, load_random_arch

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

ARCHS = ["llama", "gemma3", "qwen3", "deepseek2"]


def pos_max(low: LowLevel, seq_id: int) -> int:
    return llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(low.ctx), seq_id)


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize(("arch", "kind"), [("llama", "native"), *((arch, "callback") for arch in ARCHS)])
def test_nothing_is_left(tmp_path: Path, arch: str, kv_unified: bool, kind: str) -> None:
    """Logits, hidden states and memory are those of the same parts alone; what comes next too."""
    n_seqs = 2
    options = {"n_seq_max": n_seqs, "kv_unified": kv_unified}
    path = load_random_arch(tmp_path, arch)
    with LowLevel(path, [1], kind, **options) as low:
        found = []
        for n_pad in (0, 2, 4):
            rng = np.random.default_rng(1)
            for s in range(n_seqs):
                low.target.decode(rng.integers(0, N_VOCAB, 5 + s).tolist(), 0, seq_id=s)
            seen = []
            for i in range(3):
                tokens = rng.integers(0, N_VOCAB, n_seqs * 2).tolist()
                parts = parts_of(*((s, 5 + s + 2 * i, tokens[2 * s : 2 * s + 2]) for s in range(n_seqs)))
                before = llama_cpp.llama_perf_context(low.ctx).n_p_eval
                low.target.decode_parts(parts, n_pad)
                assert llama_cpp.llama_perf_context(low.ctx).n_p_eval - before == 4 + n_pad
                assert low.target.tokens.tolist() == tokens
                assert [pos_max(low, s) for s in range(n_seqs)] == [6 + s + 2 * i for s in range(n_seqs)]
                assert [low.target.n_past(s) for s in range(n_seqs)] == [7 + s + 2 * i for s in range(n_seqs)]
                assert len(low.tap.rows) == 4
                seen.append((low.target.logits_all(4).copy(), np.array(low.tap.rows)))
            found.append(seen)
        for padded in found[1:]:
            for (logits, rows), (plain_logits, plain_rows) in zip(padded, found[0], strict=True):
                np.testing.assert_allclose(logits, plain_logits, atol=1e-4)
                np.testing.assert_allclose(rows, plain_rows, atol=1e-4)


def test_behind_others(tmp_path: Path) -> None:
    """Streams: rows of sequences that take no part, which keep what they hold."""
    with LowLevel(load_random_arch(tmp_path, "llama"), [1], "callback", n_seq_max=4, kv_unified=False) as low:
        found = []
        for n_pad in (0, 2):
            for s in range(4):
                low.target.decode([1 + s, 2, 3], 0, seq_id=s)
            parts = parts_of(*((s, 3, [4 + s, 5]) for s in range(3)))
            before = llama_cpp.llama_perf_context(low.ctx).n_p_eval
            low.target.decode_parts(parts, n_pad)
            assert llama_cpp.llama_perf_context(low.ctx).n_p_eval - before == 6 + n_pad
            assert [pos_max(low, s) for s in range(4)] == [4, 4, 4, 2]
            logits = low.target.logits_all(6).copy()
            low.target.decode([9], 3, seq_id=3)
            found.append((logits, low.target.logits_all(1).copy()))
            low.target.decode_parts(parts_of((3, 3, [1, 2])), 3)  # no sequence is left for them: behind itself
            assert pos_max(low, 3) == 4
            low.target.decode_parts(parts_of(*((s, 3, [4 + s, 5]) for s in range(1, 4))), 2)
            assert [pos_max(low, s) for s in range(4)] == [4, 4, 4, 4]
        for plain, padded in zip(*found, strict=True):
            np.testing.assert_allclose(padded, plain, atol=1e-4)


@pytest.mark.parametrize("swa_full", [True, False])
def test_behind_a_tree(tmp_path: Path, swa_full: bool) -> None:
    """Behind the path to the first leaf; paths to the others can be kept just as well."""
    #   root - a - b
    #        - c - d
    tokens, parents = [1, 2, 3, 4, 5], [-1, 0, 0, 1, 2]
    text = [7, 8, 9]
    with LowLevel(
        load_random_arch(tmp_path, "gemma3"), [1], "callback", n_seq_max=4, n_seq=1, swa_full=swa_full
    ) as low:
        part = BatchPart(0, 3, tokens[:1], tokens[1:], [p - 1 for p in parents[1:]], "all")
        for path in ([0, 1, 3], [0, 2, 4], [0]):
            found = []
            for n_pad in (0, 3):
                low.target.decode(text, 0)
                low.target.decode_parts([part], n_pad)
                logits = low.target.logits_all(5).copy()
                low.target.accept(0, path)
                assert pos_max(low, 0) == 2 + len(path)
                low.target.decode([6], 3 + len(path))
                found.append((logits, low.target.logits_all(1).copy()))
            for plain, padded in zip(*found, strict=True):
                np.testing.assert_allclose(padded, plain, atol=1e-4)


def test_no_room(tmp_path: Path) -> None:
    """They never take the place of what is asked for: cells, rows of a batch, rows of a ubatch."""
    with LowLevel(load_random_arch(tmp_path, "llama"), [1], "callback", n_ctx=256, n_batch=256, n_ubatch=256) as low:
        low.target.decode([1] * 254, 0)
        low.target.decode_parts([BatchPart(0, 254, [2])], 3)
        assert (low.target.n_past(), len(low.tap.rows)) == (255, 1)
        logits = low.target.logits(0).copy()
        low.target.decode([2], 254)
        np.testing.assert_allclose(logits, low.target.logits(0), atol=1e-4)
        low.target.decode_parts([BatchPart(0, 255, [2])], 1)
        with pytest.raises(ContextFullError):
            low.target.decode_parts([BatchPart(0, 256, [2])], 1)
        assert low.target.n_past() == 256
    with LowLevel(load_random_arch(tmp_path, "llama"), n_batch=4, n_ubatch=4) as low:
        low.target.decode_parts([BatchPart(0, 0, [1, 2, 3])], 2)
        assert low.target.n_past() == 3


def test_recurrent_states_take_nothing_back(tmp_path: Path) -> None:
    with LowLevel(load_random_arch(tmp_path, "mamba2"), [1], "callback") as low:
        low.target.decode([1, 2, 3], 0)
        before = llama_cpp.llama_perf_context(low.ctx).n_p_eval
        low.target.decode_parts([BatchPart(0, 3, [4, 5])], 2)
        assert llama_cpp.llama_perf_context(low.ctx).n_p_eval - before == 2


def test_where_it_pays() -> None:
    """By the curve: rows by four, one that is smooth, and one whose differences are noise."""
    curve = CostCurve({1: 90.0, 2: 180.0, 3: 270.0, 4: 127.0, 5: 218.0, 6: 310.0, 8: 205.0, 12: 290.0})
    assert [curve.n_pad(n) for n in range(1, 9)] == [0, 2, 1, 0, 3, 2, 1, 0]
    assert [curve.n_pad(n, step=2) for n in (2, 4)] == [2, 0]
    assert curve.n_pad(3, step=3) == 0
    assert curve.n_pad(128) == curve.n_pad(1000) == 0
    smooth = CostCurve({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0})
    noisy = CostCurve({1: 10.0, 2: 10.3, 3: 9.9, 4: 10.2})
    for flat in (smooth, noisy):
        assert not any(flat.n_pad(n) for n in range(1, 130))
    curve.observe(2, 80.0)  # it was measured on a busy machine
    assert curve.n_pad(2) == 0
