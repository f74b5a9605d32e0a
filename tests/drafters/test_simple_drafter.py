"""A small model as a drafter matches the same model in a plain context of llama.cpp that is driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from damaged_states import check_damaged_states
from drafting import draft_chain, draft_chains
from llama_cpp_eagle3 import ContextFullError, Eagle3Error
from llama_cpp_eagle3._core import GumbelNoise, SimpleDrafter
from mtp import softmax
from random_arch import write_random_arch
from small import ByHand, make_drafter

TOLERANCE = 3e-4
"""Tolerance of logits of some 1 to 10: F32 sums in another order; ggml's with AVX-512 differ by 1.6e-4."""
KINDS = ("llama", "gemma3", "qwen2vl", "mamba2", "qwen3next", "lfm2")
"""Small models with attention, a window, sections of RoPE; with a state alone, and beside attention."""
RECURRENT = ("mamba2", "qwen3next", "lfm2")
N_SINKS, N_WINDOW = 4, 1024
N_LONG = 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(folder: Path, kind: str) -> Path:
    return write_random_arch(folder, kind)


@pytest.fixture(scope="module")
def hand(path: Path) -> Iterator[ByHand]:
    made = ByHand(path)
    yield made
    made.close()


@pytest.fixture
def drafter(path: Path) -> Iterator[SimpleDrafter]:
    made = make_drafter(path, n_seq_max=3)
    yield made
    made.close()


def texts(n: int, length: int = 30, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 256, (n, length)).tolist()


def feed(drafter: SimpleDrafter, tokens: list[int], seq_id: int = 0, sizes: tuple[int, ...] = ()) -> None:
    """Give a text to the drafter, in pieces."""
    first = drafter.n_past(seq_id)
    for size in [*sizes, len(tokens)]:
        end = min(first + size, len(tokens))
        drafter.process(None, tokens[first:end], first, seq_id)
        first = end
    assert drafter.n_past(seq_id) == len(tokens)


def check_next(drafter: SimpleDrafter, hand: ByHand, text: list[int], seq_id: int = 0, n: int = 3) -> None:
    """Check that the draft after a text, whose last token the drafter lacks, is its greedy continuation."""
    want, logits = hand.chain(text, n)
    for i in range(1, n + 1):
        assert draft_chain(drafter, text[-1], i, seq_id=seq_id) == want[:i]
        np.testing.assert_allclose(drafter.draft_logits, logits[i - 1], atol=TOLERANCE)


def test_drafts(drafter: SimpleDrafter, hand: ByHand) -> None:
    """Steps are right as in speculative decoding: from the first token on, with rejected drafts, a long piece."""
    (text,) = texts(1, 60)
    n = 1
    for n_accepted in (0, 2, 1, 25, 3):
        check_next(drafter, hand, text[:n])
        drafter.process(None, text[n - 1 : n + n_accepted], n - 1)
        n += n_accepted + 1
    check_next(drafter, hand, text[:n])


def test_what_was_accepted_is_evaluated_once(path: Path, hand: ByHand) -> None:
    """Accepted tokens and the first draft take one pass, and each further draft one."""
    drafter = make_drafter(path)
    (text,) = texts(1, 20)
    feed(drafter, text[:-1], sizes=(5, 5, 5))
    assert drafter.n_steps == 0
    assert drafter.n_waiting(0) == 20
    drafted = draft_chain(drafter, text[-1], 3)
    n_before = drafter.n_steps
    drafter.process(None, [text[-1], *drafted], 19)
    assert drafter.n_waiting(0) == 4  # the last token of the text was evaluated already; id_last is the fourth
    check_next(drafter, hand, [*text, *drafted, 7], n=1)
    assert drafter.n_steps == n_before + 1
    drafter.close()


@pytest.mark.parametrize("n_ubatch", [4, 64])
@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_sequences_draft_together(path: Path, hand: ByHand, is_pooled: bool, n_ubatch: int) -> None:
    """Each sequence drafts as it does alone, with any waiting tokens of the others; ubatches are smaller than rows."""
    drafter = make_drafter(path, n_seq_max=3, is_pooled=is_pooled, n_ubatch=n_ubatch)
    all_texts = [t[:n] for t, n in zip(texts(3), (30, 17, 9), strict=True)]
    for i, t in enumerate(all_texts):
        feed(drafter, t[:-1], i, sizes=(i + 1,))
    n_max = (4, 1, 3)
    want = [hand.chain(t, n)[0] for t, n in zip(all_texts, n_max, strict=True)]
    order = [2, 0, 1]
    found = draft_chains(drafter, order, [all_texts[i][-1] for i in order], [n_max[i] for i in order])
    assert found == [want[i] for i in order]
    assert draft_chains(drafter, [1, 0], [all_texts[1][-1], all_texts[0][-1]], [0, 2]) == [[], want[0][:2]]
    drafter.close()


def test_nodes_of_a_tree(drafter: SimpleDrafter, hand: ByHand, kind: str) -> None:
    """Every path gives the model's logits of that path alone; with a recurrent state there is one path."""
    both = texts(2, 20, seed=3)
    for i, t in enumerate(both):
        feed(drafter, t[:-1], i)
    drafter.begin([0, 1], [t[-1] for t in both], 3)
    for width in (4, 5, 3):
        nodes = drafter.nodes
        depth = max(node[3] for node in nodes)
        drafter.expand([i for i, node in enumerate(nodes) if node[3] == depth][:width], 3)
    nodes = drafter.nodes
    with_children = sorted({node[0] for node in nodes} - {-1})
    assert len(with_children) == (12 if kind not in RECURRENT else 5)
    for i in with_children:
        path, j = [], i
        while j >= 0:
            path.insert(0, nodes[j][1])
            j = nodes[j][0]
        p = softmax(hand.logits([*both[nodes[i][4]], *path])[-1])
        children = [node for node in nodes if node[0] == i]
        assert [node[1] for node in children] == np.argsort(-p, kind="stable")[:3].tolist()
        np.testing.assert_allclose([node[2] for node in children], np.sort(p)[::-1][:3], rtol=1e-3)
    check_next(drafter, hand, both[0])
    check_next(drafter, hand, both[1], 1)


def test_going_back(drafter: SimpleDrafter, hand: ByHand) -> None:
    """A drafter goes back to another text, or to the same one: no token is requested again."""
    old, new = texts(2, 40, seed=7)
    feed(drafter, old[:-1])
    draft_chain(drafter, old[-1], 3)
    for n in (38, 30, 12):
        text = [*old[:n], *new[n:]]
        assert drafter.truncate(n) == n
        drafter.process(None, text[n:-1], n)
        check_next(drafter, hand, text)
        old = text
    assert drafter.truncate(20, same_next=True) == 20
    drafter.process(None, old[20:-1], 20)
    check_next(drafter, hand, old)
    assert drafter.truncate(0) == 0
    check_next(drafter, hand, [5])


def test_going_on_without_what_lies_before(drafter: SimpleDrafter, hand: ByHand) -> None:
    (text,) = texts(1, 40, seed=8)
    drafter.restart(10)
    drafter.process(None, text[10:-1], 10)
    want = hand.logits(text[10:], 10)[-1]
    assert draft_chain(drafter, text[-1], 1) == [int(want.argmax())]
    np.testing.assert_allclose(drafter.draft_logits, want, atol=TOLERANCE)


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_copies(path: Path, hand: ByHand, is_pooled: bool) -> None:
    """A prefix of another sequence continues with other tokens; the source stays."""
    drafter = make_drafter(path, n_seq_max=2, is_pooled=is_pooled)
    source, other = texts(2, 40, seed=9)
    feed(drafter, source[:-1])
    draft_chain(drafter, source[-1], 3)
    for n in (39, 25):
        text = [*source[:n], *other[n:]]
        assert drafter.copy(0, 1, n) == n
        drafter.process(None, text[n:-1], n, 1)
        text = text if n < 39 else [*source[:39], other[39]]
        check_next(drafter, hand, text, 1)
        check_next(drafter, hand, source)
    drafter.close()


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "split"])
def test_states(path: Path, hand: ByHand, is_pooled: bool) -> None:
    """A saved state drafts the same in another sequence and another drafter, with waiting tokens and without."""
    drafter = make_drafter(path, n_seq_max=2, is_pooled=is_pooled)
    (text,) = texts(1, 40, seed=10)
    feed(drafter, text[:-1], sizes=(30, 3))
    states = [drafter.state_get()]
    draft_chain(drafter, text[-1], 3)
    states.append(drafter.state_get())
    other = make_drafter(path, n_seq_max=2, is_pooled=is_pooled)
    for seq_id, state in enumerate(states):
        other.state_set(state, seq_id)
        assert other.n_past(seq_id) == 39
        check_next(other, hand, text, seq_id)
    other.state_set(states[0], 0)
    other.process(None, text[-1:], 39, 0)
    check_next(other, hand, [*text, 3], 0)
    assert other.truncate(10, 0) == 10  # further back than a saved window reaches
    check_next(other, hand, [*text[:10], 3], 0)
    check_damaged_states(other, states[1], 24, 400)
    drafter.close()
    other.close()


class LongText:
    """A text with more waiting tokens than are read, its drafter, and the model's logits after the part that is."""

    def __init__(self, path: Path, is_pooled: bool) -> None:
        self.drafter = make_drafter(path, n_ctx=2 * N_LONG, n_seq_max=2, is_pooled=is_pooled, n_ubatch=512)
        self.hand = ByHand(path, n_ctx=2 * N_LONG)
        self.tokens: list[int] = np.random.default_rng(11).integers(0, 256, N_LONG).tolist()

    def add(self, n: int, seq_id: int = 0) -> None:
        """Give the drafter tokens up to n, which may wait."""
        first = self.drafter.n_past(seq_id)
        self.drafter.process(None, self.tokens[first:n], first, seq_id, can_defer=True)

    def check(self, n: int, n_read: int, seq_id: int = 0) -> None:
        """Check that after n tokens and the next one, n_read of them are attended to, with the sinks."""
        read = [*self.tokens[:N_SINKS], *self.tokens[n - n_read + N_SINKS : n]]
        want = self.hand.logits([*read, self.tokens[n]], n - n_read)[-1]
        assert draft_chain(self.drafter, self.tokens[n], 1, seq_id=seq_id) == [int(want.argmax())]
        np.testing.assert_allclose(self.drafter.draft_logits, want, atol=TOLERANCE)


@pytest.fixture(params=[True, False], ids=["pooled", "split"])
def long(path: Path, request: pytest.FixtureRequest) -> Iterator[LongText]:
    made = LongText(path, request.param)
    yield made
    made.drafter.close()
    made.hand.close()


def test_the_middle_of_what_waits_is_left_out(long: LongText) -> None:
    """The first and the last waiting tokens are read, and later tokens are attended to as well."""
    drafter, n_most = long.drafter, N_SINKS + N_WINDOW
    long.add(n_most)
    assert drafter.n_waiting(0) == n_most + 1
    long.check(n_most, n_most)  # all tokens
    drafter.reset()
    long.add(1800)
    assert drafter.n_waiting(0) == n_most + 1
    long.check(1800, n_most)
    long.add(1900)
    assert drafter.n_waiting(0) <= 101
    long.check(1900, n_most + 100)


def test_going_back_where_the_middle_was_left_out(long: LongText) -> None:
    """If a whole window is left it is used further; otherwise another one is read."""
    n_most = N_SINKS + N_WINDOW
    long.add(1800)
    long.check(1800, n_most)
    long.add(1900)
    long.check(1900, n_most + 100)
    assert long.drafter.truncate(1850) == 1850
    has_state = long.drafter.n_waiting(0) > 1  # a state cannot go back
    long.check(1850, n_most if has_state else n_most + 50)
    assert long.drafter.truncate(1500) == 1500
    assert long.drafter.n_waiting(0) == n_most + 1
    long.check(1500, n_most)
    assert long.drafter.truncate(20) == 20
    long.check(20, 20)


def test_copies_and_states_where_the_middle_was_left_out(long: LongText) -> None:
    n_most = N_SINKS + N_WINDOW
    long.add(1800)
    long.check(1800, n_most)
    for n in (1800, 1700):
        assert long.drafter.copy(0, 1, n) == n
        long.check(n, n_most, 1)
    long.check(1800, n_most)
    state = long.drafter.state_get()
    long.drafter.state_set(state, 1)
    assert long.drafter.n_waiting(1) == 1
    long.add(1803, 1)
    long.check(1803, n_most + 3, 1)
    for n_skipped in (-1, 1, 1801, 2**31 - 1):
        with pytest.raises(ValueError, match="damaged"):
            long.drafter.state_set(state[:12] + n_skipped.to_bytes(4, "little", signed=True) + state[16:])


def test_drafts_that_know_the_dice(drafter: SimpleDrafter, hand: ByHand) -> None:
    """With noise, chains draft the tokens that it makes the best; without it nothing changes."""
    both = texts(2, 20, seed=4)
    for i, t in enumerate(both):
        feed(drafter, t[:-1], i)
    ids_last = [t[-1] for t in both]
    plain = draft_chains(drafter, [0, 1], ids_last, [3, 3])
    n_other = 0
    for seed in range(6):
        noise = GumbelNoise(seed, temperature=1.5)
        drafter.set_noise(noise, 0)
        found = draft_chains(drafter, [0, 1], ids_last, [3, 3])
        assert found[1] == plain[1]
        drafted: list[int] = []
        for ahead in range(3):
            x = hand.logits([*both[0], *drafted])[-1]
            drafted.append(max(np.argsort(-x)[:16].tolist(), key=lambda t: x[t] / 1.5 + noise(t, ahead)))
        assert found[0] == drafted
        n_other += found[0] != plain[0]
    assert n_other > 2
    drafter.set_noise(None, 0)
    assert draft_chains(drafter, [0, 1], ids_last, [3, 3]) == plain


def test_the_end_of_the_context(path: Path) -> None:
    drafter = make_drafter(path, n_ctx=256)
    (text,) = texts(1, 256)
    drafter.process(None, text[:253], 0)
    assert len(draft_chain(drafter, text[253], 10)) == 3
    drafter.process(None, text[253:], 253)
    assert draft_chain(drafter, 1, 10) == []
    with pytest.raises(ContextFullError, match="has 256 slots, position 256"):
        drafter.process(None, text[:1], 256)
    drafter.close()


def test_a_smaller_vocabulary(path: Path, hand: ByHand) -> None:
    """Only the target's tokens are drafted; tokens that the small model lacks do no harm."""
    (text,) = texts(1, 20, seed=12)
    text = [t % 100 for t in text]
    fewer = make_drafter(path, n_vocab=100)
    feed(fewer, text[:-1])
    drafted = draft_chain(fewer, text[-1], 4)
    assert drafted[0] == int(hand.logits(text)[-1][:100].argmax())
    assert max(drafted) < 100
    fewer.close()
    more = make_drafter(path, n_vocab=hand.n_vocab + 50)
    feed(more, [*text[:-1], hand.n_vocab + 49])
    assert len(draft_chain(more, hand.n_vocab, 2)) == 2
    more.close()


def test_wrong_arguments_are_refused(drafter: SimpleDrafter) -> None:
    (text,) = texts(1, 10)
    feed(drafter, text)
    for call in (
        lambda: draft_chain(drafter, 10**6, 2),
        lambda: draft_chain(drafter, -1, 2),
        lambda: draft_chain(drafter, 1, 2, seq_id=3),
        lambda: draft_chains(drafter, [0, 0], [1, 1], [1, 1]),
        lambda: drafter.begin([0], [1], 1, 2),
        lambda: drafter.copy(0, 0, 3),
        lambda: drafter.copy(0, 1, 11),
        lambda: drafter.restart(-1),
    ):
        with pytest.raises(ValueError, match=r"expected|sequence|token|id"):
            call()
    with pytest.raises(Eagle3Error, match="expects rows from position 10"):
        drafter.process(None, [1], 5)
    drafter.close()
    with pytest.raises(Eagle3Error, match="closed"):
        draft_chain(drafter, 1, 2)
