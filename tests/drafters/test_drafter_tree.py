"""Trees of drafted tokens match the NumPy reference, and so do their steps: begin, expand, nodes."""

import numpy as np
import pytest

from drafting import SideBySide, draft_chain, draft_tree, is_chain, make_drafter
from head_variants import VARIANTS
from llama_cpp_eagle3.engine.draft import Draft
from reference import ReferenceHead
from reference_tree import Paths, eagle2, paths_of
from tiny import write_head
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

SHAPES = [(3, 1, 3), (1, 4, 4), (2, 3, 5), (4, 3, 12), (3, 5, 200)]  # depth, top_k, n_tokens


@pytest.fixture
def side(tiny_target, tiny_head, model_address):
    side = SideBySide(make_drafter(tiny_head, model_address(tiny_target.path), n_unroll=1), ReferenceHead(tiny_head))
    yield side
    del side.drafter  # pytest keeps the fixture longer than the server that the drafter may be on


def check_tree(side, id_last, depth, top_k, n_tokens):
    """Check that the drafter's tree is as good as the reference's, with the same probabilities."""
    draft = draft_tree(side.drafter, id_last, depth, top_k, n_tokens, seq_id=side.seq_id)
    paths = Paths(side.reference, id_last)
    found = paths_of(draft)
    assert len(set(found)) == len(found) == len(draft)
    for path, p in zip(found, draft.probs, strict=True):
        assert p == pytest.approx(paths.probs(path[:-1])[path[-1]], abs=tolerance(1e-5))
        assert len(path) <= depth
    # nodes are not compared: two that are equally probable may change places
    want = eagle2(paths, depth, top_k, n_tokens)
    assert sorted(map(paths.score, found)) == pytest.approx(sorted(map(paths.score, want)), abs=tolerance(1e-3))
    return draft


def accept(side, draft, id_last, rng):
    """Let the target accept a path of random length, and reject the other nodes."""
    node, n = -1, 0
    tokens = [id_last]
    while (children := draft.children(node)) and rng.random() < 0.7:
        node = int(rng.choice(children))
        tokens.append(draft.tokens[node])
        n += 1
    rows = rng.normal(0.0, 2.0, (len(tokens), side.reference.head.n_embd_inp)).astype(np.float32)
    side.drafter.process_rows(rows, tokens, side.n_past, side.seq_id)
    side.reference.process(rows, tokens, side.n_past)
    return n


@pytest.mark.parametrize("name", VARIANTS)
def test_trees_of_any_head_after_any_step(name, tiny_target, model_address, tmp_path, rng):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    side = SideBySide(make_drafter(head, model_address(tiny_target.path)), ReferenceHead(head))
    side.process(21)
    n_accepted = 0
    for shape in SHAPES:
        id_last = side.token()
        n_accepted += accept(side, check_tree(side, id_last, *shape), id_last, rng)
    side.propose(side.token(), 3)  # no node of a tree stays in the cache
    assert side.worst.agrees(1e-4)
    assert n_accepted > 0


def test_the_trees_of_the_test_are_not_all_chains(side):
    side.process(21)
    shapes = [paths_of(draft_tree(side.drafter, side.token(), 4, 3, 12)) for _ in range(8)]
    assert max(max(map(len, found)) for found in shapes) > 2
    assert sum(len({path[0] for path in found}) > 1 for found in shapes) > 4
    assert not any(len(found) == max(map(len, found)) for found in shapes)


def test_depth_and_number_of_nodes(side):
    side.process(30)
    for depth, top_k, n_tokens, n in [(1, 1, 1, 1), (5, 1, 3, 3), (5, 1, 9, 5), (1, 8, 60, 8), (2, 8, 60, 60)]:
        draft = draft_tree(side.drafter, 3, depth, top_k, n_tokens)
        assert len(draft) == n
        assert len(draft.tokens) == len(draft.parents) == len(draft.probs)
        assert is_chain(draft) == (top_k == 1)
    # SafeAILab's default: depth 7 + 1, top_k 10, 60 nodes with the root
    assert len(check_tree(side, 3, 8, 10, 59)) == 59
    # all tokens of a small draft vocabulary
    n_vocab = side.drafter.n_vocab_dft
    assert len(draft_tree(side.drafter, 3, 2, 100, 10**6)) == n_vocab + n_vocab**2


def test_a_chain_is_a_tree_of_width_one(side):
    side.process(30)
    for id_last in range(10):
        draft = draft_tree(side.drafter, id_last, 5, 1, 5)
        assert draft.tokens == draft_chain(side.drafter, id_last, 5)
        assert is_chain(draft)


def test_nothing_to_draft_from(side):
    assert draft_tree(side.drafter, 3, 4, 3, 10) == Draft([], [], [])
    side.drafter.begin([0], [3], 4)
    assert side.drafter.nodes == []


@pytest.mark.parametrize("n_unroll", [1, 4])
def test_trees_end_with_the_context(n_unroll, tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), 32, n_unroll=n_unroll)
    side = SideBySide(drafter, ReferenceHead(tiny_head))
    side.process(29)
    for n_past, depth in ((29, 4), (30, 3), (31, 2), (32, 1)):
        draft = draft_tree(drafter, 3, 6, 2, 100)
        assert max(map(len, paths_of(draft))) == depth
        check_tree(side, 3, depth, 2, 7)
        drafter.begin([0], [3], 2, n_unroll)
        assert max(node[3] for node in drafter.nodes) == min(depth, n_unroll)
        if n_past < 32:
            side.process(1, first=3)


@pytest.mark.parametrize("n_vocab_dft", [64, None])
def test_equally_probable_tokens(n_vocab_dft, tiny_target, model_address, tmp_path):
    # tokens with equal rows in both tables: pairs of them, and eight
    plain = write_head(tmp_path / "plain.gguf", tiny_target, n_vocab_dft=n_vocab_dft, own_embd=True)
    n_vocab = n_vocab_dft or tiny_target.n_vocab
    twin = np.arange(n_vocab) // 2 * 2
    twin[8:16] = 8
    ids = np.arange(n_vocab) if plain.d2t is None else plain.d2t
    weights = {name: plain.weights[name].copy() for name in ("lm_head.weight", "embed_tokens.weight")}
    weights["lm_head.weight"] = weights["lm_head.weight"][twin]
    weights["embed_tokens.weight"][ids] = weights["embed_tokens.weight"][ids[twin]]
    head = write_head(tmp_path / "twins.gguf", tiny_target, weights=weights, n_vocab_dft=n_vocab_dft, own_embd=True)
    side = SideBySide(make_drafter(head, model_address(tiny_target.path)), ReferenceHead(head))
    side.process(20)
    for shape in SHAPES:
        id_last = side.token()
        draft = check_tree(side, id_last, *shape)
        # a chain drafts the first of them
        assert draft.tokens[0] == draft_chain(side.drafter, id_last, 1)[0]


def test_certain_tokens(tiny_target, model_address, tmp_path):
    # probabilities of exactly 1 and 0: a parent is as probable as its child
    head = write_head(tmp_path / "head.gguf", tiny_target, logit_scale=1e5)
    drafter = make_drafter(head, model_address(tiny_target.path))
    side = SideBySide(drafter, ReferenceHead(head))
    side.process(20)
    draft = draft_tree(drafter, 3, 5, 4, 3)
    assert draft.probs == [1.0] * 3
    assert draft.parents == [-1, 0, 1]
    assert draft.tokens == draft_chain(drafter, 3, 3)
    assert len(draft_tree(drafter, 3, 5, 4, 50)) == 50


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_a_window_is_as_wide_along_a_path(window, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, sliding_window=window)
    side = SideBySide(make_drafter(head, model_address(tiny_target.path)), ReferenceHead(head))
    for n in (1, 3, 20):
        side.process(n)
        check_tree(side, side.token(), 6, 3, 40)


def test_a_tree_does_not_see_what_lies_before_a_restart(side):
    side.process(60)
    side.restart(40)
    for n in (2, 30):
        side.process(n)
        check_tree(side, side.token(), 4, 3, 20)


def test_nodes_of_several_sequences_expanded_in_any_order(tiny_target, tiny_head, model_address, rng):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), 600, n_seq_max=4)
    sides = [SideBySide(drafter, ReferenceHead(tiny_head), i, i) for i in range(4)]
    for side, n in zip(sides, (250, 3, 20, 256), strict=True):
        side.process(n)
    for which in ((0, 1, 2, 3), (3, 0), (2,)):
        ids_last = [side.token() for side in sides]
        drafter.begin(list(which), [ids_last[i] for i in which], 3)
        paths = {i: Paths(sides[i].reference, ids_last[i]) for i in which}
        expanded: set[int] = set()
        for _ in range(5):
            left = [i for i in range(len(drafter.nodes)) if i not in expanded]
            chosen = [int(i) for i in rng.permutation(left)[:5]]
            top_k = int(rng.integers(1, 5))
            before = drafter.nodes
            drafter.expand(chosen, top_k)
            expanded.update(chosen)
            assert drafter.nodes[: len(before)] == before
            assert sorted(node[0] for node in drafter.nodes[len(before) :]) == sorted(chosen * top_k)
        found = []
        for parent, token, p, depth, seq_id in drafter.nodes:
            path = (*(found[parent][1] if parent >= 0 else ()), token)
            found.append((seq_id, path))
            assert depth == len(path)
            assert parent < 0 or found[parent][0] == seq_id
            assert p == pytest.approx(paths[seq_id].probs(path[:-1])[token], abs=tolerance(1e-5))
        # the children of a node are its best ones, the best first
        for i in (-1, *expanded):
            for seq_id in which:
                children = [n for n in drafter.nodes if n[0] == i and n[4] == seq_id]
                path = () if i < 0 else found[i][1]
                if children:
                    want = [paths[seq_id].probs(path)[t] for t in paths[seq_id].best(path, len(children))]
                    assert [n[2] for n in children] == pytest.approx(want, abs=tolerance(1e-5))


def test_bad_calls_change_nothing(side):
    drafter = side.drafter
    side.process(20)
    drafter.begin([0], [3], 3)
    drafter.expand([1], 2)
    nodes = drafter.nodes
    for call in (
        lambda: drafter.expand([5], 2),
        lambda: drafter.expand([-1], 2),
        lambda: drafter.expand([1], 2),
        lambda: drafter.expand([0, 0], 2),
        lambda: drafter.expand([0], 0),
        lambda: drafter.begin([0], [3], 0),
        lambda: drafter.begin([0], [3], 2, drafter.n_unroll + 1),
        lambda: drafter.begin([0], [320], 2),
        lambda: drafter.begin([1], [3], 2),
        lambda: draft_tree(drafter, 3, 1, 0, 1),
        lambda: draft_tree(drafter, 3, 20, 10, 60),
        lambda: draft_tree(drafter, 3, 2**31 - 1, 2**31 - 1, 60),
    ):
        with pytest.raises(ValueError):
            call()
        assert drafter.nodes == nodes
    drafter.expand([0, 2], 1)
    assert len(drafter.nodes) == 7
    side.process(1, first=3)
    with pytest.raises(ValueError, match="0 nodes"):
        drafter.expand([0], 1)


def test_rows_that_are_not_numbers_leave_numbers(side):
    side.process(20)
    side.drafter.process_rows(np.full((2, 192), np.nan, np.float32), [1, 1], 20)
    tree = draft_tree(side.drafter, 3, 3, 3, 9)
    assert len(tree) == 9
    assert np.isfinite(tree.probs).all()
    side.truncate(19)
    side.process(9)
    check_tree(side, 3, 3, 3, 9)


def test_at_most_so_many_nodes_of_a_draft(side):
    side.process(20)
    side.drafter.begin([0], [3], 64)
    side.drafter.expand(list(range(64)), 2)
    side.drafter.expand(list(range(64, 128)), 1)
    with pytest.raises(ValueError, match="128"):
        side.drafter.expand([128], 1)


def test_the_shape_of_a_draft():
    chain = Draft.chain([7, 8, 9])
    assert (chain.tokens, chain.parents, chain.probs) == ([7, 8, 9], [-1, 0, 1], [])
    assert is_chain(chain)
    assert len(chain) == 3
    assert chain.children(-1) == [0]
    assert chain.children(2) == []
    tree = Draft([7, 8, 9, 1], [-1, -1, 0, 0], [0.5, 0.2, 0.4, 0.3])
    assert not is_chain(tree)
    assert tree.children(-1) == [0, 1]
    assert tree.children(0) == [2, 3]
    assert is_chain(Draft.chain([]))
