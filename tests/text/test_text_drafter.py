"""Drafts from text match a search through the whole text, after appends, other texts and going back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_text
from llama_cpp_eagle3._core import NgramDrafter, NgramStore

tokens = st.integers(0, 3)
"""Few tokens, so that texts repeat themselves."""


def check(drafter: NgramDrafter, text: list[int], n_max: int, n_nodes: int, top_k: int, seq_id: int = 0) -> None:
    """Check for the same nodes; equally likely paths may come in another order, so probabilities have a tolerance."""
    found = drafter.propose(n_max, n_nodes, top_k, seq_id)
    expected = reference_text.propose(text, n_max, n_nodes, top_k)
    assert [p for _, _, p, _ in found] == pytest.approx([p for _, _, p, _ in expected], rel=1e-4)
    if top_k == 1:
        assert [node[:2] for node in found] == [node[:2] for node in expected]
    for parent, _, _, depth in found:
        assert depth == (1 if parent < 0 else found[parent][3] + 1) <= n_max


@given(
    st.lists(
        st.tuples(st.sampled_from(("append", "repeat", "back", "other")), st.lists(tokens, max_size=24)), max_size=12
    ),
    st.integers(1, 12),
    st.integers(1, 16),
    st.integers(1, 3),
)
def test_as_a_search_through_the_text(edits: list[tuple[str, list[int]]], n_max: int, n_nodes: int, top_k: int) -> None:
    drafter, text = NgramDrafter(), []
    for what, piece in edits:
        if what == "append":
            text = text + piece
        elif what == "repeat":  # repeat some of the text, then add something else
            first = len(piece) % (len(text) + 1)
            text = text + text[first : first + 20] + piece[:2]
        else:
            text = text[: max(0, len(text) - len(piece))] if what == "back" else piece
            drafter.begin()
        drafter.update(text)
        assert drafter.tokens() == text
        check(drafter, text, n_max, n_nodes, top_k)


def test_long_texts_and_tables_that_grow(rng: np.random.Generator) -> None:
    text = rng.integers(0, 50, 3000).tolist()
    text += text[500:800]
    drafter = NgramDrafter(2)
    for n in range(0, len(text), 37):
        drafter.update(text[:n], seq_id=1)
    for n in (3300, 3299, 3200, 2999, 1500, 40, 1, 0):
        drafter.begin(1)
        drafter.update(text[:n], seq_id=1)
        check(drafter, text[:n], 8, 8, 1, seq_id=1)
        assert drafter.tokens(1) == text[:n]
    drafter.update(text, seq_id=1)
    check(drafter, text, 8, 8, 1, seq_id=1)
    assert drafter.propose(4, 4) == []
    assert drafter.n_bytes(1) < 120 * len(text)


@pytest.mark.parametrize("seed", range(3))
def test_another_text_is_noticed_without_being_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafter, text = NgramDrafter(), rng.integers(0, 9, 100).tolist()
    drafter.update(text, 100)
    for other in (text[:90], [*text[:99], 10], [*text, 1, 2], rng.integers(0, 9, 120).tolist()):
        drafter.update(other, 100)
        assert drafter.tokens() == other
    drafter.update([3, *other[1:]], 99)
    assert drafter.tokens() == [3, *other[1:]]


def test_a_store_is_shared() -> None:
    store = NgramStore()
    one, two = NgramDrafter(1, store), NgramDrafter(1, store)
    text = np.random.default_rng(0).permutation(200).tolist()
    one.update(text, 20)  # 180 tokens were generated
    assert len(store) == 180 + 16 + 1
    two.update([7, 8, *text[100:110]], 12)
    nodes = two.propose(20, 20)
    assert [token for _, token, _, _ in nodes] == text[110:130]
    alone = NgramDrafter()
    alone.update([7, 8, *text[100:110]], 12)
    assert alone.propose(20, 20) == []
    assert nodes[0][2] == pytest.approx(10 / (10 + reference_text.NOVELTY))
    store.clear()
    assert len(store) == 0
    assert two.propose(20, 20) == []


def test_what_was_asked_is_not_stored_and_what_was_not_yet_comes_with_the_next_text() -> None:
    store = NgramStore()
    drafter = NgramDrafter(1, store)
    drafter.update(list(range(100)), 100)
    assert len(store) == 0
    drafter.update(list(range(110)), 100)
    assert len(store) == 0
    drafter.begin()
    drafter.update([1, 2], 2)
    assert len(store) == 10 + 16 + 1


def test_a_store_keeps_its_size() -> None:
    store, rng = NgramStore(1000), np.random.default_rng(0)
    for _ in range(30):
        piece = rng.integers(0, 1000, 90).tolist()
        store.add(piece)
        assert len(store) <= 1000
    drafter = NgramDrafter(1, store)
    drafter.update(piece[10:20])
    assert [token for _, token, _, _ in drafter.propose(5, 5)] == piece[20:25]
    n_bytes = store.n_bytes
    for _ in range(30):
        store.add(rng.integers(0, 1000, 90).tolist())
    assert store.n_bytes <= 1.5 * n_bytes
    store.add(rng.integers(0, 1000, 5000).tolist())
    assert len(store) <= 1000


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=60), st.lists(st.integers(0, 3), min_size=2))
def test_many_pieces_are_searched_as_one_text(pieces: list[list[int]], text: list[int]) -> None:
    """Whether their places are sorted in many runs or in one."""
    store, stored = NgramStore(4000), []
    for piece in pieces:
        store.add(piece)
        stored += [*piece, -1] if piece else []
    drafter = NgramDrafter(1, None, store)
    drafter.update(text)
    found = drafter.propose(4, 8, 3)
    store.merge()
    assert drafter.propose(4, 8, 3) == found
    others = []
    for place, length in reference_text.matches(stored, text):
        following = stored[place : place + 4]
        others.append((following[: (*following, -1).index(-1)], length))
    expected = reference_text.propose(text, 4, 8, 3, others)
    assert [p for _, _, p, _ in found] == pytest.approx([p for _, _, p, _ in expected], rel=1e-4)


def test_a_store_is_small() -> None:
    """12 bytes a token at most."""
    store, rng = NgramStore(1 << 20), np.random.default_rng(0)
    for _ in range(2000):
        store.add(rng.integers(0, 50, 80).tolist())
    assert len(store) == 2000 * 81
    assert store.n_bytes <= 12 * len(store)
    longest = rng.integers(0, 50, 100).tolist()
    store.add(longest)
    drafter = NgramDrafter(1, None, store)
    drafter.update(longest[:60])
    assert [token for _, token, _, _ in drafter.propose(32, 32)] == longest[60:92]


def test_a_frequent_n_gram() -> None:
    """Where it occurs more often than is looked at, the places that agree longest are found."""
    store, rng = NgramStore(1 << 16), np.random.default_rng(1)
    right = [7, 8, 9, 1, 2, 40, 41]
    store.add(right)
    for _ in range(2000):
        store.add([int(rng.integers(10, 20)), 1, 2, int(rng.integers(50, 60))])
    drafter = NgramDrafter(1, None, store)
    drafter.update([7, 8, 9, 1, 2])
    assert [token for _, token, _, _ in drafter.propose(2, 2)] == [40, 41]
    drafter.update([30, 1, 2])
    assert 50 <= drafter.propose(1, 1)[0][1] < 60


def test_limits_and_errors() -> None:
    drafter = NgramDrafter(2)
    drafter.update([1, 2, 3, 1, 2])
    assert [node[:2] for node in drafter.propose(3, 8)] == [(-1, 3), (0, 1), (1, 2)]
    assert [token for _, token, _, _ in drafter.propose(8, 8)] == [3, 1, 2, 3, 1, 2, 3, 1]  # the repetition continues
    assert drafter.propose(0, 8) == drafter.propose(8, 0) == []
    for seq_id in (-1, 2):
        with pytest.raises(ValueError, match=r"expected a sequence in 0..1"):
            drafter.update([1], seq_id=seq_id)
        with pytest.raises(ValueError, match=r"expected a sequence in 0..1"):
            drafter.propose(1, 1, seq_id=seq_id)
    with pytest.raises(ValueError, match="n_seq_max"):
        NgramDrafter(0)
    with pytest.raises(ValueError, match="room for"):
        NgramStore(1)
