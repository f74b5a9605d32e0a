"""The figures agree with counts from the tokens."""

from __future__ import annotations

import json
from contextlib import closing
from time import sleep
from typing import Any

import pytest

from llama_cpp_eagle3 import Stats
from llama_cpp_eagle3.engine.draft import Draft
from loading import Drafts, load, take


def test_perfect_and_useless(perfect_pair: Any, tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(*perfect_pair, draft_n_max=4)) as llm:
        tokens = take(llm, [40, 41, 42], 41)
        stats = llm.last_stats
        # one token from the prompt's row, then eight steps of five
        assert len(tokens) == stats.tokens == 41
        assert (stats.steps, stats.drafts, stats.drafted, stats.accepted) == (8, 8, 32, 32)
        assert stats.accepted_per_position == [8] * 4
        assert stats.mean_acceptance_length == 5.0
        assert stats.draft_acceptance_rate == 1.0
        assert stats.prompt_tokens == 3
    with closing(load(tiny_target, tiny_head)) as llm:
        take(llm, [40, 41, 42], 41)
        stats = llm.last_stats
        assert stats.steps + stats.accepted + 1 == 41
        assert stats.drafted == 3 * stats.steps


@pytest.mark.parametrize("n", range(1, 8))
def test_an_unfinished_step_counts_as_far_as_it_was_judged(perfect_pair: Any, n: int) -> None:
    with closing(load(*perfect_pair, draft_n_max=4)) as llm:
        take(llm, [40, 41, 42], n)
        stats = llm.last_stats
        n_steps = (n + 3) // 5
        assert (stats.tokens, stats.steps) == (n, n_steps)
        # all tokens but the prompt's and each full step's last were drafted
        assert stats.drafted == stats.accepted == n - 1 - (n - 1) // 5
        assert sum(stats.accepted_per_position) == stats.accepted


def test_partly_accepted(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, draft_n_max=4)) as llm:
        expected = take(llm, [1, 2, 3], 60)
        context = [1, 2, 3, *expected]
        # the first two of four are right
        llm.engine.drafting.override = Drafts(
            lambda _, __: Draft.chain([t + (i > 1) for i, t in enumerate(context[llm.n_tokens + 1 :][:4])])
        )
        take(llm, [1, 2, 3], 31)
        stats = llm.last_stats
        assert (stats.tokens, stats.steps, stats.drafted, stats.accepted) == (31, 10, 40, 20)
        assert stats.accepted_per_position == [10, 10, 0, 0]
        assert stats.acceptance_rate_per_position == [1.0, 1.0, 0.0, 0.0]
        assert stats.mean_acceptance_length == 3.0
        llm.engine.drafting.override = None


def test_since_creation_and_last(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        assert llm.stats == llm.last_stats == Stats()
        take(llm, [1, 2, 3], 10)
        first = llm.last_stats
        llm.draft_n_max = 5
        take(llm, [4, 5, 6], 20)
        second = llm.last_stats
        assert (first.tokens, second.tokens) == (10, 20)
        assert llm.stats == first + second
        assert len(llm.stats.accepted_per_position) == 5
        llm.eval([7])  # this evaluation belongs to the next generation
        take(llm, [4, 5, 6], 5)
        assert llm.last_stats.tokens == 5
        assert llm.stats.tokens == 35


def test_times(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        for _ in llm.generate([1, 2, 3], temp=0.5):
            sleep(0.002)  # the consumer's time does not count
            if llm.last_stats.tokens == 30:
                break
        stats = llm.last_stats
        parts = (
            stats.prefill_seconds,
            stats.draft_seconds,
            stats.verify_seconds,
            stats.sample_seconds,
            stats.other_seconds,
        )
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(stats.total_seconds, rel=1e-6)
        decode_seconds = stats.total_seconds - stats.prefill_seconds
        assert stats.tokens_per_second == pytest.approx(30 / decode_seconds)


def test_repr_and_dicts(perfect_pair: Any) -> None:
    with closing(load(*perfect_pair)) as llm:
        take(llm, [40, 41, 42], 21)
        stats = llm.last_stats
        text = repr(stats)
        for part in ("21 tokens", "5 steps", "mean acceptance length 4.00", "15/15 = 100.0 % [100 100 100]", "verify"):
            assert part in text
        assert "accepted" not in repr(Stats(tokens=3, total_ns=10**9))
        assert json.loads(json.dumps(stats.as_dict()))["mean_acceptance_length"] == 4.0
        assert stats.metrics() == {
            "prompt_tokens_total": 3,
            "generation_tokens_total": 21,
            "spec_decode_num_drafts_total": 5,
            "spec_decode_num_draft_tokens_total": 15,
            "spec_decode_num_accepted_tokens_total": 15,
            "spec_decode_num_accepted_tokens_per_pos_total": [5, 5, 5],
            "spec_decode_eagle3_num_draft_tokens_total": 15,
            "spec_decode_eagle3_num_accepted_tokens_total": 15,
        }


def test_nothing_divided_by_zero() -> None:
    stats = Stats()
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate, stats.tokens_per_second) == (1.0, 0.0, None)
    assert stats.acceptance_rate_per_position == []
    assert "0 tokens" in repr(stats)


def test_last_token_drafted(perfect_pair: Any) -> None:
    with closing(load(*perfect_pair, draft_n_max=2)) as llm:
        flags = []
        for _ in llm.generate([40, 41, 42], temp=0.0):
            flags.append(llm.last_token_drafted)
            if len(flags) == 7:
                break
        assert flags == [False, True, True, False, True, True, False]
