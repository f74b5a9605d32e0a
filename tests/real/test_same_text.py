"""Text with each drafter is the text without one, token by token, greedy and drawn by seed.

In one sequence at default settings, and from a server that four clients ask at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama
from real import N_CTX, SAMPLED, SEED, Real, prompts
from serving import Running

N_CLIENTS = 4
Texts = list[list[int]]
_plain: dict[tuple[str, bool], Texts] = {}
"""Model, and whether it is sampled -> texts without drafts."""


def options_of(n: int, is_sampled: bool) -> list[dict[str, Any]]:
    """Return the options of n requests, each with a seed of its own."""
    return [{**(SAMPLED if is_sampled else {"temperature": 0.0}), "seed": SEED + i} for i in range(n)]


def answers(llm: Eagle3Llama, n: int, n_tokens: int, *, is_sampled: bool) -> Texts:
    """Return n answers, one after the other."""
    asked = prompts(llm, n, N_CTX - n_tokens)
    results = llm.generate_batch(asked, options_of(n, is_sampled), max_tokens=n_tokens)
    assert not [result.error for result in results if result.error]
    return [list(result.tokens) for result in results]


def answers_without_drafts(real: Real, n: int, n_tokens: int, *, is_sampled: bool) -> Texts:
    """Return what `answers` returns without a drafter, which is asked for once."""
    key = real.name, is_sampled
    if key not in _plain:
        with closing(real.load()) as llm:
            assert llm.loaded.batch_invariance.startswith("batch invariant: ")  # else nothing is promised
            _plain[key] = answers(llm, n, n_tokens, is_sampled=is_sampled)
    return _plain[key]


def numbers(config: pytest.Config, is_sampled: bool) -> tuple[int, int]:
    """Return the number of answers, and of their tokens."""
    n = config.getoption("real_sampled" if is_sampled else "real_answers")
    if not n:
        pytest.skip("no answers were asked for")
    return n, config.getoption("real_tokens")


def compare(
    tell: Callable[[str], None], expected: Texts, found: Texts, drafter: str, n_drafted: int, n_accepted: int
) -> None:
    """Tell how many texts differ, which none may."""
    different = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    n = sum(map(len, found))
    tell(
        f"{len(found)} answers, {n} tokens, {n_accepted} of {n_drafted} drafted ones accepted, "
        f"{n / (n - n_accepted):.2f} tokens a step, {len(different)} texts differ"
    )
    assert n_accepted or drafter in ("auto", "ngram")  # these may find that drafts do not pay
    assert different == []


@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_text_with_drafts_is_that_without(
    real: Real, drafter: str, is_sampled: bool, pytestconfig: pytest.Config, tell: Callable[[str], None]
) -> None:
    n, n_tokens = numbers(pytestconfig, is_sampled)
    expected = answers_without_drafts(real, n, n_tokens, is_sampled=is_sampled)
    with closing(real.load(drafter)) as llm:
        found = answers(llm, n, n_tokens, is_sampled=is_sampled)
        compare(tell, expected, found, drafter, llm.stats.drafted, llm.stats.accepted)


@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_text_of_four_clients_is_that_without(
    real: Real, drafter: str, is_sampled: bool, pytestconfig: pytest.Config, tell: Callable[[str], None]
) -> None:
    n, n_tokens = numbers(pytestconfig, is_sampled)
    expected = answers_without_drafts(real, n, n_tokens, is_sampled=is_sampled)
    llm = real.load(drafter, n_parallel=N_CLIENTS, n_ctx=N_CLIENTS * N_CTX)
    asked = prompts(llm, n, N_CTX - n_tokens)
    with Running(llm) as running, ThreadPoolExecutor(N_CLIENTS) as clients:

        def ask(prompt: list[int], options: dict[str, Any]) -> Any:
            return running.ask(
                "/completion", {"prompt": prompt, "n_predict": n_tokens, "return_tokens": True, **options}
            )

        given = list(clients.map(ask, asked, options_of(n, is_sampled)))
    n_drafted, n_accepted = (
        sum(answer["timings"].get(field, 0) for answer in given) for field in ("draft_n", "draft_n_accepted")
    )
    found = [answer["tokens"][: -1 if answer["stop_type"] == "eos" else None] for answer in given]
    compare(tell, expected, found, drafter, n_drafted, n_accepted)
