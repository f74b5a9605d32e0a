"""Text with each drafter is the text without one, token by token, at default settings: greedy, and drawn by seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama
from real import N_CTX, SAMPLED, SEED, Real, prompts

Texts = list[list[int]]
_plain: dict[tuple[str, bool], Texts] = {}
"""Model, and whether it is sampled -> texts without drafts."""


def answers(llm: Eagle3Llama, n: int, n_tokens: int, *, is_sampled: bool) -> Texts:
    asked = prompts(llm, n, N_CTX - n_tokens)
    options: list[dict[str, Any]] = [
        {**(SAMPLED if is_sampled else {"temperature": 0.0}), "seed": SEED + i} for i in range(n)
    ]
    results = llm.generate_batch(asked, options, max_tokens=n_tokens)
    assert not [result.error for result in results if result.error]
    return [list(result.tokens) for result in results]


@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_text_with_drafts_is_that_without(
    real: Real, drafter: str, is_sampled: bool, pytestconfig: pytest.Config, tell: Callable[[str], None]
) -> None:
    n = pytestconfig.getoption("real_sampled" if is_sampled else "real_answers")
    n_tokens = pytestconfig.getoption("real_tokens")
    if not n:
        pytest.skip("no answers were asked for")
    key = real.name, is_sampled
    if key not in _plain:
        with closing(real.load()) as llm:
            assert "matrices by" in llm.loaded.where  # else nothing is promised
            _plain[key] = answers(llm, n, n_tokens, is_sampled=is_sampled)
    with closing(real.load(drafter)) as llm:
        found = answers(llm, n, n_tokens, is_sampled=is_sampled)
        stats = llm.stats
    different = [i for i, (a, b) in enumerate(zip(_plain[key], found, strict=True)) if a != b]
    tell(
        f"{n} answers, {sum(map(len, found))} tokens, {stats.accepted} of {stats.drafted} drafted ones accepted, "
        f"{stats.mean_acceptance_length:.2f} tokens a step, {len(different)} texts differ"
    )
    assert stats.accepted or drafter == "auto"  # auto may find that drafts do not pay
    assert different == []
