"""Prompts that are expensive to read: a small model reads one once its drafts would have been worth it."""

from __future__ import annotations

import pytest

from planner_sim import Costs, Head, Machine, make_policy, run_auto, run_plain, us

# Qwen2.5-Coder's 1.5B with the 0.5B, two threads
TARGET = us({1: 33.0, 2: 37.0, 4: 47.0, 8: 80.0, 16: 150.0})
SMALL = us({1: 9.0, 4: 14.0, 16: 42.0})
GOOD, USELESS = Head.constant(0.85), Head(lambda *_: 0.8, lambda *_: 0.0, 0.0)
N_PROMPT = 600


class SmallModel(Machine):
    """Reads a prompt when it is asked, and never before."""

    n_wait_max = 10**9
    read_us = 2200.0


def small(head: Head, n_waiting: int, seed: int = 0) -> SmallModel:
    machine = SmallModel(Costs(TARGET, SMALL, SMALL), head, seed)
    machine.waiting = [n_waiting]
    return machine


def seconds(head: Head, n_waiting: int, n_tokens: int, n_before: int = 0) -> float:
    """Return the seconds of an answer with the planner. n_before: tokens of earlier texts, whose prompts were read."""
    machine = small(head, 1 if n_before else n_waiting)
    planner = make_policy(machine, n_max=8)
    if n_before:
        run_auto(machine, planner, n_before, text=10**9)
        planner.reset()
        machine.waiting = [n_waiting]
    start = machine.t
    run_auto(machine, planner, n_tokens, text=10**9)
    return 1e-6 * (machine.t - start)


PRICE = 1e-6 * N_PROMPT * SmallModel.read_us
GRANT = 4e-6 * TARGET[1]


@pytest.mark.parametrize("n_tokens", [8, 24, 64, 160, 400, 1500])
def test_a_good_one_costs_its_price_twice_at_most(n_tokens: int) -> None:
    """The extra time is beyond that of an oracle, which reads the prompt of a known good drafter at once or never."""
    never = n_tokens / run_plain(Costs(TARGET), 10)
    at_once = PRICE + seconds(GOOD, 1, n_tokens, 1500)
    found = seconds(GOOD, N_PROMPT, n_tokens, 1500)
    assert found < min(never, at_once) + 2.0 * PRICE
    if n_tokens <= 64:
        assert found == pytest.approx(never, rel=0.03)
    if n_tokens >= 1500:
        assert found < 0.85 * never


@pytest.mark.parametrize("head", [GOOD, USELESS], ids=["good", "useless"])
@pytest.mark.parametrize("n_prompt", [40, 150, N_PROMPT, 6000])
@pytest.mark.parametrize("n_tokens", [8, 64, 160, 400, 1500])
def test_the_first_answer_is_not_slower_than_plain(n_tokens: int, n_prompt: int, head: Head) -> None:
    """Nothing is known of the drafter yet, and reading a prompt costs the time of two to 400 tokens."""
    never = n_tokens / run_plain(Costs(TARGET), 10)
    assert seconds(head, n_prompt, n_tokens) < 1.03 * never + 2 * GRANT


def test_a_useless_one_never_costs_more_than_a_share() -> None:
    """The share holds over many texts with prompts of all lengths."""
    machine = small(USELESS, 200)
    planner = make_policy(machine, n_max=8)
    n_tokens = 0
    for i in range(60):
        planner.reset()
        machine.waiting = [(30, 100, 300, N_PROMPT)[i % 4]]
        run_auto(machine, planner, 120, text=10**9)
        n_tokens += 120
    assert n_tokens / (1e-6 * machine.t) > 0.96 * run_plain(Costs(TARGET), 10)


def test_a_good_one_is_found_within_a_few_texts() -> None:
    machine = small(GOOD, 200)
    planner = make_policy(machine, n_max=8)
    times = []
    for _ in range(12):
        planner.reset()
        machine.waiting = [100]
        start = machine.t
        run_auto(machine, planner, 300, text=10**9)
        times.append(1e-6 * (machine.t - start))
    never = 300 / run_plain(Costs(TARGET), 10)
    assert times[0] < 1.03 * never
    assert max(times[-4:]) < 0.9 * never


def test_what_is_read_is_asked_at_once() -> None:
    machine = small(GOOD, 1)
    planner = make_policy(machine, n_max=8)
    run_auto(machine, planner, 4, text=10**9)
    assert planner.stats()["asked"] == [planner.stats()["steps"]]


def test_what_is_unread_is_not_asked_at_first() -> None:
    machine = small(GOOD, N_PROMPT)
    planner = make_policy(machine, n_max=8)
    run_auto(machine, planner, 8, text=10**9)
    assert planner.stats()["asked"] == [0]
    assert machine.waiting == [N_PROMPT + 8]


def test_a_small_models_prompt_waits_and_a_heads_does_not() -> None:
    assert make_policy(small(GOOD, 1), n_max=8).may_wait(1) == 1
    head = Machine(Costs(TARGET), GOOD)
    assert make_policy(head, n_max=8).may_wait(1) == 0


def test_another_text_is_rented_anew() -> None:
    machine = small(GOOD, 1)
    planner = make_policy(machine, n_max=8)
    run_auto(machine, planner, 1500, text=10**9)
    asked = planner.stats()["asked"][0]
    assert asked > 0
    planner.reset()
    machine.waiting = [N_PROMPT]
    run_auto(machine, planner, 8, text=10**9)
    assert planner.stats()["asked"][0] == asked
    run_auto(machine, planner, 600, text=10**9)
    assert planner.stats()["asked"][0] > asked
