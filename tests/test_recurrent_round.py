"""Rounds of which only a part is accepted leave no trace, whatever the target's memory is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowlevel import LowLevel
from random_arch import N_VOCAB, load_random_arch

from llama_cpp_eagle3 import Eagle3Error, _core

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_MAX = 5
KINDS = {
    "llama": "trim",
    "gemma3": "trim",
    "qwen35": "snapshots",
    "qwen35moe": "snapshots",
    "lfm2": "snapshots",
    "nemotron_h": "snapshots",
    "qwen3next": "checkpoint",
    "mamba2": "checkpoint",
}


def context(folder: Path, arch: str, **params) -> LowLevel:
    return LowLevel(load_random_arch(folder, arch), [0, 1], n_rs_seq=N_MAX, **params)


def run_rounds(low: LowLevel, rng: np.random.Generator, n_rounds: int, seq_id: int = 0) -> list[int]:
    """Random rounds, each of one token that is certain and up to N_MAX drafted ones; returns what was accepted."""
    text = rng.integers(0, N_VOCAB, 7).tolist()
    low.target.decode(text, 0, seq_id=seq_id)
    memory = _core.RecurrentRound(low.target, seq_id)
    for _ in range(n_rounds):
        tokens = rng.integers(0, N_VOCAB, rng.integers(1, N_MAX + 2)).tolist()
        memory.begin(len(tokens))
        low.target.decode(tokens, len(text), seq_id=seq_id)
        n_accepted = int(rng.integers(1, len(tokens) + 1))
        memory.commit(n_accepted)
        text += tokens[:n_accepted]
        assert low.target.n_past(seq_id) == len(text)
    return text


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("arch", KINDS)
def test_rejected_tokens_leave_no_trace(tmp_path: Path, arch: str, swa_full: bool) -> None:
    rng = np.random.default_rng(1)
    with context(tmp_path, arch, swa_full=swa_full) as low, context(tmp_path, arch, swa_full=swa_full) as fresh:
        assert _core.RecurrentRound(low.target).kind == KINDS[arch]
        text = run_rounds(low, rng, 25)
        for i in range(0, len(text), 50):
            fresh.target.decode(text[i : i + 50], i)
        for _ in range(64):  # beyond the window of 32, too
            token = int(rng.integers(0, N_VOCAB))
            low.target.decode([token], len(text))
            fresh.target.decode([token], len(text))
            text.append(token)
            np.testing.assert_allclose(low.target.logits(0), fresh.target.logits(0), atol=2e-4)
            np.testing.assert_allclose(low.tap.rows, fresh.tap.rows, atol=2e-4)


@pytest.mark.parametrize("arch", KINDS)
def test_rows_are_those_of_the_tokens(tmp_path: Path, arch: str) -> None:
    """A replay in front of a batch is not seen: rows, logits, tokens and positions are those that were asked for."""
    with context(tmp_path, arch) as low, context(tmp_path, arch) as fresh:
        memory = _core.RecurrentRound(low.target)
        low.target.decode([1, 2, 3], 0)
        memory.begin(4)
        low.target.decode([4, 5, 6, 7], 3)
        memory.commit(2)
        assert memory.n_replay == (2 if KINDS[arch] == "checkpoint" else 0)
        memory.begin(3)
        low.target.decode([8, 9, 10], 5)
        fresh.target.decode([1, 2, 3, 4, 5, 8, 9, 10], 0)
        assert low.target.tokens.tolist() == [8, 9, 10]
        assert low.target.pos.tolist() == [5, 6, 7]
        assert low.tap.rows.shape[0] == 3
        np.testing.assert_allclose(low.tap.rows, fresh.tap.rows[5:], atol=1e-5)
        np.testing.assert_allclose(low.target.logits_all(3), fresh.target.logits_all(8)[5:], atol=1e-4)
        memory.commit(3)
        assert memory.n_replay == 0


@pytest.mark.parametrize("arch", KINDS)
def test_one_pass_per_round(tmp_path: Path, arch: str) -> None:
    """Counted by the graphs that ggml runs."""
    names: list[str] = []
    model = load_random_arch(tmp_path, arch)
    with LowLevel(model, n_rs_seq=N_MAX, on_eval=names.append) as low:
        low.target.decode([1, 2, 3], 0)
        n_per_pass = names.count("result_output")
        assert n_per_pass == 1
        names.clear()
        run_rounds(low, np.random.default_rng(2), 20)
        assert names.count("result_output") == 1 + 20


@pytest.mark.parametrize("arch", KINDS)
def test_abort(tmp_path: Path, arch: str) -> None:
    with context(tmp_path, arch) as low, context(tmp_path, arch) as fresh:
        memory = _core.RecurrentRound(low.target)
        low.target.decode([1, 2, 3], 0)
        memory.begin(3)
        memory.abort()  # before anything was decoded
        assert low.target.n_past() == 3
        memory.begin(3)
        low.target.decode([4, 5, 6], 3)
        memory.abort()
        if KINDS[arch] == "snapshots":
            assert low.target.n_past() == 0  # the state before the batch is gone
            low.target.decode([1, 2, 3], 0)
        assert low.target.n_past() == 3
        low.target.decode([7, 8], 3)
        fresh.target.decode([1, 2, 3, 7, 8], 0)
        np.testing.assert_allclose(low.target.logits(1), fresh.target.logits(4), atol=1e-4)


@pytest.mark.parametrize("arch", ["gemma3", "qwen35", "mamba2"])
def test_saved_states(tmp_path: Path, arch: str) -> None:
    """Going back further than a round: to the last saved state, else to the beginning."""
    text = np.random.default_rng(3).integers(0, N_VOCAB, 900).tolist()
    with (
        context(tmp_path, arch, swa_full=False, n_ctx=1024, n_ubatch=16) as low,
        context(tmp_path, arch, n_ctx=1024) as fresh,
    ):
        fresh_logits = {}
        for i in range(0, 900, 50):
            low.target.decode(text[i : i + 50], i)
            fresh.target.decode(text[i : i + 50], i)
            fresh_logits[i + 50] = fresh.target.logits(49)
            if i + 50 in (250, 450):
                low.target.save()
        for n_past in (500, 450, 400, 100):
            expected = 450 if n_past >= 450 else 250 if n_past >= 250 else 0
            if arch == "gemma3" and n_past < 450:
                expected = 0  # a window is large: only the last one is kept
            assert low.target.truncate(n_past) == expected
            assert low.target.n_past() == expected
            for i in range(expected, 850, 50):
                low.target.decode(text[i : i + 50], i)
                np.testing.assert_allclose(low.target.logits(49), fresh_logits[i + 50], atol=5e-4)


@pytest.mark.parametrize("arch", ["llama", "qwen35", "mamba2", "qwen3next"])
def test_sequences(tmp_path: Path, arch: str) -> None:
    """Three sequences in one batch each round, with other lengths and other acceptance; the third one skips rounds."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, N_VOCAB, n).tolist() for n in (3, 9, 5)]
    with context(tmp_path, arch, n_seq_max=3) as low, context(tmp_path, arch) as fresh:
        memories = [_core.RecurrentRound(low.target, s) for s in range(3)]
        low.target.decode_parts([(s, 0, text) for s, text in enumerate(texts)])
        for i in range(12):
            parts = []
            for s in [0, 2, 1][: 3 if i % 3 else 1] if i % 2 else [1, 0]:
                tokens = rng.integers(0, N_VOCAB, rng.integers(1, N_MAX + 2)).tolist()
                memories[s].begin(len(tokens))
                parts.append((s, len(texts[s]), tokens))
            low.target.decode_parts(parts)
            assert low.target.tokens.tolist() == [t for _, _, tokens in parts for t in tokens]
            rows, logits = low.tap.rows, low.target.logits_all(len(low.target.tokens))
            first = 0
            for s, n_past, tokens in parts:
                fresh.target.truncate(0)
                fresh.target.decode(texts[s], 0)
                fresh.target.decode(tokens, n_past)
                last = first + len(tokens)
                np.testing.assert_allclose(rows[first:last], fresh.tap.rows, atol=2e-4)
                np.testing.assert_allclose(logits[first:last], fresh.target.logits_all(len(tokens)), atol=2e-4)
                n_accepted = int(rng.integers(1, len(tokens) + 1))
                memories[s].commit(n_accepted)
                texts[s] += tokens[:n_accepted]
                first = last


def test_errors(tmp_path: Path) -> None:
    with context(tmp_path, "qwen35") as low:
        memory = _core.RecurrentRound(low.target)
        with pytest.raises(
            ValueError, match="draft of 6 tokens is longer than the target's snapshots allow: it keeps 5"
        ):
            memory.begin(7)
        with pytest.raises(ValueError, match="at least one token"):
            memory.begin(0)
        with pytest.raises(Eagle3Error, match="no round is open"):
            memory.commit(1)
        memory.begin(2)
        low.target.decode([1, 2], 0)
        with pytest.raises(ValueError, match="3 tokens of the round are to be kept, it has 2"):
            memory.commit(3)
        with pytest.raises(ValueError, match="sequence id 1 is out of range: the context has n_seq_max = 1"):
            _core.RecurrentRound(low.target, 1)
        with pytest.raises(ValueError, match="keeps a recurrent state: draft chains"):
            low.target.decode_tree([1, 2, 3], [-1, 0, 0], 2)
