"""The planner's choices for a head and the text together, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from drafting import plan_all
from llama_cpp_eagle3._core import CostCurve, NgramDrafter, Policy
from planner_sim import TARGETS, Costs, Node, us

N_PROMPT = 200


class Said:
    """A target with a given text, and a head that drafts its tokens with one known probability."""

    is_parallel = False
    n_expand = 128

    def __init__(self, costs: Costs, texts: Sequence[Sequence[int]], accuracy: float, seed: int = 0):
        self.costs, self.texts, self.accuracy = costs, texts, accuracy
        self.rng = np.random.default_rng(seed)
        self.t = 0.0
        self.at = [N_PROMPT] * len(texts)
        self.nodes: list[Node] = []
        self.right: list[bool] = []
        self.waiting = [1] * len(texts)
        self.n_unroll = 1

    @property
    def t_draft_us(self) -> float:
        return self.t

    def n_waiting(self, seq_id: int) -> int:
        return self.waiting[seq_id]

    def begin(self, seq_ids: Sequence[int], _: Sequence[int], top_k: int, n_steps: int = 1) -> list[Node]:
        self.nodes, self.right = [], []
        self.t += self.costs.of("begin", sum(min(self.waiting[s], 16) for s in seq_ids))
        for s in seq_ids:
            self.waiting[s] = 0
            self._children(-1, s, top_k)
        return self.nodes

    def expand(self, nodes: Sequence[int], top_k: int) -> list[Node]:
        n = len(self.nodes)
        self.t += self.costs.of("step", len(nodes))
        for i in nodes:
            self._children(i, self.nodes[i][4], top_k)
        return self.nodes[n:]

    def _children(self, parent: int, s: int, top_k: int) -> None:
        depth = 1 if parent < 0 else self.nodes[parent][3] + 1
        place = self.at[s] + depth - 1
        truth = self.texts[s][place] if place < len(self.texts[s]) and (parent < 0 or self.right[parent]) else -7
        hit = self.rng.random() < self.accuracy
        for j in range(top_k):
            is_truth = hit and j == 0 and truth >= 0
            p = self.accuracy if j == 0 else 0.3 * (1 - self.accuracy)
            self.nodes.append((parent, truth if is_truth else 100000 + len(self.nodes), p, depth, s))
            self.right.append(is_truth)

    def run(self, planner: Policy, drafter: NgramDrafter | None, n_steps: int = 10**9) -> float:
        """Return tokens per second until a text ends."""
        ids, n = list(range(len(self.texts))), 0
        for _ in range(n_steps):
            if any(self.at[s] + 70 > len(text) for s, text in enumerate(self.texts)):
                break
            if drafter is not None:
                for s in ids:
                    drafter.update(list(self.texts[s][: self.at[s]]), N_PROMPT, s)
            ids_last = [text[self.at[s] - 1] for s, text in enumerate(self.texts)]
            drafts = plan_all(planner, ids, ids_last, [1000] * len(ids), n_max=[8] * len(ids))
            n_rows = sum(1 + len(draft) for draft in drafts)
            t_verify = self.costs.of("target", n_rows)
            self.t += t_verify
            said = []
            for s, draft in enumerate(drafts):
                node, tokens = -1, []
                while True:
                    tokens.append(self.texts[s][self.at[s] + len(tokens)])
                    node = draft.child(node, tokens[-1])
                    if node < 0:
                        break
                self.at[s] += len(tokens)
                self.waiting[s] += len(tokens)
                n += len(tokens)
                said.append(tokens)
            planner.observe(ids, said, n_rows, t_verify)
        return 1e6 * n / self.t


def speed(
    texts: Sequence[Sequence[int]], accuracy: float | None, with_text: bool, *, trees: bool = True, name: str = "Q4_0"
) -> float:
    costs = Costs(us(TARGETS[name]))
    said = Said(costs, texts, accuracy or 0.0)
    drafter = NgramDrafter(len(texts)) if with_text else None
    options = {"top_k": 3, "n_leaves_max": 8} if trees and len(texts) == 1 else {}
    planner = Policy(
        [] if accuracy is None else [said],
        [CostCurve(c) for c in (costs.target, *(() if accuracy is None else (costs.begin, costs.step)))],
        n_max=31,
        n_seq_max=len(texts),
        uniform=len(texts) > 1,
        ngram=drafter,
        **options,
    )
    return said.run(planner, drafter)


def free_text(n: int, seed: int = 0) -> list[int]:
    """Return tokens as frequent as words, with no more repetition than that gives."""
    return (np.random.default_rng(seed).zipf(1.4, n) % 5000).tolist()


def copies(n: int, seed: int = 0, n_piece: int = 150) -> list[int]:
    """Return a piece, again and again, with something new in between and a few words changed."""
    rng = np.random.default_rng(seed)
    piece, text = rng.integers(0, 5000, n_piece).tolist(), free_text(N_PROMPT, seed)
    while len(text) < n:
        changed = [t if rng.random() < 0.98 else int(rng.integers(0, 5000)) for t in piece]
        text += changed + free_text(20, len(text))
    return text


def test_more_rows_than_were_measured() -> None:
    """If the text is sure, more rows are tried than were timed; their time is known then, and stored."""
    real, text = us(TARGETS["Q4_0"]), (list(range(40)) * 40)[:1200]
    rates, curves = [], []
    for known in (real, {n: real[n] for n in (1, 4, 8)}):
        drafter, curve = NgramDrafter(1), CostCurve(known)
        said = Said(Costs(real), [text], 0.0)
        rates.append(said.run(Policy([], [curve], n_max=31, ngram=drafter), drafter))
        curves.append(curve)
    assert rates[1] > 0.95 * rates[0]
    assert max(curves[1].corrected) > 8
    for n, t in curves[1].corrected.items():
        assert t == pytest.approx(CostCurve(real).at(n), rel=0.1)
    # and the values above the last observed one start from there
    curve = CostCurve({1: 10.0, 8: 20.0})
    for _ in range(5):
        curve.observe(16, 20.0)
    assert curve.at(32) == pytest.approx(2 * curve.at(16))
    assert curve.at(16) == pytest.approx(20.0, rel=0.05)
    assert curve.corrected.keys() == {1, 8, 16}
    for _ in range(5):
        curve.observe(20, 500.0)
    assert curve.at(20) > 100.0
    assert curve.corrected[20] == pytest.approx(50.0)  # something else ran: the proportional value stays


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("name", ["Q4_0", "F16"])
def test_at_least_the_better_one_of_both(name: str, trees: bool) -> None:
    text = copies(3000)
    head = speed([text], 0.75, with_text=False, trees=trees, name=name)
    alone = speed([text], None, with_text=True, trees=trees, name=name)
    both = speed([text], 0.75, with_text=True, trees=trees, name=name)
    assert both >= 1.0 * max(head, alone)
    assert alone >= 1.5e6 / us(TARGETS[name])[1]


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "F16"])
def test_free_text_loses_nothing(name: str) -> None:
    text = free_text(2500)
    assert speed([text], 0.75, with_text=True, name=name) >= 0.975 * speed([text], 0.75, with_text=False, name=name)
    assert speed([text], None, with_text=True, name=name) >= 0.99e6 / us(TARGETS[name])[1]


def test_the_head_rests_while_the_text_repeats_itself() -> None:
    costs = Costs(us(TARGETS["Q4_0"]))
    piece = np.random.default_rng(1).integers(0, 5000, 200).tolist()
    said, drafter = Said(costs, [piece * 12], 0.7), NgramDrafter()
    planner = Policy(
        [said],
        [CostCurve(costs.target), CostCurve(costs.begin), CostCurve(costs.step)],
        n_max=31,
        ngram=drafter,
    )
    said.run(planner, drafter, 30)  # some steps until the planner notices
    before = planner.stats()
    said.run(planner, drafter)
    after = planner.stats()
    assert after["drafted"] - before["drafted"] <= 0.05 * (after["steps"] - before["steps"])
    assert after["ngram"] - before["ngram"] >= 0.9 * (after["steps"] - before["steps"])
    assert planner.acceptance(0.9, 1, by_ngram=True) > 0.9


def test_several_sequences_of_which_one_repeats_itself() -> None:
    texts = [copies(1500), free_text(1500, 1), free_text(1500, 2)]
    plain = 3e6 / Costs(us(TARGETS["F16"])).of("target", 3)
    assert speed(texts, None, with_text=True, name="F16") >= 0.99 * plain
    assert speed([copies(1500, seed) for seed in range(3)], None, with_text=True, name="F16") >= 1.5 * plain


@pytest.mark.parametrize("n_max", [31, 63])
def test_n_grams_get_longer_once_whole_drafts_were_right(n_max: int) -> None:
    """If 64 rows cost little more than 32, a text that repeats itself is drafted in pieces of up to 63 tokens."""
    target = {1: 10_000.0, 8: 12_000.0, 32: 16_000.0, 64: 18_000.0, 128: 90_000.0}
    piece = np.random.default_rng(1).integers(0, 5000, 400).tolist()
    drafter, said = NgramDrafter(1), Said(Costs(target), [piece * 8], 0.0)
    planner = Policy([], [CostCurve(target)], n_max=n_max, ngram=drafter)
    said.at = [500]
    said.run(planner, drafter)
    lengths = planner.stats()["draft_tokens"]
    assert max(lengths) == n_max
    if n_max > 32:
        assert any(0 < n <= 32 for n in lengths)  # before that
        assert lengths[63] > 0.8 * planner.stats()["steps"]
