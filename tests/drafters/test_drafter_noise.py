"""Drafts with known noise: chains, nodes and several steps at once draft the same; without noise nothing changes."""

import pytest

import placement
from drafting import SideBySide, draft_chain, draft_chains, draft_tree, make_drafter
from head_variants import VARIANTS
from llama_cpp_eagle3._core import GumbelNoise
from reference import ReferenceHead
from tiny import write_head
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

N_STEPS = 4
HEADS = ["plain", "sliding_window", "layers_2", "full_vocab", "kimi", "p_eagle", "p_eagle_mla"]


def first_path(drafter, seq_id):
    """Return the first child of the first child ..., and the probability of each."""
    path, parent = [], -1
    while True:
        found = [(i, n) for i, n in enumerate(drafter.nodes) if n[0] == parent and n[4] == seq_id]
        if not found:
            return path
        assert [n[2] for _, n in found] == sorted((n[2] for _, n in found), reverse=True)
        parent, node = found[0]
        path.append(node[1])


@pytest.mark.parametrize("n_unroll", [1, N_STEPS])
@pytest.mark.parametrize("name", HEADS)
def test_all_ways_draft_the_same(name, n_unroll, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    drafter = make_drafter(head, model_address(tiny_target.path), 300, n_seq_max=3, n_unroll=n_unroll)
    sides = [SideBySide(drafter, ReferenceHead(head), i, i) for i in range(3)]
    for side, n in zip(sides, (7, 12, 40), strict=True):
        side.process(n)
    want = [side.reference.propose(5, N_STEPS).ids for side in sides]
    n_other = 0
    for seed in range(8):
        drafter.set_noise(GumbelNoise(seed, temperature=1.5), 0)
        drafter.set_noise(GumbelNoise(seed + 100, temperature=0.5, top_k=5, top_p=0.9, min_p=0.1), 2)
        chains = draft_chains(drafter, [2, 0, 1], [5] * 3, [N_STEPS] * 3)
        assert [len(tokens) for tokens in chains] == [N_STEPS] * 3
        assert chains[2] == want[1]  # its noise is unknown
        n_other += (chains[1] != want[0]) + (chains[0] != want[2])
        assert draft_chain(drafter, 5, N_STEPS, seq_id=2) == chains[0]
        n_begin = N_STEPS if drafter.is_parallel else drafter.n_unroll
        drafter.begin([2, 0, 1], [5] * 3, 3, n_begin)
        for depth in range(1 if drafter.is_parallel else n_begin, N_STEPS):
            seen, leaves = set(), []
            for i, (parent, _, _, d, seq_id) in enumerate(drafter.nodes):
                if d == depth and (parent, seq_id) not in seen:
                    seen.add((parent, seq_id))
                    leaves.append(i)  # the first child of each
            drafter.expand(leaves, 3)
        assert [first_path(drafter, i) for i in (2, 0, 1)] == chains
        tree = draft_tree(drafter, 5, N_STEPS, 1, N_STEPS)
        assert tree.tokens == chains[1]
    assert n_other > 4
    drafter.set_noise(None, 0)
    drafter.set_noise(None, 2)
    assert draft_chains(drafter, [0, 1, 2], [5] * 3, [N_STEPS] * 3) == want


def test_p_min_is_of_what_the_dice_make(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path))
    SideBySide(drafter, ReferenceHead(tiny_head)).process(10)
    lengths = set()
    for seed in range(30):
        drafter.set_noise(GumbelNoise(seed))
        whole = draft_chain(drafter, 5, 6)
        sure = draft_chain(drafter, 5, 6, 0.6)
        assert whole[: len(sure)] == sure
        lengths.add(len(sure))
    assert min(lengths) == 0
    assert max(lengths) > 1


def test_a_bias_that_forbids_all(tiny_target, tiny_head, model_address):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path))
    SideBySide(drafter, ReferenceHead(tiny_head)).process(10)
    drafter.set_noise(GumbelNoise(1, biases=dict.fromkeys(range(tiny_target.n_vocab), float("-inf"))))
    assert len(draft_chain(drafter, 5, 3)) == 3  # a wrong guess is allowed
    with pytest.raises(ValueError, match="sequence 9"):
        drafter.set_noise(None, 9)


def test_a_device_drafts_what_the_host_does(tiny_target, tiny_head, model_address):
    """The device gives its best candidates, which the host orders: chains, levels and probabilities of nodes."""
    found = []
    for device in (placement.draft_device(), None):
        drafter = make_drafter(tiny_head, model_address(tiny_target.path), device=device)
        SideBySide(drafter, ReferenceHead(tiny_head)).process(20)
        chains, nodes = [], []
        for seed in range(20):
            drafter.set_noise(GumbelNoise(seed, temperature=1.2, top_k=20, top_p=0.9))
            chains.append(draft_chain(drafter, 5, N_STEPS))
            drafter.begin([0], [5], 4)
            drafter.expand([0, 1], 4)
            nodes.append(drafter.nodes)
        found.append((chains, nodes))
    (chains, nodes), (host_chains, host_nodes) = found
    assert chains == host_chains
    assert len({tuple(chain) for chain in chains}) > 10
    for some, host in zip(nodes, host_nodes, strict=True):
        assert [(n[0], n[1]) for n in some] == [(n[0], n[1]) for n in host]
        assert [n[2] for n in some] == pytest.approx([n[2] for n in host], rel=tolerance(1e-4))
