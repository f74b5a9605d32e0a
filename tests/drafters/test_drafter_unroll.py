"""Chains of several steps in one graph are the same as step by step."""

import pytest

from drafting import SideBySide, compare, draft_chain, make_drafter
from head_variants import VARIANTS
from reference import ReferenceHead
from reference_tree import Paths
from tiny import write_head, write_target
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")


@pytest.mark.parametrize("name", VARIANTS)
def test_any_head_agrees_with_the_reference(name, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    drafter = make_drafter(head, model_address(tiny_target.path), n_unroll=4)
    assert drafter.n_unroll == (128 if drafter.is_parallel else 4)
    assert compare(drafter, ReferenceHead(head), (3, 0, 20)).agrees(1e-4)


@pytest.mark.parametrize("n_unroll", [2, 3, 6, 100])
def test_any_number_of_steps(n_unroll, tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), 300, n_unroll=n_unroll)
    side = SideBySide(drafter, ReferenceHead(tiny_head))
    for n in (5, 240, 20):
        side.process(n)  # chains cross the padding of the cache
        side.propose(side.token(), 8)
    assert side.worst.agrees(1e-4)


def test_fewer_graphs(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_unroll=4)
    SideBySide(drafter, ReferenceHead(tiny_head)).process(10)
    draft_chain(drafter, 3, 1)
    n_one = drafter.n_graph_nodes
    draft_chain(drafter, 3, 4)
    assert drafter.n_graph_nodes > 3 * n_one
    assert drafter.n_steps == 5


@pytest.mark.parametrize("ftype", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("own_embd", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("n_vocab_dft", [64, None], ids=["draft_vocab", "full_vocab"])
def test_tables_of_any_type(ftype, own_embd, n_vocab_dft, model_address, tiny_dir):
    name = f"unroll-{ftype}-{own_embd}-{n_vocab_dft}"
    target = write_target(tiny_dir / f"{name}.gguf", ftype=ftype)
    head = write_head(tiny_dir / f"{name}-head.gguf", target, ftype=ftype, own_embd=own_embd, n_vocab_dft=n_vocab_dft)
    stepwise, unrolled = (make_drafter(head, model_address(target.path), n_unroll=n) for n in (1, 5))
    sides = [SideBySide(drafter, ReferenceHead(head)) for drafter in (stepwise, unrolled)]
    for n in (40, 3):
        for side in sides:
            side.process(n)
        for id_last in range(10):
            want = draft_chain(stepwise, id_last, 7)
            assert draft_chain(unrolled, id_last, 7) == want
            assert unrolled.draft_logits == pytest.approx(stepwise.draft_logits, abs=tolerance(1e-5))


def test_p_min_ends_unrolled_chains(tiny_target, tiny_head, model_address):
    drafters = [make_drafter(tiny_head, model_address(tiny_target.path), n_unroll=n) for n in (1, 4)]
    for drafter in drafters:
        SideBySide(drafter, ReferenceHead(tiny_head)).process(30)
    lengths = set()
    for id_last in range(30):
        want, got = (draft_chain(drafter, id_last, 8, 0.4) for drafter in drafters)
        assert got == want
        lengths.add(len(want))
    assert len(lengths) > 3


def test_nodes_of_an_unrolled_chain(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_seq_max=3, n_unroll=4)
    sides = [SideBySide(drafter, ReferenceHead(tiny_head), i, i) for i in range(3)]
    for side in sides:
        side.process(20 + side.seq_id)
    ids_last = [3, 4, 5]
    drafter.begin([0, 1, 2], ids_last, 3, n_steps=4)
    assert len(drafter.nodes) == 3 * 3 * 4
    # a sibling of the chain, its last node, one in the middle of another sequence
    by_depth = {(n[4], n[3], k): i for i, n in enumerate(drafter.nodes) for k in range(3) if i % 3 == k}
    drafter.expand([by_depth[0, 2, 1], by_depth[0, 4, 0], by_depth[2, 3, 2]], 2)
    with pytest.raises(ValueError, match="expanded already"):
        drafter.expand([by_depth[0, 2, 0]], 2)
    assert len(drafter.nodes) == 36 + 6
    paths = [Paths(side.reference, id_last) for side, id_last in zip(sides, ids_last, strict=True)]
    found = []
    for parent, token, p, depth, seq_id in drafter.nodes:
        found.append((*(found[parent] if parent >= 0 else ()), token))
        assert depth == len(found[-1])
        assert p == pytest.approx(paths[seq_id].probs(found[-1][:-1])[token], abs=tolerance(1e-5))
    for side in sides:
        side.process(2, first=ids_last[side.seq_id])
        side.propose(side.token(), 5)
        assert side.worst.agrees(1e-4)
