"""Drafts from text, alone and beside a head: the output is the target's own, for each way to take tokens back."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from llama_cpp_eagle3._core import NgramStore
from llama_cpp_eagle3.engine.prefill_budget import PrefillBudget
from loading import cheap_rows, is_tie, load, load_plain, take
from recurrent_pairs import KINDS, write_pair

N_TOKENS = 60

pytestmark = pytest.mark.usefixtures("no_clock")


def looping(n: int, seed: int) -> list[list[int]]:
    """Return prompts whose ends occurred before."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(3, 100, 12).tolist() for _ in range(n)]
    return [[*part, *part[:9], *part[3:10]] for part in parts]


@pytest.fixture(scope="module", params=["trim", "snapshots", "checkpoint"])
def pair(request: Any, tmp_path_factory: Any, tiny_target: Any, tiny_head: Any) -> tuple[str, Any, Any]:
    if request.param == "trim":
        return request.param, tiny_target, tiny_head
    arch = next(arch for arch, kind in KINDS.items() if kind == request.param)
    return request.param, *write_pair(tmp_path_factory.mktemp(arch), arch)


@pytest.mark.parametrize("sources", [("ngram",), ("eagle3", "ngram"), None], ids=["text", "both", "no head"])
def test_greedy_text_is_plain(pair: tuple[str, Any, Any], sources: tuple[Any, ...] | None) -> None:
    kind, target, head = pair
    options: dict[str, Any] = {"draft": "auto", "draft_ngram_store": NgramStore()}
    files = (target, head) if sources else (target, None)
    with closing(load_plain(target)) as plain, closing(load(*files, draft_sources=sources, **options)) as llm:
        # without a drafter with weights no pass pays for snapshots
        assert llm.target.rollback_kind == ("checkpoint" if kind == "snapshots" and sources is None else kind)
        cheap_rows(llm)
        texts = looping(3, 1) * 2  # the second time the store has all texts
        expected = [take(plain, text, N_TOKENS) for text in texts]
        found = [take(llm, text, N_TOKENS) for text in texts]
        assert sum(is_tie(plain, *three) for three in zip(texts, expected, found, strict=True)) <= 1
        stats = llm.stats
        assert stats.of("ngram").drafted > stats.of("ngram").accepted > 0
        assert (stats.of("eagle3").drafted > 0) == (sources == ("eagle3", "ngram"))
        assert stats.accepted <= sum(source.accepted for source in stats.by_source.values())


@pytest.mark.parametrize("unified", [True, False])
def test_several_sequences(pair: tuple[str, Any, Any], unified: bool) -> None:
    kind, target, head = pair
    options: dict[str, Any] = {"n_parallel": 3, "kv_unified": unified, "n_ctx": 768}
    texts = looping(5, 2)
    with closing(load_plain(target)) as plain, closing(load(target, head, draft="auto", **options)) as llm:
        cheap_rows(llm)
        expected = [take(plain, text, N_TOKENS) for text in texts]
        results = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0, ignore_eos=True)
        found = [result.tokens[:N_TOKENS] for result in results]  # a character may have been completed
        assert sum(is_tie(plain, *three) for three in zip(texts, expected, found, strict=True)) <= 1
        # a replay of one of several sequences is a pass of its own, which would not pay for these texts
        assert llm.last_stats.of("ngram").drafted > 0 or kind == "checkpoint"


def test_prompts_in_pieces_of_any_size(pair: tuple[str, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside drafts that are taken back, prompts are read in pieces that a stopwatch chooses.

    Of LFM2's windows llama.cpp lost cells, which sequences with a common pool gave up (`LoadPlan.room`).
    """
    _, target, head = pair
    rng = np.random.default_rng(0)
    monkeypatch.setattr(PrefillBudget, "n_rows", property(lambda budget: int(rng.choice([0, 1, 3, 7, 20, 32]))))
    options: dict[str, Any] = {"n_parallel": 3, "kv_unified": True, "n_ctx": 768, "draft": "auto"}
    with closing(load_plain(target)) as plain, closing(load(target, head, **options)) as llm:
        cheap_rows(llm)
        n_ties, texts = 0, looping(5, 2)
        expected = [take(plain, text, N_TOKENS) for text in texts]
        for _ in range(12):
            llm.engine.clear()
            results = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0, ignore_eos=True)
            found = [result.tokens[:N_TOKENS] for result in results]
            n_ties += sum(is_tie(plain, *three) for three in zip(texts, expected, found, strict=True))
        assert n_ties <= 2


def test_without_a_head_nothing_is_measured_unless_it_is_asked_for(tiny_target: Any) -> None:
    with closing(load(tiny_target, None)) as llm:
        take(llm, looping(1, 3)[0], 20)
        assert not llm.policy.is_measured
        assert llm.engine.drafting.ngram is None
        assert llm.draft_sources == ()
    with closing(load(tiny_target, None, draft="auto")) as llm:
        take(llm, looping(1, 3)[0], 20)
        assert llm.policy.is_measured
        assert llm.draft_sources == ("ngram", "grammar")


def test_settings(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        cheap_rows(llm)
        (text,) = looping(1, 4)
        llm.draft_sources = ("eagle3",)
        take(llm, text, 40)
        assert llm.last_stats.by_source.keys() == {"eagle3"}
        llm.draft_sources, llm.draft_ngram_n_max = ("ngram",), 2
        take(llm, text, 40)
        assert llm.last_stats.by_source.keys() == {"ngram"}
        assert len(llm.last_stats.accepted_per_position) <= 2
        llm.draft_sources = ()
        take(llm, text, 40)
        assert llm.last_stats.drafted == 0
    for wrong in ("text", ("tex",)):
        with pytest.raises(ValueError, match="expected draft_sources"):
            load(tiny_target, tiny_head, draft_sources=wrong)
