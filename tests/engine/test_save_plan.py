"""Where the state of a sequence is saved: the rules alone, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from llama_cpp_eagle3.engine import Request, Shift
from llama_cpp_eagle3.engine.save_plan import N_WITHIN, SavePlan, plan_saves


def plan(n_prompt: int, min_step: int = 256, *, is_needed: bool = True, **options: Any) -> SavePlan:
    return plan_saves(Request([0] * n_prompt, **options), n_prompt, min_step, is_needed=is_needed)


@pytest.mark.parametrize(
    ("n_prompt", "boundaries", "places"),
    [
        (100, [], [99]),
        (100, [10, 20, 30, 40], [9, 29, 39]),  # the end of the system prompt, and before the last two messages
        (900, [10, 300, 400, 800, 890], [9, 299, 799, 889]),  # and one between that is far enough
        (N_WITHIN + 600, [], [N_WITHIN, N_WITHIN + 599]),
        (N_WITHIN + 200, [], [N_WITHIN + 199]),
        (1, [], []),
    ],
)
def test_places(n_prompt: int, boundaries: list[int], places: list[int]) -> None:
    assert plan(n_prompt, boundaries=boundaries).places == places
    assert plan(n_prompt, boundaries=boundaries, is_needed=False).places == []


def test_where_others_differ() -> None:
    """It is known without states too: slots with windows are saved there."""
    for is_needed in (False, True):
        found = plan(100, boundaries=[10, 20, 30, 40], is_needed=is_needed)
        assert (found.ends, found.n_turn) == ([9, 29, 39], 39)
        assert (plan(100, is_needed=is_needed).ends, plan(100, is_needed=is_needed).n_turn) == ([99], 99)


def test_a_full_context() -> None:
    """The place to which a full context is cut; none of the others exists after that."""
    found = plan(100, shift=Shift(50))
    assert found.places == [49, 99]
    found.cut(50)
    assert (found.places, found.n_turn) == ([], 50)


def test_passes_end_there() -> None:
    found = plan(900, boundaries=[10, 300, 400, 800, 890])
    found.begin_at(290)
    assert found.places == [799, 889]
    assert [found.next_place(n) for n in (0, 799, 888, 889)] == [799, 889, 889, None]
    assert [found.is_due(a, b) for a, b in ((0, 798), (798, 799), (799, 888), (700, 900))] == [False, True, False, True]
    found.begin_at(888)
    assert found.places == [889]  # the last one, however near
    found.put_off(889)
    assert found.next_place(889) == 890


def test_another_prompt_parts() -> None:
    found = plan(900, boundaries=[300])
    found.share(330, 900, 32)  # near
    assert found.places == [299]
    found.share(500, 900, 32)
    assert found.places == [299, 499]
    found.share(900, 900, 32)  # all of the prompt
    assert found.places == [299, 499]
    without = plan(900, is_needed=False)
    without.share(500, 900, 32)
    assert without.places == []


def test_a_thought_ends() -> None:
    found = plan(4, thought_ends=[[7, 8], [9]])
    tokens = [0, 0, 0, 7, 8, 1, 7, 8, 1]
    found.see(tokens[:5], 4, 1)  # a part of it is the prompt's
    assert found.places == [3]
    found.see(tokens, 4, 2)
    assert found.places == [3, 8]
    found.see(tokens, 4, 0)
    assert found.places == [3, 8]
