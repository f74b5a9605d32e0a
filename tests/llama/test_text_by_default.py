"""Without a drafter n-grams draft, at no price for texts that do not repeat themselves, and figures say why not."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from gguf_raw import U32, parse, serialize
from llama_cpp_eagle3 import Eagle3Llama, Stats
from llama_cpp_eagle3.draft.costs import Costs, load_costs, save_costs, timing
from llama_cpp_eagle3.model import loaded
from loading import OPTIONS, cheap_rows, load_plain, path_of, take
from recurrent_pairs import KINDS, write_pair


def open_llama(target: Any, **options: Any) -> Eagle3Llama:
    """Load a target as a user does who changes the import alone."""
    return Eagle3Llama(path_of(target), **OPTIONS | options)


@pytest.mark.parametrize(
    ("options", "sources", "mode"),
    [
        ({}, ("ngram", "grammar"), "auto"),
        ({"draft": "auto"}, ("ngram", "grammar"), "auto"),
        ({"draft_n_max": 4}, ("ngram", "grammar"), "auto"),
        ({"draft_tree_depth": 2}, ("ngram", "grammar"), "auto"),
        ({"draft_target_layers": [1, 2]}, ("ngram", "grammar"), "auto"),
        ({"draft_sources": ()}, (), "auto"),
        ({"draft_n_max": 0}, (), "chain"),
        ({"draft": "chain"}, (), "chain"),
        ({"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=2)}, (), "auto"),
        ({"embedding": True}, (), "auto"),
    ],
)
def test_what_drafts(options: dict[str, Any], sources: tuple[str, ...], mode: str, tiny_target: Any) -> None:
    with open_llama(tiny_target, **options) as llm:
        assert (llm.draft_sources, llm.draft) == (sources, mode)
        assert (llm.engine.drafting.ngram is not None) == bool(sources)


def test_the_vocabulary_alone(tiny_target: Any) -> None:
    with Eagle3Llama(path_of(tiny_target), vocab_only=True, verbose=False) as llm:
        assert llm.draft_sources == ()


def test_targets_that_verify_no_draft(tiny_target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that embeds, as any with a reason against drafts: it is said at load where n-grams were named."""
    raw = parse(Path(tiny_target.path).read_bytes())
    raw.set("llama.pooling_type", U32, 1)
    target = tmp_path / "embeds.gguf"
    target.write_bytes(serialize(raw))
    with open_llama(target) as llm:
        assert llm.draft_sources == ()
        assert llm.engine.drafts().reason.startswith("no drafter can be used: ")
        assert "n-grams do not draft" not in caplog.text
    with open_llama(target, draft_sources=("ngram",)) as llm:
        assert llm.draft_sources == ()
        assert "n-grams do not draft for" in caplog.text


@pytest.mark.usefixtures("no_clock")
def test_the_text_is_plain(perfect_pair: Any) -> None:
    target, _ = perfect_pair
    with closing(load_plain(target)) as plain:
        text = take(plain, [40, 41, 42], 60)
        prompt = [40, 41, 42, *text[:40], *text[:20]]
        expected = take(plain, prompt, 40)
    with open_llama(target) as llm:
        cheap_rows(llm)
        assert take(llm, prompt, 40) == expected
        stats = llm.last_stats
        assert stats.of("ngram").accepted > 0
        assert stats.why_not_drafted == ""


@pytest.mark.parametrize("arch", [next(arch for arch, of in KINDS.items() if of == "snapshots")])
def test_no_snapshots_for_n_grams_alone(arch: str, tmp_path: Path) -> None:
    """Each pass would pay for snapshots; checkpoints cost nothing where nothing is drafted."""
    target, head = write_pair(tmp_path, arch)
    with open_llama(target) as llm:
        assert llm.target.rollback_kind == "checkpoint"
    with open_llama(target, draft_model_path=path_of(head)) as llm:
        assert llm.target.rollback_kind == "snapshots"


# what passes cost


class Clock:
    """Time that passes of the target take, and nothing else."""

    def __init__(self, seconds: float, per_row: float):
        self.now, self._seconds, self._per_row = 0.0, seconds, per_row
        self.rows: list[int] = []

    def __call__(self) -> float:
        return self.now

    def decode(self, tokens: list[int], *_: Any) -> None:
        self.rows.append(len(tokens))
        self.now += self._seconds + self._per_row * (len(tokens) - 1)


@pytest.fixture
def clock(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """Let passes of the target take so long while costs are measured."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    clock = Clock(*request.param)
    monkeypatch.setattr(timing, "perf_counter", clock)
    verify = timing._pass

    def measured(engine: Any) -> Any:
        class Fake:
            target, vocab, n_batch, n_ctx = clock, engine.vocab, engine.n_batch, engine.n_ctx

        return verify(Fake)

    monkeypatch.setattr(timing, "_pass", measured)
    return clock


@pytest.mark.parametrize("clock", [(0.001, 0.0001), (0.033, 0.002), (0.2, 0.05), (2.0, 0.5)], indirect=True)
def test_measuring_is_not_noticed(clock: Clock, tiny_target: Any) -> None:
    """The first generation takes 0.3 s more, or a few passes where one takes longer; what is missing is guessed."""
    one = clock._seconds
    for n in range(3):
        clock.now, n_before = 0.0, len(clock.rows)
        with open_llama(tiny_target) as llm:
            take(llm, [1, 2, 3], 4)
            assert llm.policy.is_measured
            spent, costs = clock.now, load_costs(llm.loaded.costs_key())
            take(llm, [1, 2, 3], 4)
            assert clock.now == spent  # once in a process
        assert spent <= max(0.3 + 2.0 * one, 1.1 * one)
        if n > 0 and one > 0.3:
            assert len(clock.rows) == n_before  # not even one pass
    assert (costs is not None) == (one < 0.3)


def test_costs_of_a_drafter_are_enough(tiny_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of the target for a small model is not measured again for n-grams alone."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    with open_llama(tiny_target) as llm:
        key = llm.loaded.costs_key()
        other = {**key, "drafters": {**key["drafters"], "draft": "a small model"}}
        save_costs(other, Costs({1: 1000.0, 4: 1100.0}, is_whole=False))
        llm.calibrate()
        assert llm.policy.costs[0].measured == {1: 1000.0, 4: 1100.0}


# why nothing was drafted


@pytest.mark.parametrize(
    ("options", "n", "why"),
    [
        ({}, 20, "nothing of the text repeats"),
        ({}, 3, "nothing of the text repeats"),
        ({}, 1, "the only token came with the prompt's pass"),
        ({"draft_sources": ()}, 9, "draft_sources (--spec-type) leaves no drafter"),
        ({"draft_n_max": 0}, 9, "the settings leave none"),
        ({"draft": "chain"}, 9, "the settings leave none"),
    ],
)
def test_why_nothing_is_drafted(
    options: dict[str, Any], n: int, why: str, tiny_target: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with open_llama(tiny_target, **options) as llm:
        caplog.clear()
        take(llm, [1, 2, 3], n, temp=0.0, repeat_penalty=2.0)
        stats = llm.last_stats
        assert stats.drafts == 0
        assert why in stats.why_not_drafted
        assert "nothing is drafted" not in caplog.text  # of most plain texts: that is no news


def test_why_of_each_prompt(tiny_target: Any) -> None:
    with open_llama(tiny_target, n_parallel=2) as llm:
        results = llm.generate_batch([[1, 2, 3], [4, 5, 6]], max_tokens=6, temperature=0.0, repeat_penalty=2.0)
        for stats in (*(result.stats for result in results), llm.last_stats):
            assert stats.drafts == 0
            assert "nothing of the text repeats" in stats.why_not_drafted
    drafted, plain = Stats(drafts=1), Stats(why_not_drafted="none")
    assert (plain + plain).why_not_drafted == "none"
    assert (plain + drafted).why_not_drafted == (drafted + plain).why_not_drafted == ""


def test_why_a_draft_model_drafts_nothing(tiny_target: Any) -> None:
    with open_llama(tiny_target, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2)) as llm:
        take(llm, [1, 2, 3], 4, repeat_penalty=2.0)
        assert llm.last_stats.drafts or "LlamaPromptLookupDecoding" in llm.last_stats.why_not_drafted


def test_why_not_while_the_context_is_in_use(tiny_target: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    with open_llama(tiny_target) as llm:
        llm.eval([1, 2, 3])
        take(llm, [4], 5, reset=False)
        assert "not measured yet" in llm.last_stats.why_not_drafted


def test_sizes_of_other_drafters_are_told(tiny_target: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, loaded.__name__.split(".")[0]):
        open_llama(tiny_target, draft_p_min=0.5, draft_tree_topk=2).close()
    assert "draft_p_min, draft_tree_topk: for a drafter with weights" in caplog.text
