"""Batches of which only a part is accepted leave no trace, for every kind of memory of the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llama_cpp_eagle3 import ContextFullError, Eagle3Error, _core
from lowlevel import LowLevel, parts_of
from random_arch import N_VOCAB, load_random_arch
from tolerance import of_target

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_MAX = 5
N_SNAPSHOTS = [0, 1, 3, N_MAX]
"""Numbers of snapshots: none, fewer than drafted tokens, as many."""
KINDS = {
    "llama": "trim",
    "gemma3": "trim",
    "qwen35": "snapshots",
    "qwen35moe": "snapshots",
    "lfm2": "snapshots",
    "nemotron_h": "snapshots",
    "deepseek4": "snapshots",
    "qwen3next": "checkpoint",
    "mamba2": "checkpoint",
}


def context(folder: Path, arch: str, **params) -> LowLevel:
    return LowLevel(load_random_arch(folder, arch), [0, 1], **{"n_rs_seq": N_MAX} | params)


def run_steps(low: LowLevel, rng: np.random.Generator, n_steps: int, seq_id: int = 0) -> list[int]:
    """Run random steps, each of one certain token and up to N_MAX drafted ones; return the accepted tokens."""
    text = rng.integers(0, N_VOCAB, 7).tolist()
    low.target.decode(text, 0, seq_id=seq_id)
    for _ in range(n_steps):
        tokens = rng.integers(0, N_VOCAB, rng.integers(1, N_MAX + 2)).tolist()
        low.decode_draft(tokens, len(text), seq_id)
        assert low.target.has_draft(seq_id) == (len(tokens) > 1)
        n_accepted = int(rng.integers(1, len(tokens) + 1))
        if len(tokens) > 1:
            low.target.accept(seq_id, list(range(n_accepted)))
        assert not low.target.has_draft(seq_id)
        text += tokens[:n_accepted]
        assert low.target.n_past(seq_id) == len(text)
    return text


@pytest.mark.parametrize(
    ("arch", "swa_full", "n_snapshots"),
    [(arch, swa_full, N_MAX) for arch in KINDS for swa_full in (True, False)]
    + [(arch, True, n) for arch in KINDS if KINDS[arch] == "snapshots" for n in N_SNAPSHOTS[:-1]],
)
def test_rejected_tokens_leave_no_trace(tmp_path: Path, arch: str, swa_full: bool, n_snapshots: int) -> None:
    rng = np.random.default_rng(1)
    params = {"swa_full": swa_full}
    with context(tmp_path, arch, n_rs_seq=n_snapshots, **params) as low, context(tmp_path, arch, **params) as fresh:
        kind = KINDS[arch] if n_snapshots else "checkpoint"
        assert low.target.rollback_kind == kind
        assert low.target.n_snapshots == {"trim": None, "snapshots": n_snapshots, "checkpoint": 0}[kind]
        text = run_steps(low, rng, 25)
        for i in range(0, len(text), 50):
            fresh.target.decode(text[i : i + 50], i)
        for _ in range(64):  # beyond the window of 32, too
            token = int(rng.integers(0, N_VOCAB))
            low.target.decode([token], len(text))
            fresh.target.decode([token], len(text))
            text.append(token)
            np.testing.assert_allclose(low.target.logits(0), fresh.target.logits(0), atol=of_target(2e-4))
            np.testing.assert_allclose(low.tap.rows, fresh.tap.rows, atol=of_target(2e-4))


@pytest.mark.parametrize("arch", KINDS)
def test_rows_are_those_of_the_tokens(tmp_path: Path, arch: str) -> None:
    """A replay before a batch is invisible: rows, logits, tokens and positions are those of the request."""
    with context(tmp_path, arch) as low, context(tmp_path, arch) as fresh:
        low.target.decode([1, 2, 3], 0)
        low.decode_draft([4, 5, 6, 7], 3)
        low.target.accept(0, [0, 1])
        assert low.target.n_replay() == (2 if KINDS[arch] == "checkpoint" else 0)
        low.decode_draft([8, 9, 10], 5)
        fresh.target.decode([1, 2, 3, 4, 5, 8, 9, 10], 0)
        assert low.target.tokens.tolist() == [8, 9, 10]
        assert low.target.pos.tolist() == [5, 6, 7]
        assert low.tap.rows.shape[0] == 3
        np.testing.assert_allclose(low.tap.rows, fresh.tap.rows[5:], atol=of_target(1e-5))
        np.testing.assert_allclose(low.target.logits_all(3), fresh.target.logits_all(8)[5:], atol=of_target(1e-4))
        low.target.accept(0, [0, 1, 2])
        assert low.target.n_replay() == 0


@pytest.mark.parametrize("arch", KINDS)
def test_one_pass_per_step(tmp_path: Path, arch: str) -> None:
    """Each step is one pass, counted by the graphs that ggml runs."""
    names: list[str] = []
    model = load_random_arch(tmp_path, arch)
    with LowLevel(model, n_rs_seq=N_MAX, on_eval=names.append) as low:
        low.target.decode([1, 2, 3], 0)
        n_per_pass = names.count("result_output")
        assert n_per_pass == 1
        names.clear()
        run_steps(low, np.random.default_rng(2), 20)
        assert names.count("result_output") == 1 + 20


@pytest.mark.parametrize("arch", KINDS)
def test_abort(tmp_path: Path, arch: str) -> None:
    with context(tmp_path, arch) as low, context(tmp_path, arch) as fresh:
        low.target.decode([1, 2, 3], 0)
        low.decode_draft([4, 5, 6], 3)
        low.target.accept(0, [])
        if KINDS[arch] == "snapshots":
            assert low.target.n_past() == 0  # the state before the batch is gone
            low.target.decode([1, 2, 3], 0)
        assert low.target.n_past() == 3
        low.target.decode([7, 8], 3)
        fresh.target.decode([1, 2, 3, 7, 8], 0)
        np.testing.assert_allclose(low.target.logits(1), fresh.target.logits(4), atol=of_target(1e-4))


@pytest.mark.parametrize("n_snapshots", N_SNAPSHOTS)
def test_where_snapshots_do_not_reach(tmp_path: Path, n_snapshots: int) -> None:
    """A draft longer than the snapshots is replayed if more of it is rejected, and only then."""
    draft = [4, 5, 6, 7, 8, 9]
    with context(tmp_path, "qwen35", n_rs_seq=n_snapshots) as low, context(tmp_path, "qwen35") as fresh:
        for n_draft in range(2, len(draft) + 1):
            for n_kept in range(n_draft + 1):
                low.target.truncate(0)
                low.target.decode([1, 2, 3], 0)
                n_past = n_replay = 0
                for _ in range(3):  # also a replay before a draft that is rejected
                    n_past = low.target.n_past()
                    low.decode_draft(draft[:n_draft], n_past)
                    low.target.accept(0, list(range(n_kept)))
                    n_rejected = n_draft - n_kept
                    if n_rejected > n_snapshots and (n_kept > 0 or n_draft > n_snapshots + 1):
                        n_replay += n_kept
                        assert low.target.n_past() == n_past + n_kept
                    elif n_kept > 0 or n_rejected <= n_replay:
                        n_replay = 0
                        assert low.target.n_past() == n_past + n_kept
                    else:
                        break
                    assert low.target.n_replay() == n_replay
                else:
                    text = [1, 2, 3, *3 * draft[:n_kept], 1]
                    low.target.decode([1], len(text) - 1)
                    fresh.target.truncate(0)
                    fresh.target.decode(text, 0)
                    found, expected = low.target.logits(0), fresh.target.logits(len(text) - 1)
                    np.testing.assert_allclose(found, expected, atol=of_target(2e-4), err_msg=f"{n_kept} of {n_draft}")
                    continue
                assert low.target.n_past() == 0  # the state before the batch is gone


@pytest.mark.parametrize("arch", ["gemma3", "qwen35", "mamba2"])
def test_saved_states(tmp_path: Path, arch: str) -> None:
    """Going back further than a step leads to the last saved state that is kept, else to the beginning."""
    text = np.random.default_rng(3).integers(0, N_VOCAB, 900).tolist()
    with (
        context(tmp_path, arch, swa_full=False, n_ctx=1024, n_ubatch=16) as low,
        context(tmp_path, arch, n_ctx=1024) as fresh,
    ):
        fresh_logits, states = {}, {}
        for i in range(0, 900, 50):
            low.target.decode(text[i : i + 50], i)
            fresh.target.decode(text[i : i + 50], i)
            fresh_logits[i + 50] = fresh.target.logits(49)
            if i + 50 in (250, 450, 550):
                states[i + 50] = low.target.save()
                assert states[i + 50].n_past == i + 50
        del states[550]
        for n_past in (600, 500, 450, 400, 100):
            expected = 450 if n_past >= 450 else 250 if n_past >= 250 else 0
            assert low.target.truncate(n_past) == expected
            assert low.target.n_past() == expected
            for i in range(expected, 850, 50):
                low.target.decode(text[i : i + 50], i)
                np.testing.assert_allclose(low.target.logits(49), fresh_logits[i + 50], atol=of_target(5e-4))


@pytest.mark.parametrize(
    ("arch", "n_snapshots"),
    [("llama", 0), ("mamba2", 0), ("qwen3next", 0), *(("qwen35", n) for n in N_SNAPSHOTS), ("deepseek4", 1)],
)
def test_sequences(tmp_path: Path, arch: str, n_snapshots: int) -> None:
    """Three sequences share a batch each step, with different lengths and acceptance; the third one skips steps."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, N_VOCAB, n).tolist() for n in (3, 9, 5)]
    with context(tmp_path, arch, n_seq_max=3, n_rs_seq=n_snapshots) as low, context(tmp_path, arch) as fresh:
        low.target.decode_parts(parts_of(*((s, 0, text) for s, text in enumerate(texts))))
        for i in range(12):
            parts = []
            for s in [0, 2, 1][: 3 if i % 3 else 1] if i % 2 else [1, 0]:
                tokens = rng.integers(0, N_VOCAB, rng.integers(1, N_MAX + 2)).tolist()
                parts.append((s, len(texts[s]), tokens))
            low.target.decode_parts(parts_of(*parts, is_draft=True))
            assert low.target.tokens.tolist() == [t for _, _, tokens in parts for t in tokens]
            rows, logits = low.tap.rows, low.target.logits_all(len(low.target.tokens))
            first = 0
            for s, n_past, tokens in parts:
                fresh.target.truncate(0)
                fresh.target.decode(texts[s], 0)
                fresh.target.decode(tokens, n_past)
                last = first + len(tokens)
                np.testing.assert_allclose(rows[first:last], fresh.tap.rows, atol=of_target(2e-4))
                np.testing.assert_allclose(
                    logits[first:last], fresh.target.logits_all(len(tokens)), atol=of_target(2e-4)
                )
                n_accepted = int(rng.integers(1, len(tokens) + 1))
                if len(tokens) > 1:
                    low.target.accept(s, list(range(n_accepted)))
                texts[s] += tokens[:n_accepted]
                first = last


def test_errors(tmp_path: Path) -> None:
    with context(tmp_path, "qwen35") as low:
        with pytest.raises(Eagle3Error, match="sequence 0 has no draft to accept a path of"):
            low.target.accept(0, [0])
        low.decode_draft([1, 2], 0)
        for path in ([0, 1, 2], [1], [0, 0]):
            with pytest.raises(ValueError, match="does not go on from the path before it"):
                low.target.accept(0, path)
        with pytest.raises(ValueError, match="sequence id 1 is out of range: the context has n_seq_max = 1"):
            low.target.n_past(1)
        with pytest.raises(ValueError, match="keeps a recurrent state: draft chains"):
            low.decode_tree([1, 2, 3], [-1, 0, 0], 2)


@pytest.mark.parametrize("arch", KINDS)
def test_states(tmp_path: Path, arch: str) -> None:
    """A sequence's state goes to another slot and comes back, with replay and windows."""
    rng = np.random.default_rng(6)
    with context(tmp_path, arch, n_seq_max=2) as low, context(tmp_path, arch) as fresh:
        other = rng.integers(0, N_VOCAB, 20).tolist()
        low.target.decode(other, 0, seq_id=0)
        text = run_steps(low, rng, 8, seq_id=1)
        low.decode_draft([3, 4, 5], len(text), 1)
        low.target.accept(1, [0, 1])
        text += [3, 4]
        state = low.target.state_get(1)
        low.target.truncate(0, 0)
        low.target.truncate(0, 1)
        low.target.state_set(0, state)
        assert low.target.n_past(0) == len(text)
        low.target.decode([7, 8], len(text), seq_id=0)
        fresh.target.decode([*text, 7, 8], 0)
        np.testing.assert_allclose(low.target.logits(1), fresh.target.logits(len(text) + 1), atol=of_target(2e-4))
        for broken in (b"", state[:-1], state + b"x", b"x" * 40):
            with pytest.raises(ValueError, match="not a state of a sequence"):
                low.target.state_set(1, broken)
            assert low.target.n_past(1) == 0


def test_no_room_for_a_state(tmp_path: Path) -> None:
    with context(tmp_path, "llama", n_seq_max=2) as low:
        for i in range(0, 200, 50):
            low.target.decode([1] * 50, i)
        state = low.target.state_get(0)
        with pytest.raises(ContextFullError, match="no room in the context for the 200 tokens"):
            low.target.state_set(1, state)
        assert low.target.n_past(1) == 0
        assert low.target.n_past(0) == 200


@pytest.mark.parametrize("arch", KINDS)
@pytest.mark.parametrize("swa_full", [True, False])
def test_copies(tmp_path: Path, arch: str, swa_full: bool) -> None:
    """Two sequences share a prefix, or the copy is refused."""
    rng = np.random.default_rng(7)
    text = rng.integers(0, N_VOCAB, 60).tolist()
    with context(tmp_path, arch, n_seq_max=2, swa_full=swa_full) as low, context(tmp_path, arch) as fresh:
        low.target.decode(text[:50], 0)
        low.target.decode([9] * 5, 0, seq_id=1)
        n_past = low.target.copy(0, 1, 40)
        assert n_past == low.target.n_past(1) == (40 if KINDS[arch] == "trim" else 0)
        if n_past == 0:
            return
        low.target.decode([3, 4], 40, seq_id=1)
        fresh.target.decode([*text[:40], 3, 4], 0)
        np.testing.assert_allclose(low.target.logits(1), fresh.target.logits(41), atol=of_target(2e-4))
        low.target.decode(text[50:], 50)
        fresh.target.truncate(0)
        fresh.target.decode(text, 0)
        np.testing.assert_allclose(low.target.logits(9), fresh.target.logits(59), atol=of_target(2e-4))


def test_snapshots_that_a_batch_leaves_behind(tmp_path: Path) -> None:
    """llama.cpp moves the state of the sequence between two that go on, without its snapshots: a replay follows."""
    rng = np.random.default_rng(0)
    model = load_random_arch(tmp_path, "qwen35")
    draft = [5, 6, 7]
    with LowLevel(model, n_seq_max=3, n_rs_seq=4, kv_unified=True, n_ubatch=32) as low:

        def after(n_each: int) -> tuple[int, np.ndarray]:
            """Draft in sequence 1, keep only the root, beside prompts; return the result of the next step."""
            for s in range(3):
                low.target.truncate(0, s)
                low.target.decode([1 + s, 2, 3], 0, seq_id=s)
            parts = [
                _core.BatchPart(0, 3, rng.integers(0, 100, n_each).tolist()),
                _core.BatchPart(1, 3, [4], draft),
                _core.BatchPart(2, 3, rng.integers(0, 100, n_each).tolist()),
            ]
            low.target.decode_parts(parts)
            low.target.accept(1, [0])
            n_replay = low.target.n_replay(1)
            low.target.decode([8], 4, seq_id=1)
            return n_replay, low.target.logits(0).copy()

        low.target.decode([2, 2, 3, 4], 0, seq_id=1)
        low.target.decode([8], 4, seq_id=1)
        expected = low.target.logits(0).copy()
        n_replayed = []
        for n_each in (4, 5, 9, 12, 14, 20):
            n_replay, found = after(n_each)
            n_replayed.append(n_replay)
            np.testing.assert_allclose(found, expected, atol=of_target(1e-4), err_msg=f"{n_each} rows of each prompt")
        assert n_replayed == [0, 0, 1, 1, 1, 1]
        # snapshots that are older than a batch of others
        low.target.decode([2, 2, 3, 4, 9], 0, seq_id=1)
        low.target.decode_parts([_core.BatchPart(s, low.target.n_past(s), [1]) for s in (0, 2)])
        assert low.target.truncate(4, 1) == 0
        low.target.decode([2, 2, 3, 4], 0, seq_id=1)
        low.target.decode([8], 4, seq_id=1)
        np.testing.assert_allclose(low.target.logits(0), expected, atol=of_target(1e-4))
