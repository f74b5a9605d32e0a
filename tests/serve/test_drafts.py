"""Drafts request by request: the requested lengths, the reported figures, and an unchanged text."""

from __future__ import annotations

from typing import Any

import pytest

from loading import cheap_rows
from serving import Running

BODY = {"prompt": "the self", "n_predict": 30, "temperature": 0.0}


def test_off(running: Running) -> None:
    expected = running.ask("/completion", BODY)["content"]
    for off in ({"speculative": False}, {"speculative": {"mode": "off"}}, {"speculative": {"n_max": 0}}):
        answer = running.ask("/completion", BODY | off)
        assert answer["content"] == expected
        assert "draft_n" not in answer["timings"]
        figures = answer["metrics"]["speculative_decoding"]
        assert (figures["num_spec_steps"], figures["num_draft_tokens"]) == (0, 0)
        assert figures["mean_acceptance_length"] == figures["mean_acceptance_length_all_steps"] == 1.0
        assert answer["generation_settings"]["speculative.types"] == "none"
    assert running.ask("/completion", {**BODY, "speculative.n_max": 0})["timings"].get("draft_n") is None


@pytest.mark.parametrize("n_max", [1, 2, 4])
def test_lengths(running: Running, n_max: int) -> None:
    """The head is always right: every chain is accepted whole, except the last one."""
    for body in ({"speculative": {"n_max": n_max}}, {"speculative.n_max": n_max}):
        answer = running.ask("/v1/completions", BODY | body)
        figures = answer["metrics"]["speculative_decoding"]
        histogram = figures["acceptance_histogram"]
        assert len(histogram) == n_max + 1
        assert histogram[n_max] >= sum(histogram) - 1
        assert sum(histogram) == figures["num_spec_steps"]
        assert sum(i * n for i, n in enumerate(histogram)) == figures["num_accepted_draft_tokens"]
        assert figures["num_spec_tokens"] == n_max
        assert answer["timings"]["draft_n_accepted"] == figures["num_accepted_draft_tokens"]
        assert figures["mean_acceptance_length"] == pytest.approx(1 + n_max, abs=0.5)


def test_limits(running: Running) -> None:
    answer = running.ask("/completion", BODY | {"speculative": {"n_min": 4, "n_max": 4}})
    assert len(answer["metrics"]["speculative_decoding"]["acceptance_histogram"]) == 5


def test_p_min(tiny_target: Any, tiny_head: Any) -> None:
    """A random head's probabilities are low."""
    with Running(tiny_target, tiny_head) as running:
        assert running.ask("/completion", BODY)["timings"]["draft_n"] > 0
        assert "draft_n" not in running.ask("/completion", BODY | {"speculative": {"p_min": 0.999}})["timings"]


def test_why_there_are_none(tiny_target: Any) -> None:
    with Running(tiny_target) as running:
        props = running.client.get("/props").json()["speculative"]
        assert props["enabled"] is False
        assert props["reason"] == "draft_sources (--spec-type) leaves no drafter"
        assert "draft_n" not in running.ask("/completion", BODY)["timings"]


def test_what_each_source_has_brought(tiny_target: Any, tiny_head: Any) -> None:
    """With auto, /props has the gain of each drafter, and the reason why it is not asked more often."""
    with Running(tiny_target, tiny_head, draft="auto", draft_n_max=None) as running:
        cheap_rows(running.server.llm)
        for _ in range(2):
            running.ask("/completion", BODY | {"n_predict": 100})
        found = running.client.get("/props").json()["speculative"]["by_source"]
        assert found.keys() == {"eagle3", "ngram"}
        for source in found.values():
            assert source.keys() == {"steps", "seconds_saved", "reason"}
        assert found["eagle3"]["steps"] > 0
        assert running.client.get("/props").json()["speculative"]["plain_tokens_per_second"] > 0
        assert found["eagle3"]["seconds_saved"] != 0.0


def test_who_drafted(running: Running) -> None:
    """Each event of a drafted token names its drafters, and /props the speed of plain decoding once it is measured."""
    for path, body in (
        ("/completion", BODY),
        ("/v1/completions", {"prompt": "the self", "max_tokens": 30}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the self"}], "max_tokens": 30}),
    ):
        events = [event for event in running.stream(path, {**body, "temperature": 0}) if event != "[DONE]"]
        tokens = [event.get("choices", [event])[0] for event in events]
        drafted = [token for token in tokens if token.get("drafted")]
        assert drafted
        assert all(token["drafted_by"] == ["eagle3"] for token in drafted)
        assert not any("drafted_by" in token for token in tokens if not token.get("drafted"))
    assert running.client.get("/props").json()["speculative"]["plain_tokens_per_second"] is None
