"""On an accelerator as many drafted tokens are accepted at each position as on the CPU, by every kind of drafter.

`pytest -m gpu -rP tests/llama/test_device_acceptance.py | grep '^|'` prints the table.
"""

from __future__ import annotations

from typing import Any

import pytest

from drafter_kinds import KINDS
from loading import bundled_pair, load, prompts, take
from placement import ON_AN_ACCELERATOR, ON_CPU

pytestmark = ON_AN_ACCELERATOR

HEAD = "head"
PLACES = {
    "all": {"n_gpu_layers": -1},
    "two layers": {"n_gpu_layers": 2},
    "target": {"n_gpu_layers": -1, "draft_n_gpu_layers": 0},
}
"""The parts of a pair that are on the accelerator -> options."""
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"draft": "chain"},
    "tree": {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6},
}
Accepted = tuple[list[list[int]], int, list[int]]


@pytest.fixture(scope="module", params=[HEAD, *KINDS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return bundled_pair() if name == HEAD else KINDS[name].write(tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def on_cpu() -> dict[tuple[str, str, float], Accepted]:
    """Return the accepted tokens on the CPU, by drafter, shape and temperature."""
    return {}


def accepted(files: tuple[Any, Any], name: str, shape: str, temperature: float, place: dict[str, Any]) -> Accepted:
    """Return the texts, the number of drafted tokens, and of accepted ones at each position."""
    options = SHAPES[shape]
    if shape == "chain":
        options = options | {"draft_n_max": 7 if name == HEAD else KINDS[name].n_max}
    with load(*files, **options, **place) as llm:
        llm.set_seed(7)
        n_prompts = 1 if name == HEAD else 3  # a model of some size, on a software driver
        texts = [take(llm, prompt, 40, temp=temperature) for prompt in prompts(n_prompts, seed=11)]
        return texts, llm.stats.drafted, llm.stats.accepted_per_position


@pytest.mark.parametrize(
    ("shape", "temperature", "where"),
    [
        ("chain", 0.0, "all"),
        ("tree", 0.0, "all"),
        ("chain", 0.8, "all"),
        ("chain", 0.0, "two layers"),
        ("chain", 0.0, "target"),
    ],
)
def test_acceptance_per_position_is_that_of_the_cpu(
    files: tuple[Any, Any], name: str, on_cpu: dict[Any, Accepted], shape: str, temperature: float, where: str
) -> None:
    key = (name, shape, temperature)
    here = on_cpu[key] = on_cpu.get(key) or accepted(files, *key, ON_CPU)
    there = accepted(files, *key, PLACES[where])
    figures = (f"{sum(x[2])} of {x[1]}: {', '.join(map(str, x[2]))}" for x in (here, there))
    print("|", " | ".join((name, shape, str(temperature), where, *figures)), "|")
    assert there == here
    assert sum(here[2]) > 0
