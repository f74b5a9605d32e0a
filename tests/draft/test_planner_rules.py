"""The planner's promises: costs that do not fall with work, probes within a budget, a first answer like plain."""

from __future__ import annotations

import numpy as np
import pytest

from llama_cpp_eagle3._core import CostCurve
from planner_sim import TARGETS, Costs, Head, Machine, make_policy, run_auto, run_plain, us

USELESS = Head(lambda *_: 0.8, lambda *_: 0.0, 0.0)
RANDOM = Head(lambda rng, *_: float(rng.beta(0.3, 6.0)), lambda *_: 0.0, 0.0)
FAIR, GOOD = Head.constant(0.5), Head.constant(0.8)
DEAR = us({1: 6.0, 4: 9.0, 16: 20.0})
"""A drafter whose graph takes a seventh to two fifths of a pass."""


@pytest.mark.parametrize("experts", [(0, 0), (128, 8), (8, 2)])
def test_prices_do_not_fall_with_depth_or_beyond_what_was_seen(
    experts: tuple[int, int], rng: np.random.Generator
) -> None:
    for _ in range(20):
        sizes = [1, *sorted(rng.choice(np.arange(2, 33), 4, replace=False).tolist())]
        times = np.cumsum(rng.uniform(1.0, 9.0, 5)).tolist()
        curve = CostCurve(dict(zip(sizes, times, strict=True)), (0.5, 0.1), experts)
        for n_past in (0, 500, 6000):
            curve.set_depth(n_past)
            for n in rng.integers(1, 65, 30):
                curve.observe(int(n), curve.at(int(n)) * float(np.exp(0.05 * rng.standard_normal())))
            last = max(curve.corrected)
            prices = [curve.at(n) for n in range(last, 200)]
            assert prices == sorted(prices)
        for n in (1, 3, 20, 64, 150):
            prices = []
            for n_past in (0, 100, 1000, 9000):
                curve.set_depth(n_past)
                prices.append(curve.at(n))
            assert prices == sorted(prices)


def test_more_drafting_is_never_cheaper() -> None:
    policy = make_policy(Machine(Costs(us(TARGETS["Q4_0"])), USELESS), n_max=16)
    prices = [policy.draft_us(n) for n in range(1, 17)]
    assert prices == sorted(prices)


@pytest.mark.parametrize(("n", "n_used"), [(128, 8), (8, 2), (60, 4)])
def test_unmeasured_rows_of_a_mixture_begin_at_the_experts_that_they_read(n: int, n_used: int) -> None:
    def experts(n_rows: int) -> float:
        return n * (1.0 - (1.0 - n_used / n) ** n_rows)

    curve = CostCurve({1: 100.0}, experts=(n, n_used))
    for n_rows in (1, 2, 4, 16, 64, 128):
        assert curve.at(n_rows) == pytest.approx(100.0 * experts(n_rows) / n_used, rel=1e-4)
    curve = CostCurve({1: 100.0, 8: 300.0}, experts=(n, n_used))
    share = (experts(3) - experts(1)) / (experts(8) - experts(1))
    assert curve.at(3) == pytest.approx(100.0 + 200.0 * share, rel=1e-4)
    for _ in range(8):  # after these it is measured
        curve.observe(3, 290.0)
    assert curve.at(3) == pytest.approx(290.0, rel=0.05)
    assert curve.at(1) == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(("growth", "experts"), [((-1.0, 0.0), (0, 0)), ((0.0, 0.0), (4, 5)), ((0.0, 0.0), (4, -1))])
def test_impossible_growth_and_experts(growth: tuple[float, float], experts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cost curve: expected growth >= 0 and experts of which some are used"):
        CostCurve({1: 1.0}, growth, experts)


def test_depth_that_was_learned_before_is_a_price_from_the_start() -> None:
    curve = CostCurve({1: 30e3, 8: 85e3}, (1500.0, 1800.0))
    curve.set_depth(6000)
    assert curve.at(1) == pytest.approx(30e3 + 6 * (1500.0 + 1800.0))
    assert curve.at(8) == pytest.approx(85e3 + 6 * (1500.0 + 8 * 1800.0))
    assert curve.growth == (1500.0, 1800.0)
    curve.set_depth(0)
    assert curve.at(8) == pytest.approx(85e3)


@pytest.mark.parametrize("graphs", [None, DEAR], ids=["head", "dear"])
@pytest.mark.parametrize("n_answer", [24, 100, 1000])
def test_probes_stay_within_their_budget(n_answer: int, graphs: dict[int, float] | None) -> None:
    """Probes of a drafter known to be useless take 1 % of all answers' time at most, however short each one is."""
    costs = Costs(us(TARGETS["Q4_0"])) if graphs is None else Costs(us(TARGETS["Q4_0"]), graphs, graphs)
    machine = Machine(costs, USELESS)
    policy = make_policy(machine, n_max=16)
    run_auto(machine, policy, 1000, text=10**9)
    before, start = policy.stats(), machine.t
    run_auto(machine, policy, 4000, text=n_answer)
    after = policy.stats()
    assert after["probes"] > before["probes"]
    assert after["draft_us"] - before["draft_us"] <= 0.0105 * (machine.t - start)


@pytest.mark.parametrize("n_prompt", [1000, 3000])
def test_reading_a_prompt_is_a_part_of_a_probes_price(n_prompt: int) -> None:
    """A prompt that waits while the gate is closed is read once 1 % of the time has paid for it."""
    machine = Machine(Costs(us(TARGETS["F16"])), USELESS)
    machine.n_wait_max = 10**9  # the drafter does not read it by itself
    policy = make_policy(machine, n_max=16)
    run_auto(machine, policy, 1000, text=10**9)
    assert policy.may_wait(1) == 1
    policy.reset()
    machine.waiting = [n_prompt]
    n_drafted, start = policy.stats()["drafted"], machine.t
    while policy.stats()["drafted"] == n_drafted:
        elapsed = machine.t - start
        run_auto(machine, policy, 1, text=10**9)
    price = machine.read_us * (n_prompt - 128)
    assert 0.01 * elapsed > 0.5 * price  # the rest was saved before
    grant = 3 * machine.costs.target[1]
    assert policy.stats()["draft_us"] < grant + 0.01 * machine.t + machine.read_us * 128


@pytest.mark.parametrize("head", [USELESS, RANDOM, FAIR, GOOD], ids=["useless", "random", "fair", "good"])
@pytest.mark.parametrize("target", ["Q4_0", "F16"])
def test_the_first_answer_of_a_fresh_process_is_not_slower_than_plain(target: str, head: Head) -> None:
    costs = Costs(us(TARGETS[target]))
    plain = run_plain(costs, 200)
    speeds = []
    for seed in range(4):
        machine = Machine(costs, head, seed)
        speeds.append(run_auto(machine, make_policy(machine, n_max=16), 200, text=10**9))
    assert np.mean(speeds) >= 0.97 * plain
