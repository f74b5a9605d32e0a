"""Gemma 3's sliding window: prompts beyond it, a cache that drops the cells before it, prefixes that recur."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from real import REAL, Real

NAME = "gemma-3-270m"
TASKS = Path(__file__).parents[2] / "benchmarks" / "tasks"
N_ROWS = 64
"""Rows of a pass at most: up to this number, a row's logits are the same bits whatever else is in it."""
OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_batch": N_ROWS, "n_ubatch": N_ROWS}


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config) -> Real:
    if not {NAME, "all"} & set(pytestconfig.getoption("real")):
        pytest.skip(f"--real {NAME} was not asked for")
    return REAL[NAME]


@pytest.fixture(scope="module")
def conversation(model: Real) -> list[list[int]]:
    """Return prompts that begin with the one before, or part from it long before the last window or inside it."""
    text = (TASKS / "fim_stats.py.txt").read_text(encoding="utf-8")
    other = (TASKS / "fim_tree.cpp.txt").read_text(encoding="utf-8")
    with closing(model.load()) as llm:
        a, b = (llm.tokenize(part.encode()) for part in (text, other))
    n_window = gguf.GGUFReader(model.path).fields["gemma3.attention.sliding_window"].contents()
    first = a[: n_window + 200]
    assert len(first) > n_window
    return [first, a[: n_window + 500], [*a[: n_window + 400], *b[:60]], [*a[:150], *b[: n_window + 100]], first]


def answers(llm: Eagle3Llama, prompts: list[list[int]], n: int) -> tuple[list[list[int]], list[int]]:
    """Return the answers, and the number of evaluated tokens of each prompt."""
    texts, n_evaluated = [], []
    for prompt in prompts:
        (result,) = llm.generate_batch([prompt], max_tokens=n, temperature=0.0)
        texts.append(list(result.tokens))
        n_evaluated.append(result.stats.prompt_tokens)
    return texts, n_evaluated


@pytest.mark.parametrize("swa_full", [True, False], ids=["whole cache", "cache of the window"])
def test_prefixes_and_drafts(
    model: Real,
    conversation: list[list[int]],
    swa_full: bool,
    pytestconfig: pytest.Config,
    tell: Callable[[str], None],
) -> None:
    n = pytestconfig.getoption("real_tokens")
    expected = []
    for prompt in conversation:  # each in a context of its own
        with closing(model.load(cpu_kernels="on", swa_full=True, **OPTIONS)) as llm:
            texts, _ = answers(llm, [prompt], n)
            expected += texts
    for drafter in (None, "ngram"):
        with closing(model.load(drafter, cpu_kernels="on", swa_full=swa_full, **OPTIONS)) as llm:
            found, n_evaluated = answers(llm, conversation, n)
            stats = llm.stats
        assert found == expected
        lengths = [len(prompt) for prompt in conversation]
        tell(f"prompts of {lengths} tokens, evaluated {n_evaluated}; {stats.accepted} of {stats.drafted} accepted")
        assert n_evaluated[0] == lengths[0]
        assert n_evaluated[1] < 500  # only the new tokens, and no window again
        assert drafter is None or stats.accepted
