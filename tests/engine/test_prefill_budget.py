"""The number of a prompt's rows that join a pass, on simulated machines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from llama_cpp_eagle3.engine.prefill_budget import PrefillBudget

MS = 1_000_000


def by_four(n: int) -> float:
    """Return milliseconds of n rows: each group of four takes 20, and so does each row left over."""
    return 50.0 + 20.0 * (n // 4) + 20.0 * (n % 4)


def smooth(n: int) -> float:
    return 90.0 + 5.0 * n


@pytest.mark.parametrize("machine", [by_four, smooth])
@pytest.mark.parametrize(
    ("before", "beside"), [((0,), (0,)), ((0, 1, 4), (0, 1, 4)), ((0, 0, 0, 4), (4,)), ((4,), (0, 2))]
)
def test_a_pass_takes_twice_as_long(
    machine: Callable[[int], float], before: tuple[int, ...], beside: tuple[int, ...]
) -> None:
    """Seven sequences decode, with drafts of any length; then a prompt arrives, and drafts change their length."""
    rng = np.random.default_rng(0)
    budget = PrefillBudget()

    def take(n_prompt: int, choices: tuple[int, ...]) -> float:
        n = 7 * (1 + int(rng.choice(choices))) + n_prompt
        took = machine(n) * rng.uniform(0.95, 1.05)
        budget.observe(n, n_prompt, int(took * MS))
        return took

    for _ in range(60):
        take(0, before)
    mixed, usual, n_read = [], [], 0
    for i in range(200):
        n_prompt = budget.n_rows
        took = take(n_prompt, beside)
        n_read += n_prompt
        if i >= 60:
            (mixed if n_prompt else usual).append(took)
    assert 1.6 < np.mean(mixed) / np.mean([machine(7 * (1 + n)) for n in beside]) < 2.4
    assert len(usual) == 140 // 17
    assert n_read > 200 * 8  # more than the allowed minimum


def test_texts_that_grow() -> None:
    """The other sequences' time grows while a long prompt is read; it does not count as the prompt's."""
    budget = PrefillBudget()
    for _ in range(20):
        budget.observe(35, 0, int(smooth(35) * MS))
    n_rows = []
    for i in range(400):
        grown, n_prompt = 1.0 + i / 200, budget.n_rows
        n_rows.append(n_prompt)
        budget.observe(35 + n_prompt, n_prompt, int((smooth(35) * grown + 5.0 * n_prompt) * MS))
    expected = smooth(35) * 3.0 / 5.0
    assert 0.6 * expected < max(n_rows[-32:]) < 1.5 * expected
    assert n_rows.count(0) <= 400 // 16


def test_drafts_beside_a_prompt() -> None:
    budget = PrefillBudget()
    assert budget.n_drafts(1) == 0
    for _ in range(50):
        budget.observe(35, 0, 800 * MS)
    assert [budget.n_drafts(n) for n in (1, 7, 20, 35)] == [34, 4, 1, 0]
    budget.observe(70, 35, 1600 * MS)
    assert budget.n_drafts(7) == 4


def test_unknown_and_fixed() -> None:
    budget = PrefillBudget()
    assert budget.n_rows == 32
    budget.observe(40, 33, 10 * MS)  # without an earlier pass without a prompt there is no comparison
    budget.observe(7, 0, 100 * MS)
    assert budget.n_rows == 32
    budget.observe(512, 512, 5120 * MS)
    assert budget.n_rows == 10
    budget.observe(10, 3, 90 * MS)  # the end of a prompt is no measurement
    assert budget.n_rows == 10
    budget.observe(17, 10, 400 * MS)
    assert budget.n_rows == 5
    budget.observe(12, 5, 10**6 * MS)  # something else ran: at least half remains
    budget.observe(11, 4, 10 * MS)
    assert budget.n_rows == 5
    while budget.n_rows:  # until a pass without a prompt is due
        budget.observe(7 + budget.n_rows, budget.n_rows, 10 * MS)
    budget.observe(7, 0, 100 * MS)
    assert budget.n_rows > 40
    assert PrefillBudget(64).n_rows == 64


def test_steps_of_prompts_alone() -> None:
    """A ubatch, or a batch where that takes at most a quarter of a second; less where other prompts may wait for it."""
    budget = PrefillBudget()
    assert budget.n_rows_alone(512, 2048, may_wait=False) == 512
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 128  # no prompt was read yet
    assert budget.n_rows_alone(64, 2048, may_wait=True) == 64
    budget.observe(128, 128, 128 * 5 * MS)
    assert budget.n_rows_alone(512, 2048, may_wait=False) == 512
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 512  # what reading the weights takes is not known
    budget.observe(1, 0, 25 * MS)
    assert budget.n_rows_alone(512, 2048, may_wait=False) == 512
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 256  # 25 ms are 2 % of 250 rows: four groups of 64
    budget.observe(1, 0, 900 * MS)  # experts, of which each pass reads most
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 512
    accelerator = PrefillBudget()
    accelerator.observe(512, 512, 50 * MS)
    accelerator.observe(1, 0, 10 * MS)
    assert accelerator.n_rows_alone(512, 2048, may_wait=True) == 2048
    assert PrefillBudget(64).n_rows_alone(512, 2048, may_wait=True) == 2048


def test_what_reading_takes_is_measured_while_loading() -> None:
    """Steps with drafts, of several sequences or at depth then tell nothing of it."""
    budget = PrefillBudget(reading_ns=lambda: 25.0 * MS)
    budget.observe(128, 128, 128 * 5 * MS)
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 256
    budget.observe(8, 0, 60 * MS)
    assert budget.n_rows_alone(512, 2048, may_wait=True) == 256
    slow = PrefillBudget(reading_ns=lambda: 1.0 * MS)
    slow.observe(128, 128, 128 * 5 * MS)
    assert slow.n_rows_alone(512, 2048, may_wait=True) == 64
