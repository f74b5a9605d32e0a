"""Measuring costs leaves no trace in the context, and stored costs survive bad files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import pytest

from drafting import draft_chain, plan
from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft import costs
from llama_cpp_eagle3.draft.costs import Costs, DraftCosts, load_costs, timing
from llama_cpp_eagle3.draft.costs import save_costs as save
from llama_cpp_eagle3.draft.costs.cache import costs_path
from llama_cpp_eagle3.draft.costs.contention import Contention
from llama_cpp_eagle3.engine import Engine
from llama_cpp_eagle3.files.cache_dir import cache_dir
from loading import load, path_of, prompts, take
from recurrent_pairs import write_pair

COSTS = Costs({1: 10.0, 4: 12.5}, (DraftCosts({1: 1.0, 16: 2.0}, {1: 0.5}),))


def measure(llm: Eagle3Llama, seconds: float = 2.0) -> Costs:
    return costs.measure(llm.engine, llm.draft_type, seconds)


def costs_of(llm: Eagle3Llama, seconds: float = 2.0) -> Costs:
    return costs.costs_of(llm.loaded, seconds)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder of the test's own."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def llm(tiny_target: Any, tiny_head: Any) -> Iterator[Eagle3Llama]:
    with closing(load(tiny_target, tiny_head)) as llm:
        yield llm


def test_what_is_measured(llm: Eagle3Llama) -> None:
    start = perf_counter()
    costs = measure(llm, 1.0)
    assert perf_counter() - start < 2.0
    assert sorted(costs.target) == [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64]
    (draft,) = costs.drafts
    assert sorted(draft.begin) == [1, 2, 4, 8, 16]
    assert sorted(draft.step) == [1, 2, 4, 8]
    for curve in costs.curves:
        assert all(1.0 < t < 1e6 for t in curve.values())


def test_no_time_at_all(llm: Eagle3Llama) -> None:
    """Two values are needed in any case, the others are left out; and a small batch has no more rows."""
    costs = measure(llm, 0.0)
    assert sorted(costs.target) == [1, 4]
    assert all(costs.curves)


def test_small_batches(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, n_batch=5, n_ubatch=2)) as llm:
        costs = measure(llm, 1.0)
        assert sorted(costs.target) == [1, 2, 3, 4, 5]
        assert max(costs.drafts[0].begin) == 4


@pytest.mark.parametrize("options", [{}, {"logits_all": True}, {"n_parallel": 2}], ids=str)
def test_no_trace(tiny_target: Any, tiny_head: Any, options: dict[str, Any]) -> None:
    (prompt,) = prompts(1)
    logits, drafts, states = [], [], []
    for is_measured in (False, True):
        with closing(load(tiny_target, tiny_head, **options)) as llm:
            if is_measured:
                measure(llm, 0.1)
                assert llm.n_tokens == llm.target.n_past() == llm.drafters[0].n_past() == 0
                with pytest.raises(ValueError, match="at least one token"):
                    llm.sample()
            llm.eval(prompt)
            logits.append(llm.target.logits(len(prompt) - 1))
            drafts.append(draft_chain(llm.drafters[0], 7, 5))
            states.append(llm.save_state().llama_state)
            assert take(llm, prompt, 20)
    np.testing.assert_array_equal(*logits)
    assert drafts[0] == drafts[1]
    assert states[0] == states[1]


@pytest.mark.parametrize("arch", ["qwen35", "mamba2"])
def test_no_trace_in_recurrent_states(arch: str, tmp_path: Path) -> None:
    target, head = write_pair(tmp_path, arch)
    (prompt,) = prompts(1)
    logits, texts = [], []
    for is_measured in (False, True):
        with closing(load(target, head, n_ctx=256)) as llm:
            if is_measured:
                assert measure(llm, 0.1).drafts[0].step
            llm.eval(prompt)
            logits.append(llm.target.logits(len(prompt) - 1))
            texts.append(take(llm, prompt, 30))
    np.testing.assert_array_equal(*logits)
    assert texts[0] == texts[1]


def test_only_an_empty_context(llm: Eagle3Llama) -> None:
    llm.eval([1, 2, 3])
    with pytest.raises(Eagle3Error, match="costs are measured on an empty context, this one holds tokens"):
        measure(llm)
    assert llm.n_tokens == 3


def test_without_a_head(tiny_target: Any) -> None:
    with closing(load(tiny_target)) as llm:
        for seconds in (0.1, 1.0, 3.0):  # doubtful values of a busy machine are measured again
            costs = costs_of(llm, seconds)
            if load_costs(llm.loaded.costs_key()) is not None:
                break
        assert costs.drafts == ()
        assert costs_of(llm) == costs
        llm.engine.drafting.learn(costs.priced())
        assert len(plan(llm.policy, 1, 10)) == 0


def test_measured_once(llm: Eagle3Llama, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.1, 1.0, 3.0):  # values that are measured beside much other load are not stored
        costs = costs_of(llm, seconds)
        if load_costs(llm.loaded.costs_key()) is not None:
            break
    (file,) = cache.rglob("*.json")
    assert file == costs_path(llm.loaded.costs_key())
    monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup.measure", None)
    llm.eval([1, 2, 3])  # nothing is measured, so the context need not be empty
    assert costs_of(llm) == costs
    llm.engine.drafting.learn(costs.priced(), n_max=4)
    assert len(plan(llm.policy, 4, 10)) <= 4


@pytest.mark.parametrize("row_seconds", [0.1, 3.0, 8.0, 40.0])
def test_measuring_ends_at_its_limit(
    row_seconds: float,
    tiny_target: Any,
    tiny_head: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If passes are long, the values measured so far are stored, and later runs measure the others."""
    slept, n_drafts = 0.0, 0
    make_pass, measure_draft = timing._pass, timing.measure_draft

    def slow_pass(engine: Engine) -> tuple[Callable[[int], float], int]:
        verify, n_max = make_pass(engine)

        def slowly(n: int) -> float:
            nonlocal slept
            seconds = row_seconds * (0.9 + 0.1 * n)
            slept += seconds
            return verify(n) + seconds

        return slowly, n_max

    def count(*args: Any) -> Any:
        nonlocal n_drafts
        n_drafts += 1
        return measure_draft(*args)

    monkeypatch.setattr(timing, "_pass", slow_pass)
    monkeypatch.setattr(timing, "measure_draft", count)
    monkeypatch.setattr(timing, "perf_counter", lambda: perf_counter() + slept)
    monkeypatch.setattr(Contention, "share", 0.0)  # beside other programs it measures twice
    n_runs = 0
    while True:
        n_runs += 1
        caplog.clear()
        with closing(load(tiny_target, tiny_head, draft="auto")) as llm, caplog.at_level("DEBUG", "llama_cpp_eagle3"):
            before, start = slept, perf_counter()
            llm.calibrate()
            # after the first pass one value is completed in any case: the draft's costs take two, a target's row one
            assert slept - before + perf_counter() - start < max(21.0, 3 * row_seconds + 2.0)
            assert "about 2 s, up to 20 s if weights are read or shaders compiled" in caplog.text
            costs = load_costs(llm.loaded.costs_key())
            assert llm.policy.is_measured
            assert ("measuring further" in caplog.text) == (n_runs > 1)
        if costs is not None:
            break
        assert "then it goes on" in caplog.text or "the machine was busy" in caplog.text
    assert n_runs <= {0.1: 2, 3.0: 4, 8.0: 6, 40.0: 6}[row_seconds]
    assert {1, 4} <= set(costs.target)
    assert costs.target[4] == pytest.approx(1.3e6 * row_seconds, rel=0.3)
    assert all(costs.curves)


def test_shaders_that_are_compiled_meanwhile(
    tiny_target: Any,
    tiny_head: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first pass of each size is slow: it has a time limit, counts for no cost, and always leaves a planner."""
    slept, row_seconds = 0.0, 0.05
    compiled: set[int] = set()
    make_pass = timing._pass

    def slow_pass(engine: Engine) -> tuple[Callable[[int], float], int]:
        verify, n_max = make_pass(engine)

        def slowly(n: int) -> float:
            nonlocal slept
            seconds = row_seconds * (0.9 + 0.1 * n)
            if n not in compiled:
                seconds += 40.0 if n == 1 else 9.0
                compiled.add(n)
            slept += seconds
            return verify(n) + seconds

        return slowly, n_max

    monkeypatch.setattr(timing, "_pass", slow_pass)
    monkeypatch.setattr(timing, "perf_counter", lambda: perf_counter() + slept)
    caplog.set_level("DEBUG", "llama_cpp_eagle3")
    (prompt,) = prompts(1)
    seen = []
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        while not seen or load_costs(llm.loaded.costs_key()) is None:
            before = slept
            caplog.clear()
            llm.reset()  # nothing is measured while the context holds tokens
            take(llm, prompt, 10)
            seen.append(llm.policy)
            assert llm.policy.is_measured
            assert slept - before < (60.0 if len(seen) == 1 else 30.0)
            assert ("missing costs are estimated" in caplog.text) == (load_costs(llm.loaded.costs_key()) is None)
        assert 2 <= len(seen) <= 6
        costs = load_costs(llm.loaded.costs_key())
        assert costs is not None
        assert all(t < 4e6 * row_seconds * 2 for t in costs.target.values())
        take(llm, prompt, 10)
        assert llm.policy is seen[-1]  # all is measured: this policy stays
        assert llm.policy is not seen[0]
        assert llm.policy.costs[0].measured == costs.target


def test_guesses_are_not_kept(tiny_target: Any, tiny_head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner of guessed costs corrects them by real passes, but does not write them to the cache."""
    part = Costs({1: 1e9}, (DraftCosts({}, {}),), is_whole=False)
    monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup.measure_types", lambda *_: part)
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        take(llm, [1, 2, 3], 20)
        assert llm.policy.is_measured
        target, begin, step = llm.policy.costs
        assert target.measured == {1: 1e9, 4: 1.5e9}
        assert begin.measured == step.measured == {1: 1e8}
        assert min(target.corrected.values()) < 1e8  # as the passes took
        assert llm.last_stats.drafts > 0
        key = llm.loaded.costs_key()
    kept = json.loads(costs_path(key).read_text())
    (pair,) = kept["pairs"]
    assert kept["target"]["curve"] == {"1": 1e9}
    assert (pair["whole"], pair["drafts"]) == (False, [{"begin": {}, "step": {}}])


def test_a_file_that_goes_before_the_model_is_closed(tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(Path(path_of(tiny_target)).read_bytes())
    llm = load(str(target), tiny_head, draft="auto", draft_n_max=None)
    save(llm.loaded.costs_key(), Costs({1: 1000.0, 4: 1200.0}, (DraftCosts({1: 100.0}, {1: 100.0}),)))
    llm.calibrate()
    assert llm.policy.is_measured
    target.unlink()
    llm.close()


def test_what_depth_adds_is_kept(tiny_target: Any, tiny_head: Any) -> None:
    """Passes of a long text show the cost of depth, and the next process begins with it."""
    known = Costs({1: 1000.0, 4: 1200.0, 8: 1500.0}, (DraftCosts({1: 100.0}, {1: 100.0}),))
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        key = llm.loaded.costs_key()
        save(key, known)
        llm.calibrate()
        curve = llm.policy.costs[0]
        assert curve.growth == (0.0, 0.0)
        curve.set_depth(5000)
        for _ in range(30):
            for n, t in known.target.items():
                curve.observe(n, t + 5 * 60.0 * n)
        learned = curve.growth
        assert sum(learned) > 20.0
    kept = load_costs(key)
    assert kept is not None
    assert kept.target == known.target
    assert kept.growths[0] == pytest.approx(learned)
    assert kept.growths[1:] == ((0.0, 0.0), (0.0, 0.0))
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        llm.calibrate()
        assert llm.policy.costs[0].growth == pytest.approx(learned)


def test_costs_of_another_policy_are_not_kept(tiny_target: Any, tiny_head: Any) -> None:
    """Depth is learned with any policy's costs; only measured costs are stored for the next process."""
    known = Costs({1: 1000.0, 4: 1200.0}, (DraftCosts({1: 100.0}, {1: 100.0}),))
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        key = llm.loaded.costs_key()
        save(key, known)
        other = replace(known, target={1: 1e5, 8: 1e5})
        llm.engine.drafting.learn(other.priced())
        curve = llm.policy.costs[0]
        curve.set_depth(5000)
        for _ in range(30):
            curve.observe(1, 2e5)
        assert sum(curve.growth) > 1000.0
    assert load_costs(key) == known
    costs_path(key).unlink()
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        llm.engine.drafting.learn(other.priced())
        llm.policy.costs[0].set_depth(5000)
        llm.policy.costs[0].observe(1, 2e5)
    assert load_costs(key) is None


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"general.architecture": "x", "x.expert_count": "128", "x.expert_used_count": "8"}, (128, 8)),
        ({"general.architecture": "x"}, (0, 0)),
        ({"general.architecture": "x", "x.expert_count": "4", "x.expert_used_count": "4"}, (0, 0)),
        ({"general.architecture": "x", "x.expert_count": "4", "x.expert_used_count": "[2, 2]"}, (0, 0)),
    ],
)
def test_experts_of_a_target(metadata: dict[str, str], found: tuple[int, int]) -> None:
    assert costs.experts_of(metadata) == found


def test_a_mixture_without_measured_rows_is_priced_by_its_experts(llm: Eagle3Llama) -> None:
    part = Costs({1: 100.0}, (DraftCosts({}, {}),), is_whole=False)
    assert sorted(part.guessed().target) == [1, 4]
    assert part.guessed((128, 8)).target == {1: 100.0}
    target, begin, step = part.guessed((128, 8)).priced((128, 8))
    assert target.at(4) == pytest.approx(365.0, rel=0.01)
    assert begin.at(4) == step.at(4) == pytest.approx(40.0)


def test_what_reading_the_weights_takes(llm: Eagle3Llama) -> None:
    """A pass over one row in a short text; one of a mixture reads the experts of one row."""
    drafting, part = llm.engine.drafting, Costs({1: 100.0}, (DraftCosts({}, {}),), is_whole=False)
    drafting.learn(part.guessed().priced(), is_guessed=True)
    assert drafting.reading_ns == 0.0
    drafting.learn(part.guessed().priced())
    assert drafting.reading_ns == pytest.approx(100e3)
    drafting.policy.costs[0].set_depth(10_000)
    assert drafting.reading_ns == pytest.approx(100e3)
    drafting.learn(part.guessed((128, 8)).priced((128, 8)), experts=(128, 8))
    assert drafting.reading_ns == pytest.approx(1600e3)


def test_what_each_source_brought(tiny_target: Any, tiny_head: Any) -> None:
    known = Costs({1: 1000.0, 4: 1200.0, 8: 1500.0}, (DraftCosts({1: 100.0}, {1: 100.0}),))
    with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
        save(llm.loaded.costs_key(), known)
        stats = []
        for _ in range(2):
            take(llm, [1, 2, 3], 200)
            found = llm.engine.drafts().by_source
            assert found.keys() == {"eagle3", "ngram"}
            stats.append(found)
        assert stats[1]["eagle3"].steps >= stats[0]["eagle3"].steps > 0
        assert stats[1]["eagle3"].seconds_saved != 0.0
        now = llm.policy.stats()
        is_unread = now["unread"][0][0] > 0.0  # reading a prompt, which is expensive on a slow clock
        assert bool(stats[1]["eagle3"].reason) == (is_unread or not now["is_open"][0])


def test_what_the_key_tells_apart(tiny_target: Any, tiny_head: Any) -> None:
    keys = []
    for options in (
        {},
        {"n_threads": 2},
        {"n_threads_batch": 2},
        {"n_ubatch": 32},
        {"type_k": 1},
        {"draft_type": 2},
        {"draft_type_k": 1},
        {"draft_target_layers": [0, 1, 3]},
    ):
        with closing(load(tiny_target, tiny_head, **options)) as llm:
            keys.append(json.dumps(llm.loaded.costs_key()))
            assert json.dumps(llm.loaded.costs_key()) == keys[-1]
    with closing(load(tiny_target)) as llm:
        keys.append(json.dumps(llm.loaded.costs_key()))
    assert len(set(keys)) == len(keys)


def test_drafters_share_what_is_known_of_their_target(
    tiny_target: Any, tiny_head: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter's costs are measured beside known costs of the target, and leave those of other drafters."""
    seen: list[Costs | None] = []
    with closing(load(tiny_target, tiny_head)) as llm:
        key = llm.loaded.costs_key()
        growths = ((2.0, 3.0), (0.0, 0.0), (0.0, 1.0))
        save(key, replace(COSTS, contention=0.2, growths=growths))
        other = {**key, "drafters": {**key["drafters"], "draft": "another"}}
        assert load_costs(other) is None

        def measured(*args: Any) -> Costs:
            seen.append(args[4] if len(args) > 4 else None)
            return replace(COSTS, target={1: 900.0, 4: 1000.0, 8: 1100.0}, contention=0.3)

        monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup.measure_types", measured)
        monkeypatch.setattr(Contention, "share", 0.3)
        monkeypatch.setattr(llm.loaded, "costs_key", lambda: other)
        found = costs.costs_of(llm.loaded, log=lambda text: None)
        # and once more, beside other programs: all of it
        assert seen == [replace(COSTS, drafts=(), is_whole=False, contention=0.2, growths=growths[:1]), None]
        assert load_costs(other) == found
        assert found.growths == (growths[0], (0.0, 0.0), (0.0, 0.0))
        both = load_costs(key)
        assert both is not None
        assert (both.target, both.drafts, both.contention) == (found.target, COSTS.drafts, 0.3)
        assert both.growths == growths
        # the target was timed beside other programs, which are gone
        monkeypatch.setattr(Contention, "share", 0.0)
        third = {**key, "drafters": {**key["drafters"], "draft": "a third"}}
        monkeypatch.setattr(llm.loaded, "costs_key", lambda: third)
        costs.costs_of(llm.loaded, log=lambda text: None)
        assert seen[2:] == [None, None]


@pytest.mark.parametrize("room", [{"n_batch": 4, "n_ubatch": 2}, {"n_ctx": 6}], ids=str)
def test_known_times_of_larger_batches_are_kept(tiny_target: Any, room: dict[str, int]) -> None:
    """Where they look wrong they are not measured again: a pass of that size does not fit."""
    known = Costs({1: 1.0, 4: 3e6, 8: 5e9, 16: 1.0, 64: 3.0}, ())
    with closing(load(tiny_target, **room)) as llm:
        llm.reset()
        found = timing.measure(llm.engine, seconds=0.1, known=known).target
    assert {n: found[n] for n in (8, 16, 64)} == {8: 5e9, 16: 1.0, 64: 3.0}


def test_known_times_of_another_clock_are_forgotten(tiny_target: Any) -> None:
    """Known times of the target are kept if passes take about as long now; missing sizes are timed first."""
    with closing(load(tiny_target)) as llm:
        fast = Costs({1: 0.5, 2: 0.6})
        found = timing.measure(llm.engine, seconds=0.01, known=fast).target
        assert min(found.values()) > 1.0
        slow = Costs({1: 1e9, 2: 1e9, 64: 1e9})
        found = timing.measure(llm.engine, seconds=0.0, known=slow).target
        assert sorted(found) == [1, 4]
        assert max(found.values()) < 1e6


def test_what_took_longer_than_more_rows_is_timed_again() -> None:
    calls: list[int] = []

    def run(n: int) -> float:
        calls.append(n)
        return {3: 0.004, 4: 0.002}[n]

    times = {1: 1000.0, 3: 4500.0, 4: 9000.0, 8: 3000.0}
    again = timing._again_if_slower(run, times, timing.Limit())
    assert again == {1: 1000.0, 3: pytest.approx(4000.0), 4: pytest.approx(2000.0), 8: 3000.0}
    assert calls == [4, 3, 3]  # four rows were disturbed, three are the kernels' staircase


KEY: dict[str, Any] = {"target": {"target": "t"}, "drafters": {"draft": "x"}}
TARGET: dict[str, Any] = {"curve": {"1": 1}, "contention": 0.0, "growth": [0.0, 0.0]}
PAIR: dict[str, Any] = {
    "key": KEY["drafters"],
    "drafts": [{"begin": {"1": 1}, "step": {"1": 1}}],
    "draft_type": None,
    "whole": True,
    "contention": 0.0,
    "growths": [],
}
FILE: dict[str, Any] = {"format": 6, "key": KEY["target"], "target": TARGET, "pairs": [PAIR]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": 6}',
        *(
            json.dumps(FILE | change)
            for change in ({"format": 5}, {"key": {"target": "u"}}, {"pairs": []}, {"pairs": None}, {"pairs": [1]})
        ),
        *(
            json.dumps(FILE | {"target": TARGET | change})
            for change in (
                {"curve": {}},
                {"curve": {"0": 1}},
                {"curve": {"1": float("nan")}},
                {"curve": {"1": "a"}},
                {"curve": [1]},
                {"contention": 1.5},
                {"growth": [0.0]},
                {"growth": [0.0, -1.0]},
                {"growth": None},
            )
        ),
        json.dumps(FILE | {"pairs": [{name: value for name, value in PAIR.items() if name != "draft_type"}]}),
        *(
            json.dumps(FILE | {"pairs": [PAIR | change]})
            for change in (
                {"key": {"draft": "y"}},
                {"drafts": []},
                {"drafts": [{"begin": {}, "step": {}}]},
                {"drafts": 2 * [{"begin": {"1": 1}, "step": {"1": 1}}]},
                {"drafts": [1]},
                {"draft_type": 8},
                {"whole": False},
                {"contention": 1.5},
                {"contention": float("nan")},
                {"draft_type": "q4_0"},
                {"growths": [[0.0, 0.0]]},
                {"growths": 3 * [[0.0, 0.0]]},
                {"growths": 2 * [[0.0, -1.0]]},
                {"growths": 2 * [[0.0]]},
                {"growths": 1},
            )
        ),
        "\0\xff",
    ],
)
def test_bad_files_are_ignored_and_replaced(text: str) -> None:
    key = KEY
    costs_path(key).parent.mkdir(parents=True)
    costs_path(key).write_text(json.dumps(FILE))
    assert load_costs(key) == Costs({1: 1.0}, (DraftCosts({1: 1.0}, {1: 1.0}),))
    costs_path(key).write_bytes(text.encode("latin-1"))
    assert load_costs(key) is None
    assert save(key, COSTS) == costs_path(key)
    assert load_costs(key) == COSTS
    assert [path.name for path in costs_path(key).parent.iterdir()] == [costs_path(key).name]


def test_folders_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert load_costs(KEY) is None
    assert save(KEY, COSTS) is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("LLAMA_CPP_EAGLE3_CACHE")
    for platform, name, folder in (
        ("linux", "XDG_CACHE_HOME", tmp_path / "llama-cpp-eagle3"),
        ("win32", "LOCALAPPDATA", tmp_path / "llama-cpp-eagle3"),
        ("darwin", "HOME", tmp_path / "Library" / "Caches" / "llama-cpp-eagle3"),
    ):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setenv(name, str(tmp_path))
        assert cache_dir() == folder


class TestHeadInFewerBits:
    """The head is measured in Q4_0 too, and keeps the type that is expected to be faster."""

    Q4_0 = 2

    @pytest.fixture(autouse=True)
    def small_heads_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup._N_BYTES_MIN", 0)

    @pytest.fixture
    def gain(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """Return a function that makes graphs of the converted head that many times as fast as those of the file's."""

        seen: list[int] = []

        def times(engine: Engine, factor: float) -> DraftCosts:
            drafter: Any = engine.drafters[0]
            seen.append(drafter.n_bytes_own)
            scale = 1.0 if seen[-1] == max(seen) else 1.0 / factor
            return DraftCosts({1: 400.0 * scale}, {1: 400.0 * scale})

        def set_gain(factor: float) -> None:
            for module in ("setup", "timing"):
                monkeypatch.setattr(
                    f"llama_cpp_eagle3.draft.costs.{module}.measure_draft", lambda engine, *_: times(engine, factor)
                )
            monkeypatch.setattr(
                "llama_cpp_eagle3.draft.costs.timing._fastest",
                lambda *_: dict.fromkeys(range(1, 10), 1000.0),  # passes with the same time for every size
            )

        return set_gain

    @pytest.mark.parametrize(("factor", "draft_type"), [(4.0, Q4_0), (1.05, Q4_0), (1.01, None), (0.5, None)])
    def test_what_is_faster_stays(
        self, factor: float, draft_type: int | None, gain: Callable[[float], None], llm: Eagle3Llama
    ) -> None:
        gain(factor)
        costs = costs_of(llm, 0.1)
        assert costs.draft_type == llm.draft_type == draft_type
        # the engine drafts with the head that was loaded last
        assert llm.engine.drafters[0] is llm.drafters[0]
        llm.calibrate()
        assert llm.policy.is_measured
        assert llm.engine.drafters[0] is llm.drafters[0]
        assert costs.drafts[0].step[1] == pytest.approx(400.0 if draft_type is None else 400.0 / factor)

    def test_the_same_text(self, gain: Callable[[float], None], tiny_target: Any, tiny_head: Any) -> None:
        (prompt,) = prompts(1)
        with closing(load(tiny_target)) as llm:
            plain = take(llm, prompt, 40)
        gain(4.0)
        with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
            (as_read,) = cast("list[Any]", llm.drafters)
            n_bytes, as_is = as_read.n_bytes_own, llm.draft_type
            assert take(llm, prompt, 40) == plain
            assert (as_is, llm.draft_type) == (None, self.Q4_0)
            (narrow,) = cast("list[Any]", llm.drafters)
            assert narrow.n_bytes_own < 0.5 * n_bytes
            assert llm.last_stats.drafted > 0

    def test_known_at_the_next_load(self, gain: Callable[[float], None], tiny_target: Any, tiny_head: Any) -> None:
        gain(4.0)
        for known in (False, True):
            with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
                assert llm.draft_type == (self.Q4_0 if known else None)
                llm.calibrate()
                assert llm.draft_type == self.Q4_0
        with closing(load(tiny_target, tiny_head, draft="chain")) as llm:
            assert llm.draft_type is None

    def test_costs_of_another_type_are_not_used(
        self, gain: Callable[[float], None], tiny_target: Any, tiny_head: Any
    ) -> None:
        """Another process may have measured meanwhile; a context that is not empty keeps its head."""
        gain(4.0)
        (prompt,) = prompts(1)
        with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as llm:
            llm.eval(prompt)
            with closing(load(tiny_target, tiny_head, draft="auto", draft_n_max=None)) as other:
                other.calibrate()
            assert len(list(zip(range(5), llm.generate([3], reset=False), strict=False))) == 5
            assert llm.draft_type is None
            assert not llm.policy.is_measured
            assert llm.last_stats.drafted > 0

    @pytest.mark.parametrize("asked", [0, 8, 2], ids=["F32", "Q8_0", "Q4_0"])
    def test_what_was_asked_for_stays(
        self, asked: int, gain: Callable[[float], None], tiny_target: Any, tiny_head: Any
    ) -> None:
        gain(4.0)
        with closing(load(tiny_target, tiny_head, draft_type=asked)) as llm:
            assert costs_of(llm, 0.1).draft_type == llm.draft_type == asked
            assert costs_of(llm, 0.1).draft_type == asked

    def test_for_real(self, llm: Eagle3Llama) -> None:
        costs = costs_of(llm, 0.1)
        assert costs.draft_type == llm.draft_type
        assert costs.draft_type in (None, self.Q4_0)
        assert llm.n_tokens == llm.target.n_past() == 0


class TestCommand:
    """`llama-cpp-eagle3 calibrate` measures and stores costs."""

    @pytest.fixture
    def flags(self, tiny_target: Any) -> list[str]:
        return [path_of(tiny_target), "-t", "1", "-c", "512", "--seconds", "0.1"]

    def test_table(self, flags: list[str], tiny_head: Any, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["calibrate", *flags, "-md", path_of(tiny_head)]) == 0
        lines = capsys.readouterr().out.splitlines()
        for name in ("rows", "target ms", "draft ms", "to accept", "waiting rows ms", "nodes of a level ms"):
            assert name in lines[0]
        assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
        (file,) = cache.rglob("*.json")
        assert lines[-1] == f"kept in {file}"

    def test_json(self, flags: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["calibrate", *flags, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (file,) = cache.rglob("*.json")
        assert found["target"] == json.loads(file.read_text())["target"]["curve"]
        assert found["drafts"] == []

    def test_unwritable(self, flags: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cache.write_text("")
        assert main(["calibrate", *flags]) == 0
        assert "not kept" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["nowhere.gguf"], "nowhere.gguf"),
            (["a.gguf", "-m", "b.gguf"], "give the target once"),
            (["a.gguf", "--seconds", "0"], "--seconds > 0"),
            (["-md", "a.gguf"], "-md needs a target"),
        ],
    )
    def test_errors(self, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["calibrate", *options]) == 2
        assert message in capsys.readouterr().err
