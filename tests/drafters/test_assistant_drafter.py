"""A Gemma 4 assistant as a drafter agrees with llama.cpp's own contexts driven by hand as llama.cpp's drafter does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from arch_keys import N_LAYER, arch_of, keys_of
from assistant_reference import Assistant
from assistants import ROW, ByHand, Pair, write_assistant
from drafting import draft_chain, draft_chains
from llama_cpp_eagle3 import Eagle3Error, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3._core import GumbelNoise, find_kv_difference, read_assistant
from lowlevel import LowLevel
from mtp import softmax
from random_arch import random_tensors, write_arch, write_random_arch

TOLERANCE = 5e-3
"""Tolerance of logits of some 1 to 4. They are equal bit for bit if a sequence is alone and the target's rows are:
else sums are in another order, and ggml's table for GELU has steps."""
GROWTH = 100.0
"""Factor on the difference of the target's rows, if a pass had another shape: random layers enlarge it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assistant")


@pytest.fixture(scope="module", params=["gemma4", "gemma4-a4b", "gemma4-shared"])
def paths(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, Path]:
    return write_random_arch(folder, request.param), write_assistant(folder)


@pytest.fixture(scope="module")
def hand(paths: tuple[Path, Path]) -> Iterator[ByHand]:
    made = ByHand(*paths)
    yield made
    made.close()


@pytest.fixture(params=[True, False], ids=["pooled", "split"])
def pair(request: pytest.FixtureRequest, paths: tuple[Path, Path]) -> Iterator[Pair]:
    with Pair(*paths, n_seq_max=3, is_pooled=request.param) as made:
        yield made


def texts(n: int, length: int = 30, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 256, (n, length)).tolist()


def feed(pair: Pair, text: list[int], seq_id: int = 0) -> None:
    """Evaluate a text, and give its rows to the drafter in pieces."""
    rows = pair.evaluate(text, seq_id)
    pair.last_rows[seq_id] = rows[-1]
    pair.drafter.reset(seq_id)
    for first, end in ((0, 1), (1, 20), (20, len(text))):
        pair.drafter.process_rows(rows[first:end], text[first:end], first, seq_id)
    assert pair.drafter.n_past(seq_id) == len(text)


def check_next(pair: Pair, hand: ByHand, text: list[int], id_last: int, seq_id: int = 0, n: int = 3) -> None:
    """Check that a draft after a text is that of the assistant driven by hand, step by step."""
    apart = float(np.abs(pair.last_rows[seq_id] - hand.row(text)).max())
    assert apart < 1e-2
    want, logits = hand.chain(text, id_last, n)
    for i in range(1, n + 1):
        assert draft_chain(pair.drafter, id_last, i, seq_id=seq_id) == want[:i]
        np.testing.assert_allclose(pair.drafter.draft_logits, logits[i - 1], atol=TOLERANCE + GROWTH * apart)


@pytest.mark.parametrize("row", ["gemma4", "gemma4-a4b"])
def test_logits_are_those_of_float64(folder: Path, row: str) -> None:
    """Logits agree with float64, given the inputs of the target's last two layers and its last row."""
    paths = write_random_arch(folder, row), write_assistant(folder)
    (text,) = texts(1, 40, seed=2)
    with LowLevel(str(paths[0]), [N_LAYER - 2, N_LAYER - 1]) as target:
        target.target.decode(text, 0)
        inputs = [target.tap.rows[:, i].copy() for i in range(2)]
    with Pair(*paths) as pair:
        feed(pair, text)
        want = Assistant(*paths).chain(inputs, pair.last_rows[0], 7, 4)
        for n, logits in enumerate(want, 1):
            assert draft_chain(pair.drafter, 7, n) == [int(x.argmax()) for x in want[:n]]
            np.testing.assert_allclose(pair.drafter.draft_logits, logits, atol=TOLERANCE)


def test_sequences_of_other_lengths(pair: Pair, hand: ByHand) -> None:
    """Each sequence drafts as it does alone; windows of 16 positions have been left."""
    all_texts = [t[:n] for t, n in zip(texts(3, 70), (70, 37, 21), strict=True)]
    for i, text in enumerate(all_texts):
        feed(pair, text, i)
    for i, text in enumerate(all_texts):
        check_next(pair, hand, text, 7 + i, i)
    want = [hand.chain(t, 9, n)[0] for t, n in zip(all_texts, (4, 1, 3), strict=True)]
    order = [2, 0, 1]
    found = draft_chains(pair.drafter, order, [9, 9, 9], [[4, 1, 3][i] for i in order])
    assert found == [want[i] for i in order]
    assert draft_chains(pair.drafter, [1, 0], [9, 9], [0, 2]) == [[], want[0][:2]]


def test_nodes_of_a_tree(pair: Pair, hand: ByHand) -> None:
    """Every path has the logits of that path alone, computed by hand; sequences with streams draft trees too."""
    both = texts(2, 40, seed=3)
    for i, text in enumerate(both):
        feed(pair, text, i)
    ids_last = [3, 4]
    pair.drafter.begin([0, 1], ids_last, 3)
    for width in (4, 5, 3):
        n = len(pair.drafter.nodes)
        depth = max(node[3] for node in pair.drafter.nodes)
        pair.drafter.expand([i for i in range(n) if pair.drafter.nodes[i][3] == depth][:width], 3)
    nodes = pair.drafter.nodes
    assert {node[4] for node in nodes} == {0, 1}
    with_children = sorted({node[0] for node in nodes} - {-1})
    assert len(with_children) == 12
    for i in with_children:
        path, at = [], i
        while at >= 0:
            path.insert(0, nodes[at][1])
            at = nodes[at][0]
        seq_id = nodes[i][4]
        p = softmax(hand.path(both[seq_id], [ids_last[seq_id], *path]))
        children = [node for node in nodes if node[0] == i]
        assert [node[1] for node in children] == np.argsort(-p, kind="stable")[:3].tolist()
        np.testing.assert_allclose([node[2] for node in children], np.sort(p)[::-1][:3], rtol=1e-3)
    check_next(pair, hand, both[0], 5)


def test_going_back(pair: Pair, hand: ByHand) -> None:
    """There is no row to draft after until the next token is evaluated, and no row is requested again."""
    old, new = texts(2, 40, seed=7)
    feed(pair, old)
    draft_chain(pair.drafter, 1, 3)
    for n in (39, 30, 12):
        assert pair.drafter.truncate(n) == n
        pair.target.truncate(n, 0)
        assert draft_chain(pair.drafter, 1, 3) == []
        pair.target.decode(new[n:], n)
        rows = pair.tap.rows[:, 0].copy()
        pair.drafter.process_rows(rows, new[n:], n)
        pair.last_rows[0] = rows[-1]
        text = [*old[:n], *new[n:]]
        check_next(pair, hand, text, 1)
        old = text


def test_nothing_is_drafted_where_the_targets_cells_are_others(pair: Pair, hand: ByHand) -> None:
    """Nothing is drafted after an interrupted step: the row is of one position, the cells end at another."""
    (text,) = texts(1, 40, seed=8)
    feed(pair, text)
    pair.target.truncate(30, 0)
    assert draft_chain(pair.drafter, 1, 3) == []
    pair.target.decode(text[30:], 30)
    check_next(pair, hand, text, 1)


def test_copies_and_states(pair: Pair, hand: ByHand) -> None:
    """A row is copied only with the whole text; a state belongs to one assistant."""
    (text,) = texts(1, 40, seed=9)
    feed(pair, text)
    state = pair.drafter.state_get()
    pair.evaluate(text, 1)
    pair.last_rows |= dict.fromkeys((1, 2), pair.last_rows[0])
    assert pair.drafter.copy(0, 1, 40) == 40
    check_next(pair, hand, text, 2, 1)
    assert pair.drafter.copy(0, 1, 25) == 25
    assert draft_chain(pair.drafter, 2, 3, seq_id=1) == []
    pair.evaluate(text, 2)
    pair.drafter.state_set(state, 2)
    check_next(pair, hand, text, 2, 2)
    check_next(pair, hand, text, 2)
    for bad in (b"", state[:20], state[:-1], state + b"x", b"no" + state[2:], state[:12] + b"\1" + state[13:]):
        with pytest.raises((ValueError, Eagle3Error)):
            pair.drafter.state_set(bad)
    for i in range(8 * 32):  # bits of the header: another position may be valid
        bad_bytes = bytearray(state)
        bad_bytes[i // 8] ^= 1 << i % 8
        try:
            pair.drafter.state_set(bytes(bad_bytes))
            assert i // 32 == 1
        except (ValueError, Eagle3Error):
            pass


def test_drafts_that_know_the_dice(pair: Pair, hand: ByHand) -> None:
    (text,) = texts(1, 30, seed=4)
    feed(pair, text)
    plain, n_other = draft_chain(pair.drafter, 6, 3), 0
    for seed in range(6):
        noise = GumbelNoise(seed, temperature=1.5)
        pair.drafter.set_noise(noise, 0)
        drafted = [6]
        for ahead in range(3):
            x = hand.path(text, drafted)
            drafted.append(max(np.argsort(-x)[:16].tolist(), key=lambda t: x[t] / 1.5 + noise(t, ahead)))
        found = draft_chain(pair.drafter, 6, 3)
        assert found == drafted[1:]
        n_other += found != plain
    assert n_other > 3
    pair.drafter.set_noise(None, 0)


def test_the_end_of_the_context(paths: tuple[Path, Path]) -> None:
    """Rows take no cells, but llama.cpp looks for some: if the target has none left, nothing is drafted."""
    with Pair(*paths) as pair:
        (text,) = texts(1, 256)
        feed(pair, text[:255])
        assert len(draft_chain(pair.drafter, text[255], 5)) == 1
        pair.drafter.begin([0], [1], 4)
        pair.drafter.expand(range(len(pair.drafter.nodes)), 2)
        feed(pair, text)
        assert draft_chain(pair.drafter, 1, 5) == []


def test_wrong_arguments_are_refused(pair: Pair) -> None:
    (text,) = texts(1)
    feed(pair, text)
    drafter = pair.drafter
    for call in (
        lambda: draft_chain(drafter, 10**6, 2),
        lambda: draft_chain(drafter, 1, 2, seq_id=3),
        lambda: draft_chains(drafter, [0, 0], [1, 1], [1, 1]),
        lambda: drafter.copy(0, 0, 3),
        lambda: drafter.copy(0, 1, 31),
        lambda: drafter.restart(-1),
    ):
        with pytest.raises(ValueError, match=r"expected|sequence|token|id"):
            call()
    with pytest.raises(IncompatibleDraftError, match="has evaluated tokens already"):
        pair.make_drafter()
    with pytest.raises(Eagle3Error, match="expects rows from position 30"):
        drafter.process_rows(np.zeros((1, 64), np.float32), [1], 5)
    drafter.close()
    with pytest.raises(Eagle3Error, match="closed"):
        draft_chain(drafter, 1, 2)


def test_headers(folder: Path) -> None:
    target, assistant = write_random_arch(folder, "gemma4"), write_assistant(folder)
    file = read_assistant(str(assistant))
    assert (file.n_embd, file.n_embd_tgt, file.n_layer) == (32, 64, 3)
    assert find_kv_difference(str(target), str(assistant)) == ""
    assert "of the architecture gemma4, the target's is gemma3" in find_kv_difference(
        str(write_random_arch(folder, "gemma3")), str(assistant)
    )
    with pytest.raises(ModelFileError, match=r"expected an assistant .* found 'gemma4'"):
        read_assistant(str(target))
    tensors = random_tensors(assistant)
    for i, (more, why) in enumerate(
        {
            "attention.head_count_kv": (1, "expected 1 heads of 32 values and a window, found 2 of 32"),
            "attention.key_length_swa": (16, "layer 0 reads the K/V of the target's layer 1: expected 2 heads of 16"),
            "attention.key_length": (16, "layer 1 reads the K/V of the target's layer 2: expected 2 heads of 16"),
        }.items()
    ):
        path = write_arch(folder / f"other-{i}.gguf", arch_of(ROW), keys_of(ROW) | {more: why[0]}, tensors)
        assert why[1] in find_kv_difference(str(target), str(path))
    for key, value in {"nextn_predict_layers": 2, "embedding_length_out": 0}.items():
        path = write_arch(folder / f"bad-{key}.gguf", arch_of(ROW), keys_of(ROW) | {key: value}, tensors)
        with pytest.raises(ModelFileError, match=key):
            read_assistant(str(path))
