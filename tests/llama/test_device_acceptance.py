"""On an accelerator as many drafted tokens are accepted at each position as on the CPU, by every kind of drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drafter_kinds import KINDS
from llama_cpp_eagle3 import _core
from loading import bundled_pair, load, prompts, take

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _core.local_accelerators(), reason="there is no accelerator"),
]

HEAD = "head"
ON_CPU, ON_DEVICE = {"n_gpu_layers": 0}, {"n_gpu_layers": -1}
TREE = {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}


def accepted(target: Any, drafter: Any, **options: Any) -> tuple[list[list[int]], list[int], int]:
    """Texts, how many tokens were accepted at each position, and how many were drafted."""
    with load(target, drafter, **options) as llm:
        texts = [take(llm, prompt, 40) for prompt in prompts(3, seed=11)]
        return texts, llm.stats.accepted_per_position, llm.stats.drafted


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("name", [HEAD, *KINDS])
def test_acceptance_per_position_is_that_of_the_cpu(tmp_path: Path, name: str, shape: str) -> None:
    target, drafter = bundled_pair() if name == HEAD else KINDS[name].write(tmp_path)
    options: dict[str, Any] = TREE
    if shape == "chain":
        options = {"draft": "chain", "draft_n_max": 7 if name == HEAD else KINDS[name].n_max}
    here, there = (accepted(target, drafter, **options, **place) for place in (ON_CPU, ON_DEVICE))
    print(f"{name} | {shape} | {here[2]} | {here[1]} | {there[2]} | {there[1]}")
    assert there == here
    assert sum(here[1]) > 0
