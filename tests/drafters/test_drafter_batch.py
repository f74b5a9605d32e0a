"""Several sequences in one drafter: each is drafted as if it were alone."""

import numpy as np
import pytest

from drafting import SideBySide, draft_chain, draft_chains, make_drafter
from head_variants import VARIANTS
from llama_cpp_eagle3.errors import ContextFullError, Eagle3Error
from lowlevel import LowLevel
from reference import ReferenceHead
from reference_tree import Paths
from tiny import write_head
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

N_SEQ = 5
HEADS = ["plain", "sliding_window", "layers_2", "layers_2_window", "no_fc", "full_vocab", "everything"]
HEADS += ["kimi", "mla_layers_2", "p_eagle", "p_eagle_norm_before_fc", "p_eagle_mla"]


@pytest.fixture
def sides(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_seq_max=N_SEQ)
    sides = [SideBySide(drafter, ReferenceHead(tiny_head), i, i) for i in range(N_SEQ)]
    del drafter
    yield sides
    for side in sides:
        del side.drafter  # pytest keeps the fixture longer than the server that the drafter may be on


def check(sides, which, n_max):
    """Draft for some of the sequences at once and compare with the reference."""
    ids_last = [side.token() for side in which]
    got = draft_chains(sides[0].drafter, [side.seq_id for side in which], ids_last, n_max)
    for side, id_last, n, ids in zip(which, ids_last, n_max, got, strict=True):
        assert ids == (side.reference.propose(id_last, n).ids if side.n_past else [])
    return ids_last


@pytest.mark.parametrize("n_unroll", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_any_sequences_in_any_order(name, n_unroll, tiny_target, model_address, tmp_path, rng):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    drafter = make_drafter(
        head, model_address(tiny_target.path), n_ctx=600, n_seq_max=N_SEQ, n_unroll=n_unroll, n_batch=32
    )
    sides = [SideBySide(drafter, ReferenceHead(head), i, i) for i in range(N_SEQ)]
    for side, n_prompt in zip(sides, (1, 250, 40, 7, 17), strict=True):
        side.process(n_prompt)
    n_together = set()
    for _ in range(12):
        which = [sides[i] for i in rng.permutation(N_SEQ)[: rng.integers(1, N_SEQ + 1)]]
        n_max = [int(n) for n in rng.integers(0, 6, len(which))]
        n_together.add(sum(n > 0 for n in n_max))
        for side, id_last in zip(which, check(sides, which, n_max), strict=True):
            side.process(int(rng.integers(0, 5)), first=id_last)
    assert len(n_together) >= 4
    # one at a time too, with the numbers after the ids
    for side in sides:
        side.propose(side.token(), 3)
        assert side.worst.agrees(1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_probabilities_of_sequences_side_by_side(name, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    drafter = make_drafter(head, model_address(tiny_target.path), n_seq_max=N_SEQ)
    sides = [SideBySide(drafter, ReferenceHead(head), i, i) for i in range(N_SEQ)]
    for side, n_prompt in zip(sides, (3, 33, 1, 60, 16), strict=True):
        side.process(n_prompt)
    for which in ((0, 1, 2, 3, 4), (4, 0), (3, 1, 2), (2,)):
        ids_last = [sides[i].token() for i in which]
        drafter.begin(list(which), ids_last, 3, 2 if drafter.is_parallel else 1)
        drafter.expand(list(range(0, len(drafter.nodes), 2)), 2)
        paths = {i: Paths(sides[i].reference, id_last) for i, id_last in zip(which, ids_last, strict=True)}
        nodes = drafter.nodes
        assert len(nodes) == 3 * len(which) + 2 * -(-3 * len(which) // 2)
        for parent, token, p, depth, seq_id in nodes:
            path = (nodes[parent][1],) if depth == 2 else ()
            assert (nodes[parent][4] == seq_id) or depth == 1
            assert p == pytest.approx(paths[seq_id].probs(path)[token], abs=tolerance(1e-5))


def test_chains_that_end_at_different_depths(sides):
    for side in sides:
        side.process(20 + 3 * side.seq_id)
    lengths = set()
    for _ in range(12):
        ids_last = [side.token() for side in sides]
        want = [side.reference.propose(i, 6) for side, i in zip(sides, ids_last, strict=True)]
        for p_min in (0.3, 0.6):
            if any(abs(p - p_min) < 1e-4 for draft in want for p in draft.probs):
                continue
            got = draft_chains(sides[0].drafter, list(range(N_SEQ)), ids_last, [6, 1, 6, 4, 6], p_min)
            for ids, draft, n_max in zip(got, want, [6, 1, 6, 4, 6], strict=True):
                n = next((i for i, p in enumerate(draft.probs) if p < p_min), 6)
                assert ids == draft.ids[: min(n, n_max)]
                lengths.add(len(ids))
    assert len(lengths) >= 4


def test_sequences_do_not_touch_each_other(sides):
    drafter = sides[0].drafter
    for side in sides:
        side.process(30)
    check(sides, sides, [3] * N_SEQ)
    sides[1].truncate(12)
    sides[2].truncate(0)
    drafter.reset(3)
    sides[3].reference.truncate(0)
    saved = drafter.state_get(4), sides[4].reference.rows, sides[4].reference.tokens
    sides[4].process(9)
    assert [drafter.n_past(i) for i in range(N_SEQ)] == [30, 12, 0, 0, 39]
    check(sides, sides, [4] * N_SEQ)
    drafter.state_set(saved[0], 2)  # into another slot
    sides[2].reference.rows, sides[2].reference.tokens = saved[1:]
    sides[3].process(100)
    check(sides, sides[::-1], [4] * N_SEQ)
    drafter.reset()
    assert [drafter.n_past(i) for i in range(N_SEQ)] == [0] * N_SEQ
    assert draft_chains(drafter, [0, 1], [1, 2], [3, 3]) == [[], []]


def test_each_sequence_has_the_whole_context(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), 64, n_seq_max=2, n_unroll=4)
    sides = [SideBySide(drafter, ReferenceHead(tiny_head), i, i) for i in range(2)]
    sides[0].process(63)
    sides[1].process(20)
    want = [side.reference.propose(7, 8).ids for side in sides]
    assert draft_chains(drafter, [0, 1], [7, 7], [8, 8]) == [want[0][:2], want[1]]
    with pytest.raises(ContextFullError):
        sides[0].process(2)
    assert draft_chains(drafter, [1], [7], [8]) == want[1:]


def test_rows_of_a_batch_are_picked_by_index(tiny_target, tiny_head):
    with LowLevel(tiny_target.path, tiny_head.boundaries, n_seq_max=2, kv_unified=False) as low:
        drafter = make_drafter(tiny_head, low.model, n_seq_max=2)
        tokens, seq_ids, pos = [5, 6, 7, 8, 9, 10, 11], [0, 1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 2, 2, 3]
        low.target.decode_batch(tokens, pos, [[s] for s in seq_ids], [True] * 7)
        rows = low.tap.rows.reshape(7, -1).copy()
        wants = []
        for s in (0, 1):
            index = [i for i in range(7) if seq_ids[i] == s]
            drafter.process(low.tap, [tokens[i] for i in index], 0, seq_id=s, rows=index)
            reference = ReferenceHead(tiny_head)
            reference.process(rows[index], [tokens[i] for i in index], 0)
            wants.append(reference.propose(20 + s, 4).ids)
        assert draft_chains(drafter, [1, 0], [21, 20], [4, 4]) == wants[::-1]


def test_restart_goes_on_behind_what_was_not_seen(sides):
    for side in sides[:3]:
        side.process(40)
        side.restart(25 + 30 * side.seq_id)
    assert draft_chains(sides[0].drafter, [0, 1], [1, 2], [3, 3]) == [[], []]
    for _ in range(3):
        for side in sides[:3]:
            side.process(3)
        check(sides, sides[:3], [4, 3, 4])
    for side in sides[:3]:
        side.process(20)
        side.propose(side.token(), 4)
        side.truncate(side.n_past - 5)
        side.propose(side.token(), 4)
    state = sides[2].drafter.state_get(2)
    sides[2].drafter.reset(2)
    sides[2].drafter.state_set(state, 2)
    sides[2].process(2)
    sides[2].propose(3)
    sides[1].truncate(20)  # truncate before the restart
    sides[1].process(4)
    sides[1].propose(3)
    assert all(side.worst.agrees(1e-4) for side in sides)
    for n_past in (-1, 257):
        with pytest.raises(ValueError, match=r"0\.\.256"):
            sides[0].drafter.restart(n_past)


def test_bad_arguments_change_nothing(sides):
    drafter = sides[0].drafter
    for side in sides:
        side.process(5)
    for seq_ids, ids_last, n_max in (
        ([0, 0], [1, 2], [3, 3]),
        ([0, 5], [1, 2], [3, 3]),
        ([-1], [1], [3]),
        ([0, 1], [1], [3, 3]),
        ([0, 1], [1, 2], [3]),
        ([0, 1], [1, 320], [3, 3]),
    ):
        with pytest.raises(ValueError):
            draft_chains(drafter, seq_ids, ids_last, n_max)
    for call in (
        lambda: drafter.n_past(5),
        lambda: drafter.reset(-1),
        lambda: drafter.truncate(0, 5),
        lambda: drafter.restart(0, 5),
        lambda: drafter.state_get(9),
        lambda: drafter.process_rows(np.ones((1, 192), np.float32), [1], 5, 5),
    ):
        with pytest.raises(ValueError, match=r"0\.\.4"):
            call()
    assert draft_chains(drafter, [], [], []) == []
    with pytest.raises(Eagle3Error, match=r"5.*7"):
        drafter.process_rows(np.ones((1, 192), np.float32), [1], 7, 2)
    check(sides, sides, [3] * N_SEQ)


def test_rows_pile_up_until_they_are_wanted(tiny_target, tiny_head, model_address):
    side = SideBySide(make_drafter(tiny_head, model_address(tiny_target.path), 1024), ReferenceHead(tiny_head))
    side.process(30)
    for n_steps in (5, 20, 150, 260):  # fewer than a catch-up takes, more, more than wait at most
        for _ in range(n_steps):
            side.process(1 + (side.n_past % 7 == 0))
        side.propose(side.token(), 3)
    assert side.worst.agrees(1e-4)


def test_nothing_is_computed_that_was_not_asked_for(tiny_target, tiny_head, model_address, place):
    nodes = {}
    for n_seq in (1, 4):
        drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_seq_max=n_seq, n_unroll=1)
        for seq_id in range(n_seq):
            SideBySide(drafter, ReferenceHead(tiny_head), seq_id, seq_id).process(10)
        for n_max in (1, 3):
            draft_chain(drafter, 3, n_max, seq_id=n_seq - 1)
            nodes[n_seq, n_max] = drafter.n_graph_nodes
            seq_ids = list(range(n_seq))
            draft_chains(drafter, seq_ids, [3] * n_seq, [n_max] * n_seq)
            nodes["batch", n_seq, n_max] = drafter.n_graph_nodes
    step = nodes[1, 3]
    # nodes of the block, of lm_head, argmax and softmax, a row of the state, two writes of K/V, one of the state;
    # on other devices than the host, top-k and its probabilities
    assert step == (29 if place == "here" else 31)
    assert nodes[1, 1] == step  # fc instead of the state's row
    for n_max in (1, 3):
        # sequences without a request cost nothing; those with one share every step
        assert nodes[4, n_max] == nodes["batch", 1, n_max] == nodes[1, n_max]
        assert nodes["batch", 4, n_max] == nodes[1, n_max] + (2 if n_max == 1 else 0)
