"""The block for multi-token prediction as a drafter matches float64 and llama.cpp's own MTP context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from arch_keys import MTP, arch_of
from damaged_states import check_damaged_states
from drafting import draft_chain, draft_chains
from llama_cpp_eagle3 import ContextFullError, Eagle3Error
from llama_cpp_eagle3._core import GumbelNoise
from mtp import ByHand, Pair, by_hand, softmax
from mtp_reference import Block
from random_arch import write_random_arch

TOLERANCE = 1e-4
"""Tolerance of logits of some 1 to 10: F32 sums in another order."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return write_random_arch(folder, "mimo2-mtp")


@pytest.fixture
def pair(path: Path) -> Iterator[Pair]:
    with Pair(path, n_seq_max=3) as made:
        yield made


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


def check_next(pair: Pair, hand: ByHand, text: list[int], rows: np.ndarray, seq_id: int = 0, n: int = 3) -> None:
    """Check that drafts after a text are those of the block driven by hand, step by step."""
    want, logits = hand.chain(text[:-1], rows[: len(text) - 1], text[-1], n)
    for i in range(1, n + 1):
        assert draft_chain(pair.drafter, text[-1], i, seq_id=seq_id) == want[:i]
        np.testing.assert_allclose(pair.drafter.draft_logits, logits[i - 1], atol=TOLERANCE)


@pytest.mark.parametrize("row", ["mimo2-mtp", "qwen35-mtp"])
def test_logits_are_those_of_float64(folder: Path, row: str) -> None:
    block = Block(write_random_arch(folder, row), arch_of(row))
    (text,) = texts(1, 40)
    with Pair(block_path(folder, row)) as pair:
        rows = feed(pair, text[:-1], sizes=(1, 20, 3))
        logits, states = block.rows(text[1:], rows)
        assert draft_chain(pair.drafter, text[-1], 1) == [int(logits[-1].argmax())]
        scale = np.abs(logits[-1]).max()
        np.testing.assert_allclose(pair.drafter.draft_logits, logits[-1], atol=TOLERANCE * scale)
        np.testing.assert_allclose(pair.drafter.hidden_state, states[-1], atol=TOLERANCE * np.abs(states[-1]).max())
        # two steps on its own rows
        for _ in range(2):
            text = [*text, int(logits[-1].argmax())]
            rows = np.concatenate([rows, states[-1:]])
            logits, states = block.rows(text[1:], rows)
        draft_chain(pair.drafter, text[-3], 3)
        np.testing.assert_allclose(pair.drafter.draft_logits, logits[-1], atol=TOLERANCE * scale)


def test_logits_of_chained_blocks_are_those_of_float64(folder: Path) -> None:
    """Block i drafts token i, the last one all after it, from the states of the blocks before."""
    row = "mimo2-mtp3"
    path = write_random_arch(folder, row)
    blocks = [Block(path, arch_of(row), i) for i in range(3)]
    (text,) = texts(1, 40)
    with Pair(path) as pair:
        rows = feed(pair, text[:-1], sizes=(1, 20, 3))
        tokens = text[1:]
        for n in range(1, 6):
            logits, states = blocks[min(n, 3) - 1].rows(tokens, rows)
            tokens, rows = [*tokens, int(logits[-1].argmax())], np.concatenate([rows, states[-1:]])
            assert draft_chain(pair.drafter, text[-1], n) == tokens[-n:]
            np.testing.assert_allclose(pair.drafter.draft_logits, logits[-1], atol=TOLERANCE * np.abs(logits[-1]).max())


def block_path(folder: Path, row: str) -> Path:
    return folder / f"{row}.gguf"


@pytest.mark.parametrize("row", sorted(MTP))
def test_every_architecture(folder: Path, row: str) -> None:
    """Steps are right as in speculative decoding: with waiting rows, rejected drafts, a long piece."""
    (text,) = texts(1, 60)
    with Pair(write_random_arch(folder, row)) as pair:
        hand = by_hand(pair.model)
        rows = pair.evaluate(text)
        n = 25
        pair.drafter.process_rows(rows[: n - 1], text[: n - 1], 0)
        for n_accepted in (0, 2, 1, 20):
            check_next(pair, hand, text[:n], rows)
            pair.drafter.process_rows(rows[n - 1 : n + n_accepted], text[n - 1 : n + n_accepted], n - 1)
            n += n_accepted + 1
        check_next(pair, hand, text[:n], rows)
        hand.close()


@pytest.fixture(scope="module", params=["mimo2-mtp", "mimo2-mtp3"])
def path_of_blocks(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Return a file with one block, and one with three chained blocks."""
    return write_random_arch(folder, request.param)


@pytest.fixture
def pair_of_blocks(path_of_blocks: Path) -> Iterator[Pair]:
    with Pair(path_of_blocks, n_seq_max=3) as made:
        yield made


@pytest.mark.parametrize("n_ubatch", [4, 64])
@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_sequences_draft_together(path_of_blocks: Path, is_pooled: bool, n_ubatch: int) -> None:
    """Each sequence drafts as it does alone, with any waiting rows of the others; ubatches are smaller than rows."""
    with Pair(path_of_blocks, n_seq_max=3, is_pooled=is_pooled, n_ubatch=n_ubatch) as pair:
        pair.drafter.close()
        pair.drafter = pair.make_drafter(n_ubatch=n_ubatch)
        hand = by_hand(pair.model)
        all_texts = [t[:n] for t, n in zip(texts(3), (30, 17, 9), strict=True)]
        rows = [feed(pair, t[:-1], i, sizes=(i + 1,)) for i, t in enumerate(all_texts)]
        want = [hand.chain(t[:-1], r, t[-1], 4)[0][:n] for t, r, n in zip(all_texts, rows, (4, 1, 3), strict=True)]
        order = [2, 0, 1]
        found = draft_chains(pair.drafter, order, [all_texts[i][-1] for i in order], [[4, 1, 3][i] for i in order])
        assert found == [want[i] for i in order]
        assert draft_chains(pair.drafter, [1, 0], [all_texts[1][-1], all_texts[0][-1]], [0, 2]) == [[], want[0][:2]]
        hand.close()


def test_nodes_of_a_tree(pair_of_blocks: Pair) -> None:
    """Every path gives the block's logits of that path alone, with probabilities over the whole vocabulary."""
    pair = pair_of_blocks
    hand = by_hand(pair.model)
    both = texts(2, 20, seed=3)
    rows = [feed(pair, t[:-1], i) for i, t in enumerate(both)]
    pair.drafter.begin([0, 1], [t[-1] for t in both], 3)
    for width in (4, 5, 3):
        n = len(pair.drafter.nodes)
        depth = max(node[3] for node in pair.drafter.nodes)
        last = [i for i in range(n) if pair.drafter.nodes[i][3] == depth]
        pair.drafter.expand(last[:width], 3)
    nodes = pair.drafter.nodes
    assert {node[4] for node in nodes} == {0, 1}
    with_children = sorted({node[0] for node in nodes} - {-1})
    assert len(with_children) == 12
    for i in with_children:
        path, j = [], i
        while j >= 0:
            path.insert(0, nodes[j][1])
            j = nodes[j][0]
        seq_id = nodes[i][4]
        text = both[seq_id]
        p = softmax(hand.path(text[:-1], rows[seq_id], [text[-1], *path]))
        children = [node for node in nodes if node[0] == i]
        assert [node[1] for node in children] == np.argsort(-p, kind="stable")[:3].tolist()
        np.testing.assert_allclose([node[2] for node in children], np.sort(p)[::-1][:3], rtol=1e-3)
    check_next(pair, hand, both[0], rows[0])
    hand.close()


def test_p_min_ends_a_chain(pair: Pair) -> None:
    """As in llama.cpp, p_min ends a chain by the probability among the ten best."""
    hand = ByHand(pair.model)
    (text,) = texts(1, 20, seed=5)
    rows = feed(pair, text[:-1])
    chain, logits = hand.chain(text[:-1], rows, text[-1], 4)
    shares = []
    for x in logits:
        best = np.sort(softmax(x))[::-1][:10]
        shares.append(best[0] / best.sum())
    for p_min in sorted(shares):
        for edge in (p_min - 1e-3, p_min + 1e-3):
            n = next((i for i, share in enumerate(shares) if share < edge), 4)
            assert draft_chain(pair.drafter, text[-1], 4, edge) == chain[:n]
    hand.close()


def test_going_back(pair_of_blocks: Pair) -> None:
    """A drafter goes back to another text, or to the same one, in slots and waiting rows."""
    pair = pair_of_blocks
    hand = by_hand(pair.model)
    old, new = texts(2, 40, seed=7)
    rows = feed(pair, old[:-1])
    draft_chain(pair.drafter, old[-1], 3)
    for n in (38, 30, 12):
        text = [*old[:n], *new[n:]]
        rows = pair.evaluate(text)
        n_seen = pair.drafter.truncate(n)
        assert n - 1 <= n_seen <= n
        pair.drafter.process_rows(rows[n_seen:-1], text[n_seen:-1], n_seen)
        check_next(pair, hand, text, rows)
        old = text
    assert pair.drafter.truncate(20, same_next=True) == 20
    pair.drafter.process_rows(rows[20:-1], old[20:-1], 20)
    check_next(pair, hand, old, rows)
    hand.close()


def test_going_on_without_what_lies_before(pair: Pair) -> None:
    hand = ByHand(pair.model)
    (text,) = texts(1, 40, seed=8)
    rows = pair.evaluate(text)
    pair.drafter.restart(10)
    pair.drafter.process_rows(rows[10:-1], text[10:-1], 10)
    want = hand.path(text[10:-1], rows[10:-1], [text[-1]], pos_first=10)
    assert draft_chain(pair.drafter, text[-1], 1) == [int(want.argmax())]
    np.testing.assert_allclose(pair.drafter.draft_logits, want, atol=TOLERANCE)
    hand.close()


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_copies(path_of_blocks: Path, is_pooled: bool) -> None:
    """A prefix of another sequence continues with other tokens; the source stays."""
    with Pair(path_of_blocks, n_seq_max=2, is_pooled=is_pooled) as pair:
        hand = by_hand(pair.model)
        source, other = texts(2, 40, seed=9)
        rows = feed(pair, source[:-1])
        draft_chain(pair.drafter, source[-1], 3)
        for n in (39, 25):
            text = [*source[:n], *other[n:]]
            n_seen = pair.drafter.copy(0, 1, n)
            assert n - 1 <= n_seen <= n
            copied = pair.evaluate(text, 1)
            pair.drafter.process_rows(copied[n_seen:-1], text[n_seen:-1], n_seen, 1)
            check_next(pair, hand, text, copied, 1)
            check_next(pair, hand, source, rows)
        hand.close()


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_states(path_of_blocks: Path, is_pooled: bool) -> None:
    """A saved state drafts the same in another sequence and another drafter, with waiting rows and without."""
    with Pair(path_of_blocks, n_seq_max=2, is_pooled=is_pooled) as pair:
        hand = by_hand(pair.model)
        (text,) = texts(1, 40, seed=10)
        rows = feed(pair, text[:-1], sizes=(30, 3))
        states = [pair.drafter.state_get()]
        draft_chain(pair.drafter, text[-1], 3)
        states.append(pair.drafter.state_get())
        first, second = pair.drafter, pair.make_drafter()
        pair.drafter = second
        for seq_id, state in enumerate(states):
            second.state_set(state, seq_id)
            assert second.n_past(seq_id) == 39
            check_next(pair, hand, text, rows, seq_id)
        assert len(second.state_get(1)) == len(states[1])
        check_damaged_states(pair.drafter, states[1], 32)
        pair.drafter = first
        second.close()
        hand.close()


def test_drafts_that_know_the_dice(pair: Pair) -> None:
    """With noise, chains and nodes draft the tokens that it makes the best; without it nothing changes."""
    hand = ByHand(pair.model)
    both = texts(2, 20, seed=4)
    rows = [feed(pair, t[:-1], i) for i, t in enumerate(both)]
    ids_last = [t[-1] for t in both]
    plain = draft_chains(pair.drafter, [0, 1], ids_last, [3, 3])
    n_other = 0
    for seed in range(6):
        noise = GumbelNoise(seed, temperature=1.5)
        pair.drafter.set_noise(noise, 0)
        found = draft_chains(pair.drafter, [0, 1], ids_last, [3, 3])
        assert found[1] == plain[1]
        drafted = [ids_last[0]]
        for ahead in range(3):
            x = hand.path(both[0][:-1], rows[0], drafted)
            drafted.append(max(np.argsort(-x)[:16].tolist(), key=lambda t: x[t] / 1.5 + noise(t, ahead)))
        assert found[0] == drafted[1:]
        n_other += found[0] != plain[0]
        pair.drafter.begin([0, 1], ids_last, 2)
        first = [next(node[1] for node in pair.drafter.nodes if node[4] == i) for i in range(2)]
        assert first == [found[0][0], plain[1][0]]
    assert n_other > 3
    pair.drafter.set_noise(None, 0)
    assert draft_chains(pair.drafter, [0, 1], ids_last, [3, 3]) == plain
    hand.close()


def test_the_end_of_the_context(path: Path) -> None:
    with Pair(path, n_ctx=256) as pair:
        (text,) = texts(1, 256)
        rows = pair.evaluate(text)
        pair.drafter.process_rows(rows[:254], text[:254], 0)
        assert len(draft_chain(pair.drafter, text[254], 10)) == 3
        pair.drafter.process_rows(rows[254:], text[254:], 254)
        assert draft_chain(pair.drafter, 1, 10) == [pair.drafter.draft_logits.argmax()]
        with pytest.raises(ContextFullError, match="has 256 slots, position 256"):
            pair.drafter.process_rows(rows[:1], text[:1], 256)


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
        lambda: drafter.begin([0], [1], 1, 2),
        lambda: drafter.copy(0, 0, 3),
        lambda: drafter.copy(0, 1, 11),
        lambda: drafter.restart(-1),
    ):
        with pytest.raises(ValueError, match=r"expected|sequence|token|id"):
            call()
    drafter.begin([0], [1], 2)
    drafter.expand([0], 2)
    for nodes in ([0], [9], [1, 1]):
        with pytest.raises(ValueError, match="node"):
            drafter.expand(nodes, 2)
    with pytest.raises(Eagle3Error, match="expects rows from position 10"):
        drafter.process_rows(np.zeros((1, 64), np.float32), [1], 5)
    drafter.close()
    with pytest.raises(Eagle3Error, match="closed"):
        draft_chain(drafter, 1, 2)
