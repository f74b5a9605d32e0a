"""The tree of prefixes matches lists, after tokens are put, moved, dropped and evicted in any order."""

from __future__ import annotations

import random
from time import perf_counter

from hypothesis import given, settings
from hypothesis import strategies as st

from invariants import check_tree
from llama_cpp_eagle3._core import SavedState
from llama_cpp_eagle3.engine.prefix_nodes import Prefix, key_of, n_common
from llama_cpp_eagle3.engine.prefix_tree import PrefixTree
from llama_cpp_eagle3.engine.sequence import Saved

texts = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def hosted(n_bytes: int) -> Prefix:
    return Prefix(n_bytes, saved=Saved(b"", b"", 0, 0))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_against_lists(data: st.DataObject) -> None:
    tree = PrefixTree(n_bytes_max=data.draw(st.sampled_from([0, 10, 40, 1000])), n_states_max=3)
    slots = [Prefix(0, seq_id=i) for i in range(3)]
    held: dict[Prefix, list[int]] = {}
    states: dict[tuple[int, ...], SavedState] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        tree.clock += 1
        action = data.draw(st.sampled_from(["slot", "host", "state", "drop", "pin", "use", "clear"]))
        text = data.draw(texts)
        if action == "slot":
            slot = data.draw(st.sampled_from(slots))
            tree.insert(slot, key_of(text))
            held[slot] = text
        elif action == "host":
            prefix = hosted(data.draw(st.integers(1, 12)))
            tree.insert(prefix, key_of(text))
            held[prefix] = text
            tree.evict()
        elif action == "state":
            state = SavedState(len(text), b"x" * data.draw(st.integers(1, 6)))
            states.setdefault(tuple(text), state)
            tree.insert_state(key_of(text), state)
        elif action == "clear":
            tree.clear_states()
        elif held:
            prefix = data.draw(st.sampled_from(list(held)))
            if action == "drop":
                tree.drop(prefix)
            elif action == "pin" and prefix.saved is not None and prefix.node is not None:
                tree.pin(prefix)
            elif action == "use" and prefix.node is not None:
                tree.use(prefix)
        held = {prefix: text for prefix, text in held.items() if prefix.node is not None}
        check_tree(tree)

        match = tree.match(key_of(text))
        expected = {prefix: n_common(other, text) for prefix, other in held.items()}
        assert match.n_tokens == max(expected.values(), default=0)
        found = list(match.prefixes)
        assert {prefix: n for n, prefix in found} == expected
        assert [n for n, _ in found] == sorted((n for n, _ in found), reverse=True)
        for kept in match.states:
            path = tuple(text[: kept.n_tokens])
            assert len(kept.saved.data) == kept.n_bytes
            assert any(tuple(other[: len(path)]) == path for other in held.values())
            assert path in states
        assert len(match.states) <= 3
        for n in range(len(text) + 1):
            best = max((s.n_tokens for s in match.states if s.n_tokens <= n), default=0)
            longest = match.state(n)
            assert best == (0 if longest is None else longest.n_tokens)
    for prefix in list(held):
        tree.drop(prefix)
    check_tree(tree)
    assert (tree.n_bytes, len(tree.states)) == (0, 0)


def test_a_state_goes_with_the_last_prefix() -> None:
    tree = PrefixTree(1000, 3)
    a, b = Prefix(0, seq_id=0), Prefix(0, seq_id=1)
    tree.insert(a, key_of([1, 2, 3, 4]))
    tree.insert_state(key_of([1, 2]), SavedState(2, b"xx"))
    tree.insert(b, key_of([1, 2, 5]))
    tree.drop(a)
    assert tree.match(key_of([1, 2, 9])).state(3) is not None
    tree.insert(b, key_of([7]))
    assert tree.n_bytes == 0


def test_value() -> None:
    """Prefixes that are long, often used and alone with their tokens stay; those whose tokens others hold too go."""
    tree = PrefixTree(1000, 8)
    long, short, again = hosted(10), hosted(10), hosted(10)
    tree.insert(long, key_of(range(100)))
    tree.insert(short, key_of(range(200, 210)))
    tree.insert(again, key_of(range(90)))
    assert tree.value(again) == 0
    assert tree.value(long) == 10 == tree.value(short)
    tree.use(short)
    assert tree.value(short) == 20


def test_the_time_of_a_look_up() -> None:
    """A text of 100,000 tokens is looked up among 1,000 entries that share 50,000 of them."""
    rng = random.Random(0)
    common = [rng.randrange(100_000) for _ in range(50_000)]
    tree = PrefixTree(1 << 40, 32)
    text = common + [rng.randrange(100_000) for _ in range(50_000)]
    tree.insert(hosted(1), key_of(text))
    for i in range(1000):
        tree.insert(hosted(1), key_of([*common, i, *range(i, i + 100)]))
    key = key_of([*text, 5])
    seconds = []
    for _ in range(5):
        start = perf_counter()
        match = tree.match(key)
        n, _ = next(match.prefixes)
        seconds.append(perf_counter() - start)
        assert n == match.n_tokens == 100_000
    assert min(seconds) < 2e-3, seconds  # a request evaluates for seconds; it is some 50 us on an idle machine
