"""Greedy and sampled texts in one batch: each kind of draw has an acceptance of its own, and spoils no other's."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import plan, plan_all
from llama_cpp_eagle3._core import DrawKind
from planner_sim import TRUTH, Costs, Head, Machine, make_policy

LAWS = {
    DrawKind.GREEDY: lambda p: 1.0 - (1.0 - p) ** 2.5,
    DrawKind.KNOWN: lambda p: p,
    DrawKind.UNKNOWN: lambda p: 0.6 * p,
}
"""How often a token is accepted that the head gives p."""
PROBS = (0.2, 0.4, 0.6, 0.8)
COSTS = Costs({1: 1e4, 16: 1.01e4}, {1: 1.0}, {1: 1.0})  # drafting is nearly free, so that all is seen


class Mixed(Machine):
    """A head that is accepted as the sequence's kind of draw says."""

    def __init__(self, n_seqs: int):
        super().__init__(COSTS, Head.constant(0.0), n_seqs=n_seqs)
        self.kinds = [DrawKind.GREEDY] * n_seqs
        self.heads = {
            kind: Head(lambda rng, *_: float(rng.uniform(0.02, 0.98)), lambda p, *_, law=law: law(p))
            for kind, law in LAWS.items()
        }

    def _children(self, parent: int, seq_id: int, top_k: int) -> None:
        self.head = self.heads[self.kinds[seq_id]]
        super()._children(parent, seq_id, top_k)


@pytest.mark.parametrize("n_seqs", [1, 4])
def test_each_kind_has_its_own_acceptance(n_seqs: int, rng: np.random.Generator) -> None:
    """Texts of random kinds; what is expected of the next one is right before anything of it was seen."""
    machine = Mixed(n_seqs)
    planner = make_policy(machine, n_max=4, n_seq_max=n_seqs, n_nodes_max=4 * n_seqs)
    ids = list(range(n_seqs))
    found: dict[DrawKind, list[list[float]]] = {kind: [] for kind in LAWS}
    for i_step in range(4000):
        for s in ids:
            if (i_step + 5 * s) % 20 == 0:
                planner.reset(s)
                machine.kinds[s] = list(LAWS)[rng.integers(len(LAWS))]
        drafts = plan_all(planner, ids, [TRUTH] * n_seqs, [100] * n_seqs, draw=machine.kinds)
        for s in ids:
            if i_step > 2000 and (i_step + 5 * s) % 20 == 0:
                found[machine.kinds[s]].append([planner.acceptance(p, seq_id=s) for p in PROBS])
        emitted, n_rows, t_verify, t_other = machine.verify([(draft.tokens, draft.parents) for draft in drafts])
        planner.observe(ids, [[TRUTH] * n for n in emitted], n_rows, t_verify, t_other)
    for kind, law in LAWS.items():
        assert len(found[kind]) > 10
        np.testing.assert_allclose(np.mean(found[kind], axis=0), [law(p) for p in PROBS], atol=0.08, err_msg=str(kind))
        assert np.std(found[kind], axis=0).max() < 0.04, kind


def test_a_text_whose_kind_is_not_given_stays_what_it_was() -> None:
    machine = Mixed(1)
    planner = make_policy(machine, n_max=4)
    for kind in (DrawKind.GREEDY, DrawKind.UNKNOWN):
        machine.kinds = [kind]
        plan_all(planner, [0], [TRUTH], [100], draw=[kind])
        for _ in range(400):
            draft = plan(planner, TRUTH, 100)
            (n,), n_rows, t_verify, t_other = machine.verify([(draft.tokens, draft.parents)])
            planner.observe([0], [[TRUTH] * n], n_rows, t_verify, t_other)
        planner.reset()
        assert planner.acceptance(0.5) == pytest.approx(LAWS[kind](0.5), abs=0.1)
    plan_all(planner, [0], [TRUTH], [100], draw=[DrawKind.GREEDY])
    assert planner.acceptance(0.5) == pytest.approx(LAWS[DrawKind.GREEDY](0.5), abs=0.1)
