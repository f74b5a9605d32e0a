"""Several drafters in simulated time: the one that pays best drafts, and the others cost nearly nothing."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import plan_all
from planner_sim import TARGETS, TRUTH, Costs, Head, Machine, make_policy, run_auto, us

GOOD, FAIR = Head.varied(0.85), Head.varied(0.6)
USELESS = {
    "confident": Head(lambda *_: 0.8, lambda *_: 0.0, 0.0),
    "modest": Head(lambda rng, *_: float(rng.beta(0.3, 6.0)), lambda *_: 0.0, 0.0),
}
CHAIN = {"n_max": 16}
TREE = {"n_max": 8, "top_k": 4, "n_leaves_max": 8, "n_nodes_max": 31}


def two(first: Head, second: Head, seed: int = 0, **costs: float) -> tuple[Machine, Machine]:
    """Return two drafters of a target; costs: factors on the second one's times."""
    price = costs.get("price", 1.0)
    real = Costs(us(TARGETS["Q4_0"]))
    other = Costs(real.target, *({n: price * t for n, t in curve.items()} for curve in (real.begin, real.step)))
    machine = Machine(real, first, seed)
    return machine, Machine(other, second, seed + 1, beside=machine)


def alone(head: Head, n_tokens: int, **options: int) -> float:
    machine = Machine(Costs(us(TARGETS["Q4_0"])), head)
    return run_auto(machine, make_policy(machine, **options), n_tokens)


@pytest.mark.parametrize("options", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", USELESS)
def test_a_useless_one_is_soon_not_asked(name: str, is_first: bool, options: dict[str, int]) -> None:
    good, useless = two(GOOD, USELESS[name])
    order = (useless, good) if is_first else (good, useless)
    planner = make_policy(good, order=order, **options)
    speed = run_auto(good, planner, 5000)
    asked = planner.stats()["asked"][not is_first]
    assert asked < 60
    run_auto(good, planner, 5000)
    assert planner.stats()["asked"][not is_first] - asked < 40  # once in 30 steps, and in those of new texts
    assert speed > 0.97 * alone(GOOD, 5000, **options)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_better_one_drafts(is_first: bool) -> None:
    """The better one drafts, also if the other one is worth it by itself."""
    speeds = []
    for seed in range(4):
        good, fair = two(GOOD, FAIR, seed)
        planner = make_policy(good, order=(good, fair) if is_first else (fair, good), **CHAIN)
        speeds.append(run_auto(good, planner, 4000))
    assert np.mean(speeds) > 0.96 * alone(GOOD, 16000, **CHAIN)
    assert np.mean(speeds) > 1.1 * alone(FAIR, 16000, **CHAIN)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_equals_the_cheaper_one_drafts(is_first: bool) -> None:
    cheap, dear = two(GOOD, GOOD, price=4.0)
    planner = make_policy(cheap, order=(cheap, dear) if is_first else (dear, cheap), **CHAIN)
    run_auto(cheap, planner, 5000)
    asked = planner.stats()["asked"]
    assert asked[not is_first] > 8 * asked[is_first]


def test_one_that_becomes_better_is_found() -> None:
    """A drafter that becomes better is found, and the one that was the best before rests."""
    late = Head(GOOD.p, lambda p, _, n: p if n > 4000 else 0.0)
    early = Head(GOOD.p, lambda p, _, n: p if n <= 4000 else 0.3 * p)
    first, second = two(early, late)
    planner = make_policy(first, order=(first, second), **CHAIN)
    run_auto(first, planner, 4000)
    before = planner.stats()["asked"]
    assert before[0] > 20 * before[1]
    run_auto(first, planner, 2000)
    middle = planner.stats()["asked"]
    speed = run_auto(first, planner, 4000)
    after = planner.stats()["asked"]
    assert after[1] - middle[1] > 10 * (after[0] - middle[0])
    assert speed > 0.95 * alone(GOOD, 4000, **CHAIN)


def test_sequences_choose_who_may_be_asked() -> None:
    first, second = two(GOOD, GOOD)
    planner = make_policy(first, order=(first, second), n_seq_max=1, **CHAIN)
    for bits, asked in ((1, [20, 0]), (2, [20, 20]), (0, [20, 20])):
        for _ in range(20):
            (draft,) = plan_all(planner, [0], [TRUTH], [100], drafters=[bits])
            assert all(source in (0, 4 * bits) for source in draft.sources)
            (n,), n_rows, t_verify, t_other = first.verify([(draft.tokens, draft.parents)])
            planner.observe([0], [[TRUTH] * n], n_rows, t_verify, t_other)
        assert planner.stats()["asked"] == asked


def test_rows_of_the_one_that_rests_wait() -> None:
    good, useless = two(GOOD, USELESS["confident"])
    planner = make_policy(good, order=(good, useless), **CHAIN)
    assert planner.may_wait(1) == 0
    run_auto(good, planner, 2000)
    assert planner.may_wait(1) == 2


def test_too_many() -> None:
    machine = Machine(Costs(us(TARGETS["Q4_0"])), GOOD)
    with pytest.raises(ValueError, match="planner: expected at most 16 drafters, found 17"):
        make_policy(machine, order=[machine] * 17)
