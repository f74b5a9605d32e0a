"""Block drafters agree with float64 and with llama.cpp's own context driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from damaged_states import check_damaged_states
from dflash import SHAPES, ByHand, Pair, random_tensors, shape_of, write_dflash
from dflash_reference import Block
from drafting import draft_chain, draft_chains
from llama_cpp_eagle3 import ContextFullError, Eagle3Error
from llama_cpp_eagle3._core import GumbelNoise
from mtp import softmax
from tiny import Target

TOLERANCE = 1e-4
"""Tolerance of logits of some 1 to 10: F32 sums in another order."""
TOLERANCE_GELU = 5e-3
"""Tolerance with gelu, which ggml takes from a table in F16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dflash")


def path_of(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    return path if path.exists() else write_dflash(path, SHAPES[name])


@pytest.fixture
def pair(folder: Path, tiny_target: Target) -> Iterator[Pair]:
    with Pair(tiny_target, path_of(folder, "plain"), n_seq_max=3) as made:
        yield made


@pytest.fixture
def hand(folder: Path, pair: Pair) -> Iterator[ByHand]:
    made = ByHand(path_of(folder, "plain"), SHAPES["plain"], pair.ctx)
    yield made
    made.close()


def texts(n: int, length: int = 30, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 256, (n, length)).tolist()


def feed(pair: Pair, text: list[int], seq_id: int = 0, sizes: tuple[int, ...] = ()) -> np.ndarray:
    """Give the rows of a text to the drafter, in pieces; return them."""
    rows = pair.evaluate(text, seq_id)
    first = pair.drafter.n_past(seq_id)
    for size in [*sizes, len(text)]:
        end = min(first + size, len(text))
        pair.drafter.process_rows(rows[first:end], text[first:end], first, seq_id)
        first = end
    assert pair.drafter.n_past(seq_id) == len(text)
    return rows


def check_next(pair: Pair, hand: ByHand, rows: np.ndarray, id_last: int, seq_id: int = 0, pos_first: int = 0) -> None:
    """Check that drafts after these rows are those of llama.cpp driven by hand, in blocks of any length."""
    for n in (1, 4, 7):
        want = hand.block(rows, id_last, hand.shape.n_first + n, pos_first)
        assert draft_chain(pair.drafter, id_last, n, seq_id=seq_id) == want[hand.shape.n_first :].argmax(-1).tolist()
        np.testing.assert_allclose(pair.drafter.block_logits, want, atol=TOLERANCE)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_logits_are_those_of_float64(folder: Path, tiny_target: Target, name: str) -> None:
    """Logits agree with float64 for every part that a file can have, and so do llama.cpp's own."""
    shape = SHAPES[name]
    path = path_of(folder, name)
    tables = tiny_target.weights["model.embed_tokens.weight"], tiny_target.weights["lm_head.weight"]
    block = Block(shape, random_tensors(shape), *tables)
    tolerance = TOLERANCE_GELU if shape.act == "gelu" else TOLERANCE
    (text,) = texts(1, 40)
    with Pair(tiny_target, path) as pair:
        by_hand = ByHand(path, shape, pair.ctx)
        rows = feed(pair, text[:-1], sizes=(1, 20, 3))
        for n in (1, shape.block_size // 2, shape.block_size - shape.n_first):
            want = block.logits(rows, text[-1], shape.n_first + n)
            drafted = draft_chain(pair.drafter, text[-1], n)
            assert drafted == by_hand.drafted(rows, text[-1], n)
            if shape.selector:
                assert drafted == block.drafted(n)
                check_lattice(pair, block, text[-1], n)
                continue
            assert drafted == want[shape.n_first :].argmax(-1).tolist()
            known = np.isfinite(want)
            np.testing.assert_allclose(pair.drafter.block_logits[known], want[known], atol=tolerance)
            assert (pair.drafter.block_logits[~known] == -np.inf).all()
            np.testing.assert_allclose(
                pair.drafter.block_logits[known],
                by_hand.block(rows, text[-1], shape.n_first + n)[known],
                atol=TOLERANCE,
            )
            if shape.has_confidence:
                pair.drafter.begin([0], [text[-1]], 3, n)
                check_confidence(pair, block, want, n)
        by_hand.close()


def check_confidence(pair: Pair, block: Block, logits: np.ndarray, n: int) -> None:
    """Check that the best node's p is the file's, and that the others share the rest."""
    for depth, (row, sure) in enumerate(zip(logits[-n:], block.confidence[-n:], strict=True), 1):
        nodes = [node for node in pair.drafter.nodes if node[3] == depth][:3]
        p = np.sort(softmax(row))[::-1][:3]
        want = [sure, *(p[1:] * (1.0 - sure) / (1.0 - p[0]))]
        np.testing.assert_allclose([node[2] for node in nodes], want, rtol=2e-3, atol=1e-5)
        pair.drafter.expand([i for i, node in enumerate(pair.drafter.nodes) if node[3] == depth][:1], 3)


def check_lattice(pair: Pair, block: Block, id_last: int, n: int) -> None:
    """Check that each node is followed by the candidates of the next row, in their order after it."""
    pair.drafter.begin([0], [id_last], 3, n)
    for depth in range(1, min(n, 3) + 1):
        pair.drafter.expand([i for i, node in enumerate(pair.drafter.nodes) if node[3] == depth], 3)
    nodes = pair.drafter.nodes
    for parent in {node[0] for node in nodes}:
        children = [node for node in nodes if node[0] == parent]
        row = children[0][3]
        place = 0 if parent < 0 else block.candidates[row - 1].tolist().index(nodes[parent][1])
        p = softmax(block.scores[row][place])
        order = np.argsort(-p, kind="stable")[:3]
        assert [node[1] for node in children] == block.candidates[row][order].tolist()
        np.testing.assert_allclose([node[2] for node in children], p[order], rtol=2e-3, atol=1e-6)


def test_drafts(pair: Pair, hand: ByHand) -> None:
    """Drafts are right as in speculative decoding: with waiting rows, rejected drafts, a long piece."""
    (text,) = texts(1, 60)
    rows = pair.evaluate(text)
    n = 25
    pair.drafter.process_rows(rows[: n - 1], text[: n - 1], 0)
    for n_accepted in (0, 2, 1, 20):
        check_next(pair, hand, rows[: n - 1], text[n - 1])
        pair.drafter.process_rows(rows[n - 1 : n + n_accepted], text[n - 1 : n + n_accepted], n - 1)
        n += n_accepted + 1
    check_next(pair, hand, rows[: n - 1], text[n - 1])


def test_deferred_rows(pair: Pair, hand: ByHand) -> None:
    """Deferred rows are processed when they are needed, in as few passes as possible."""
    (text,) = texts(1, 60)
    rows = pair.evaluate(text)
    for first in range(0, 59, 7):
        end = min(first + 7, 59)
        pair.drafter.process_rows(rows[first:end], text[first:end], first, can_defer=True)
        assert pair.drafter.n_waiting() == end
    check_next(pair, hand, rows[:59], text[59])
    assert pair.drafter.n_waiting() == 0


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
@pytest.mark.parametrize("name", ["plain", "window", "causal", "m-rope", "dspark", "dspark-bonus", "dflash2"])
def test_sequences_draft_together(folder: Path, tiny_target: Target, name: str, is_pooled: bool) -> None:
    """A sequence drafts beside others as it does alone, with any waiting rows and draft lengths of the others."""
    path, shape = path_of(folder, name), SHAPES[name]
    with Pair(tiny_target, path, n_seq_max=3, is_pooled=is_pooled) as pair:
        hand = ByHand(path, shape, pair.ctx)
        all_texts = [t[:n] for t, n in zip(texts(3), (30, 17, 9), strict=True)]
        rows = [feed(pair, t[:-1], i, sizes=(i + 1,)) for i, t in enumerate(all_texts)]
        order, n_max = [2, 0, 1], [5, 1, 3]  # all blocks are as long as the longest
        want = [hand.drafted(rows[i], all_texts[i][-1], 5)[:n] for i, n in zip(order, n_max, strict=True)]
        assert draft_chains(pair.drafter, order, [all_texts[i][-1] for i in order], n_max) == want
        want = [hand.drafted(rows[i], all_texts[i][-1], 2) for i in (2, 0)]
        assert draft_chains(pair.drafter, [2, 0], [all_texts[2][-1], all_texts[0][-1]], [2, 2]) == want
        assert draft_chains(pair.drafter, [1, 0], [all_texts[1][-1], all_texts[0][-1]], [0, 2]) == [[], want[1]]
        hand.close()


def test_more_blocks_than_a_pass_has_room_for(folder: Path, tiny_target: Target) -> None:
    shape = SHAPES["long-block"]
    path = path_of(folder, "long-block")
    n_seq = 20  # blocks of 16 rows, of which 256 fit
    with Pair(tiny_target, path, n_seq_max=n_seq, n_ctx=1024) as pair:
        hand = ByHand(path, shape, pair.ctx)
        all_texts = texts(n_seq, 12)
        rows = [feed(pair, t[:-1], i) for i, t in enumerate(all_texts)]
        found = draft_chains(pair.drafter, list(range(n_seq)), [t[-1] for t in all_texts], [15] * n_seq)
        assert found == [hand.drafted(r, t[-1], 15) for r, t in zip(rows, all_texts, strict=True)]
        hand.close()


def test_nodes_of_a_tree(pair: Pair, hand: ByHand) -> None:
    """Level after level, a row's tokens follow every node of the level before, with probabilities of all tokens."""
    both = texts(2, 20, seed=3)
    rows = [feed(pair, t[:-1], i) for i, t in enumerate(both)]
    pair.drafter.begin([0, 1], [t[-1] for t in both], 3, 4)
    n_graphs = pair.drafter.n_steps
    for depth in (1, 2, 3, 4):
        nodes = pair.drafter.nodes
        pair.drafter.expand([i for i, node in enumerate(nodes) if node[3] == depth and i % 3 != 1], 3)
    assert pair.drafter.n_steps == n_graphs
    nodes = pair.drafter.nodes
    assert max(node[3] for node in nodes) == 4
    p = [softmax_rows(hand.block(r, t[-1], 5)[1:]) for r, t in zip(rows, both, strict=True)]
    for parent in {(node[0], node[4]) for node in nodes}:
        children = [node for node in nodes if (node[0], node[4]) == parent]
        row = p[parent[1]][children[0][3] - 1]
        assert {node[3] for node in children} == {nodes[parent[0]][3] + 1 if parent[0] >= 0 else 1}
        assert [node[1] for node in children] == np.argsort(-row, kind="stable")[:3].tolist()
        np.testing.assert_allclose([node[2] for node in children], np.sort(row)[::-1][:3], rtol=1e-3)
    check_next(pair, hand, rows[0], both[0][-1])


def softmax_rows(logits: np.ndarray) -> np.ndarray:
    return np.stack([softmax(row) for row in logits])


def test_p_min_ends_a_chain(pair: Pair, hand: ByHand) -> None:
    """As in llama.cpp, p_min ends a chain by the probability among the ten best."""
    (text,) = texts(1, 20, seed=5)
    rows = feed(pair, text[:-1])
    logits = hand.block(rows, text[-1], 8)[1:]
    shares = []
    for p in softmax_rows(logits):
        best = np.sort(p)[::-1][:10]
        shares.append(best[0] / best.sum())
    for p_min in sorted(shares):
        for edge in (p_min - 1e-3, p_min + 1e-3):
            n = next((i for i, share in enumerate(shares) if share < edge), 7)
            assert draft_chain(pair.drafter, text[-1], 7, edge) == logits.argmax(-1).tolist()[:n]


@pytest.mark.parametrize("name", ["dspark", "dflash2"])
def test_p_min_ends_a_chain_where_the_drafter_is_not_sure(folder: Path, tiny_target: Target, name: str) -> None:
    """As in llama.cpp, p_min ends a chain by DSpark's confidence, and by the probability among DFlash2's candidates."""
    shape = SHAPES[name]
    (text,) = texts(1, 20, seed=5)
    with Pair(tiny_target, path_of(folder, name)) as pair:
        hand = ByHand(path_of(folder, name), shape, pair.ctx)
        rows = feed(pair, text[:-1])
        chain = hand.drafted(rows, text[-1], 6)
        if name == "dspark":
            shares = hand.nextn[:, 0].tolist()
        else:
            shares, best, k = [], 0, shape.selector[1]
            for row in hand.nextn[1:]:
                p = softmax(row[k + best * k :][:k])
                best = int(p.argmax())
                shares.append(p[best])
        for p_min in sorted(shares):
            for edge in (p_min - 1e-3, p_min + 1e-3):
                n = next((i for i, share in enumerate(shares) if share < edge), 6)
                assert draft_chain(pair.drafter, text[-1], 6, edge) == chain[:n]
        hand.close()


def test_dice_choose_among_candidates(folder: Path, tiny_target: Target) -> None:
    """DFlash2 chooses each token by the one before, temperature and noise."""
    shape = SHAPES["dflash2-window"]
    path, k = path_of(folder, "dflash2-window"), shape.selector[1]
    (text,) = texts(1, 20, seed=4)
    with Pair(tiny_target, path) as pair:
        hand = ByHand(path, shape, pair.ctx)
        rows = feed(pair, text[:-1])
        plain = draft_chain(pair.drafter, text[-1], 4)
        hand.drafted(rows, text[-1], 4)
        others = 0
        for seed in range(6):
            noise = GumbelNoise(seed, temperature=1.5)
            pair.drafter.set_noise(noise)
            want, best = [], 0
            for ahead, row in enumerate(hand.nextn[1:]):
                ids, scores = row[:k].astype(int).tolist(), row[k + best * k :][:k]
                draws = [x / 1.5 + noise(t, ahead) for t, x in zip(ids, scores, strict=True)]
                best = int(np.argmax(draws))
                want.append(ids[best])
            assert draft_chain(pair.drafter, text[-1], 4) == want
            others += want != plain
        assert others > 3
        hand.close()


def test_a_scale_of_the_logits(folder: Path, tiny_target: Target) -> None:
    """llama.cpp leaves the scale out of the graph; it counts in probabilities."""
    shape = shape_of("plain")
    path = write_dflash(folder / "scale.gguf", shape, logit_scale=0.5, final_logit_softcapping=4.0)
    (text,) = texts(1, 20)
    with Pair(tiny_target, path) as pair:
        by_hand = ByHand(path, shape, pair.ctx)
        rows = feed(pair, text[:-1])
        pair.drafter.begin([0], [text[-1]], 3)
        p = np.sort(softmax(4.0 * np.tanh(0.5 / 4.0 * by_hand.block(rows, text[-1], 2)[1])))[::-1]
        np.testing.assert_allclose([node[2] for node in pair.drafter.nodes], p[:3], rtol=1e-3)
        by_hand.close()


def test_going_back(pair: Pair, hand: ByHand) -> None:
    """A drafter goes back to another text, among waiting rows and among processed ones. No row comes twice."""
    old, new = texts(2, 40, seed=7)
    feed(pair, old[:-1], sizes=(20, 10))
    draft_chain(pair.drafter, old[-1], 3)
    for n in (38, 30, 12):
        text = [*old[:n], *new[n:]]
        rows = pair.evaluate(text)
        assert pair.drafter.truncate(n) == n
        pair.drafter.process_rows(rows[n:-1], text[n:-1], n)
        check_next(pair, hand, rows[:-1], text[-1])
        old = text
    assert pair.drafter.truncate(0) == 0
    assert draft_chain(pair.drafter, 1, 3) == []


def test_going_on_without_what_lies_before(pair: Pair, hand: ByHand) -> None:
    (text,) = texts(1, 40, seed=8)
    rows = pair.evaluate(text)
    pair.drafter.restart(10)
    assert draft_chain(pair.drafter, text[10], 3) == []
    pair.drafter.process_rows(rows[10:-1], text[10:-1], 10)
    check_next(pair, hand, rows[10:-1], text[-1], pos_first=10)
    assert pair.drafter.truncate(5) == 5
    assert draft_chain(pair.drafter, text[5], 3) == []


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
@pytest.mark.parametrize("name", ["plain", "window", "dspark", "dspark-bonus"])
def test_copies(folder: Path, tiny_target: Target, name: str, is_pooled: bool) -> None:
    """A prefix of another sequence continues with other tokens; the source stays."""
    path, shape = path_of(folder, name), SHAPES[name]
    with Pair(tiny_target, path, n_seq_max=2, is_pooled=is_pooled) as pair:
        hand = ByHand(path, shape, pair.ctx)
        source, other = texts(2, 40, seed=9)
        rows = feed(pair, source[:-1])
        draft_chain(pair.drafter, source[-1], 3)
        for n in (39, 25):
            text = [*source[:n], *other[n:]]
            assert pair.drafter.copy(0, 1, n) == n
            copied = pair.evaluate(text, 1)
            pair.drafter.process_rows(copied[n:-1], text[n:-1], n, 1)
            check_next(pair, hand, copied[:-1], text[-1], 1)
            check_next(pair, hand, rows, source[-1])
        hand.close()


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
@pytest.mark.parametrize("name", ["plain", "window", "dspark", "dspark-bonus"])
def test_states(folder: Path, tiny_target: Target, name: str, is_pooled: bool) -> None:
    """A saved state drafts the same in another sequence and another drafter, with waiting rows and without."""
    path, shape = path_of(folder, name), SHAPES[name]
    with Pair(tiny_target, path, n_seq_max=2, is_pooled=is_pooled) as pair:
        hand = ByHand(path, shape, pair.ctx)
        (text,) = texts(1, 40, seed=10)
        rows = feed(pair, text[:-1], sizes=(30, 3))
        states = [pair.drafter.state_get()]
        draft_chain(pair.drafter, text[-1], 3)
        states.append(pair.drafter.state_get())
        check_next(pair, hand, rows, text[-1])
        first, second = pair.drafter, pair.make_drafter()
        pair.drafter = second
        for seq_id, state in enumerate(states):
            second.state_set(state, seq_id)
            assert second.n_past(seq_id) == 39
            check_next(pair, hand, rows, text[-1], seq_id)
        assert len(second.state_get(1)) == len(states[1])
        check_damaged_states(pair.drafter, states[1], 32)
        pair.drafter = first
        second.close()
        hand.close()


def test_drafts_that_know_the_dice(pair: Pair, hand: ByHand) -> None:
    """With noise, chains and nodes draft the tokens that it makes the best; without it nothing changes."""
    both = texts(2, 20, seed=4)
    rows = [feed(pair, t[:-1], i) for i, t in enumerate(both)]
    ids_last = [t[-1] for t in both]
    plain = draft_chains(pair.drafter, [0, 1], ids_last, [3, 3])
    logits = hand.block(rows[0], ids_last[0], 4)[1:]
    n_other = 0
    for seed in range(6):
        noise = GumbelNoise(seed, temperature=1.5)
        pair.drafter.set_noise(noise, 0)
        found = draft_chains(pair.drafter, [0, 1], ids_last, [3, 3])
        assert found[1] == plain[1]
        want = []
        for ahead, x in enumerate(logits):
            want.append(max(np.argsort(-x)[:16].tolist(), key=lambda t: x[t] / 1.5 + noise(t, ahead)))
        assert found[0] == want
        n_other += found[0] != plain[0]
        pair.drafter.begin([0, 1], ids_last, 2, 3)
        first = [next(node[1] for node in pair.drafter.nodes if node[4] == i) for i in range(2)]
        assert first == [found[0][0], plain[1][0]]
    assert n_other > 3
    pair.drafter.set_noise(None, 0)
    assert draft_chains(pair.drafter, [0, 1], ids_last, [3, 3]) == plain


def test_the_end_of_the_context(folder: Path, tiny_target: Target) -> None:
    with Pair(tiny_target, path_of(folder, "plain"), n_ctx=256) as pair:
        (text,) = texts(1, 256)
        rows = pair.evaluate(text)
        pair.drafter.process_rows(rows[:254], text[:254], 0)
        assert len(draft_chain(pair.drafter, text[254], 7)) == 3
        pair.drafter.process_rows(rows[254:], text[254:], 254)
        assert len(draft_chain(pair.drafter, 1, 7)) == 1
        with pytest.raises(ContextFullError, match="has 256 slots, position 256"):
            pair.drafter.process_rows(rows[:1], text[:1], 256)


def test_a_longer_draft_than_a_block(pair: Pair) -> None:
    """A draft is as long as a block, if a request asks for more than the file was trained for."""
    (text,) = texts(1, 10)
    feed(pair, text)
    assert len(draft_chain(pair.drafter, 1, 100)) == pair.file.n_draft_max == 7


def test_wrong_arguments_are_refused(pair: Pair) -> None:
    (text,) = texts(1, 10)
    feed(pair, text)
    drafter = pair.drafter
    for call in (
        lambda: draft_chain(drafter, 10**6, 2),
        lambda: draft_chain(drafter, -1, 2),
        lambda: draft_chain(drafter, 1, 2, seq_id=3),
        lambda: draft_chains(drafter, [0, 0], [1, 1], [1, 1]),
        lambda: drafter.begin([0], [1], 0),
        lambda: drafter.begin([0], [1], 1, 8),
        lambda: drafter.copy(0, 0, 3),
        lambda: drafter.copy(0, 1, 11),
        lambda: drafter.restart(-1),
    ):
        with pytest.raises(ValueError, match=r"expected|sequence|token|id"):
            call()
    drafter.begin([0], [1], 2, 2)
    drafter.expand([0], 2)
    for nodes in ([0], [9], [1, 1]):
        with pytest.raises(ValueError, match="node"):
            drafter.expand(nodes, 2)
    with pytest.raises(Eagle3Error, match="expects rows from position 10"):
        drafter.process_rows(np.zeros((1, 128), np.float32), [1], 5)
    drafter.close()
    with pytest.raises(Eagle3Error, match="closed"):
        draft_chain(drafter, 1, 2)
