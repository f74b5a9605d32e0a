"""Why nothing is drafted: one answer, from settings, sources and a policy that is simulated."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3.draft.costs import Costs, DraftCosts
from llama_cpp_eagle3.engine import DraftSettings
from llama_cpp_eagle3.engine.draft_state import DraftState, SourceState, draft_state
from loading import load, take

STATS: dict[str, Any] = {
    "asked": [5], "saved_us": [2.5e6], "unread": [(0.0, 0.0, 0.0)], "is_open": [True], "ngram": 0,
    "ngram_saved_us": 0.0, "grammar": 0, "grammar_saved_us": 0.0,
}  # fmt: skip

PER_DRAFTER = ("asked", "saved_us", "unread", "is_open")


def policy(can_pay: bool = True, is_measured: bool = True, **stats: Any) -> Any:
    curve = SimpleNamespace(at=lambda n: 100.0 * n)
    return SimpleNamespace(
        is_measured=is_measured,
        stats=lambda: STATS | stats,
        can_pay=lambda: can_pay,
        costs=(curve,),
        draft_us=lambda n: 20.0 * n,
    )


def state(settings: DraftSettings, names: tuple[str, ...] = ("simple",), *, has_ngram: bool = True, **of: Any) -> Any:
    per_drafter = {name: list(of.get(name, STATS[name]))[: len(names)] for name in PER_DRAFTER}
    return draft_state(policy(**of | per_drafter), names, settings, has_ngram, "there is none")


AUTO = DraftSettings()


@pytest.mark.parametrize(
    ("found", "can_draft", "why"),
    [
        (state(AUTO, (), has_ngram=False), False, "there is none"),
        (state(DraftSettings(sources=("eagle3",)), ()), False, "there is none"),
        (state(DraftSettings(mode="off")), False, "it was switched off"),
        (state(DraftSettings(n_max=0, ngram_n_max=0)), True, "the settings leave none: draft='auto', draft_n_max=0"),
        (state(DraftSettings(mode="chain"), ()), True, "the settings leave none: draft='chain'"),
        (state(DraftSettings(mode="chain", p_min=0.9)), True, "draft_p_min=0.9"),
        (state(AUTO, is_measured=False), True, "was not measured yet, .*: chains of a few tokens are drafted until"),
        (state(AUTO, (), is_measured=False), True, "was not measured yet, .*: nothing is drafted until"),
        (state(AUTO, ()), True, "nothing of the text repeats"),
        (state(AUTO, (), ngram=3), True, "nothing of the text repeats"),
        (state(AUTO, can_pay=False), True, r"a pass over 4 rows takes 4\.0 times .* drafting them 0\.6 times"),
        (state(AUTO, unread=[(2e6, 1e6, -1.0)]), True, r"take the drafter 2\.00 s, .* about 1\.00 s .* cost 0\.00 s"),
        (state(AUTO, is_open=[False]), True, "^its drafts have not paid lately"),
        (state(AUTO), True, "no draft was expected to pay"),
    ],
)  # fmt: skip
def test_why_not(found: DraftState, can_draft: bool, why: str) -> None:
    settings = DraftSettings(mode="chain", p_min=0.9) if "p_min" in why else AUTO
    assert found.can_draft == can_draft
    assert re.search(why, found.why_not(settings))


def test_each_source() -> None:
    """What each has brought is there once costs are known; of several drafters each has its reason."""
    found = state(AUTO, is_open=[False], ngram=7, ngram_saved_us=1e4)
    assert found.reason == ""
    assert found.by_source["simple"].steps == 5
    assert found.by_source["ngram"] == SourceState(7, 0.01, "")
    assert "grammar" not in found.by_source
    found = state(AUTO, (), grammar=3, grammar_saved_us=2e4)
    assert found.by_source["grammar"] == SourceState(3, 0.02, "")
    assert "nothing of the text repeats" in found.why_not(AUTO)
    two = state(AUTO, ("eagle3", "mtp"), asked=[1, 2], saved_us=[1, 2], unread=[(0, 0, 0)] * 2, is_open=[False] * 2)
    assert re.match("eagle3: its drafts .*; mtp: its drafts ", two.why_not(AUTO))


def test_what_a_policy_learns(tiny_target: Any, tiny_head: Any) -> None:
    """It plans by the costs that it is told, says if they are guessed, and keeps what it knows of its drafters."""
    curves = Costs({1: 1000.0, 4: 1200.0, 8: 1500.0}, (DraftCosts({1: 100.0}, {1: 100.0}),))
    with load(tiny_target, tiny_head, draft="auto", draft_n_max=None) as llm:
        drafting = llm.engine.drafting
        assert "not measured yet" in llm.engine.drafts().reason
        drafting.learn(curves.priced(), is_guessed=True, priors=[{"damaged": 1}])
        assert (drafting.policy.is_measured, drafting.is_guessed, llm.engine.drafts().reason) == (True, True, "")
        take(llm, [1, 2, 3], 60)
        (before,) = drafting.policy.priors()
        drafting.learn(curves.priced())
        assert not drafting.is_guessed
        (after,) = drafting.policy.priors()
        assert after is not None
        assert after["log_p"] == pytest.approx(before["log_p"])
        llm.engine.set_drafters(list(llm.drafters))
        assert not drafting.policy.is_measured
