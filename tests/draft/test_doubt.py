"""Costs that were measured on a busy machine do not switch drafting off for good, and the log names them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import CostCurve
from llama_cpp_eagle3.draft.costs import Costs, DraftCosts, load_costs, timing
from llama_cpp_eagle3.draft.costs.cache import load_part, save_costs
from llama_cpp_eagle3.draft.costs.contention import Contention
from llama_cpp_eagle3.files.fingerprint import digest_lock
from loading import load, take
from planner_sim import TARGETS, Head, Machine, make_policy, run_auto, us
from planner_sim import Costs as RealCosts

GOOD = Costs({1: 1000.0, 2: 1100.0, 4: 1200.0, 8: 1500.0}, (DraftCosts({1: 100.0, 16: 200.0}, {1: 100.0, 8: 150.0}),))
BUSY = Costs({**GOOD.target, 4: 2.4e6}, GOOD.drafts)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def auto(perfect_pair: Any) -> Callable[..., Any]:
    """Return a loader of the pair whose drafts are all accepted."""

    def make(**options: Any) -> Any:
        return closing(load(*perfect_pair, draft="auto", **options))

    return make


def test_what_cannot_be() -> None:
    assert GOOD.doubt == ""
    assert "4 rows of the target took 2400.0 ms, one row 1.0 ms" in BUSY.doubt
    assert BUSY.bounded().target == {**GOOD.target, 4: 2200.0}
    # the machine was busy for a while: eight rows take no longer than four twice, whatever one row took before
    partly = Costs({1: 1600.0, 4: 900.0, 6: 8200.0, 8: 8100.0, 16: 14800.0, 32: 15000.0})
    assert "6 rows of the target took 8.2 ms" in partly.doubt
    assert partly.bounded().target == {1: 1600.0, 4: 900.0, 6: 4100.0, 8: 1800.0, 16: 3600.0, 32: 7200.0}
    # real curves: two rows of Q8_0 take longer than two passes, four of Q4_0 less than two
    for curve in TARGETS.values():
        assert Costs(us(curve)).doubt == ""
    # a disturbed first row makes all others look cheap
    assert "head" in Costs(GOOD.target, (DraftCosts({1: 5000.0, 2: 110.0}, {1: 100.0}),)).doubt


def test_timings_that_cannot_be_are_taken_again() -> None:
    """Impossible timings are taken again: the machine is busy for the first ones of four rows, or all the time."""
    for n_busy, plausible in ((12, True), (10**6, False)):
        times = {1: 0.001, 2: 0.0011, 4: 0.0012}
        calls: list[int] = []

        def run(n: int, n_busy: int = n_busy, calls: list[int] = calls, times: dict[int, float] = times) -> float:
            calls.append(n)
            return 2.4 if n == 4 and calls.count(4) <= n_busy else times[n]

        found = timing._fastest(run, [1, 4, 2], 2, timing.perf_counter() + 60.0)
        assert (found[4] < 2000.0) == plausible
        assert found[1] == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("slow", "factor", "n_calls"),
    [
        (range(0), 1.0, 7),
        (range(3), 1.0, 17),
        (range(10**6), 1.5, 7),  # all the time: that cannot be seen, and does not matter
        (range(1, 10**6), 1.5, 17),  # one row was timed before: drafts would seem too dear
        (range(3, 7), 1.0, 17),
        (range(5, 6), 1.0, 7),
    ],
)
def test_what_was_timed_on_another_clock_is_timed_again(slow: range, factor: float, n_calls: int) -> None:
    """Passes are so long that the time is over after one of each size, and the machine is slower in some calls."""
    calls: list[int] = []

    def run(n: int) -> float:
        calls.append(n)
        return (1.5 if len(calls) - 1 in slow else 1.0) * (0.9 + 0.1 * n)

    times = timing._fastest(run, [1, 4, 8, 2, 3], 5, timing.perf_counter())
    found = timing._again_if_drifted(run, times, timing.Limit())
    assert found == {n: pytest.approx(1e6 * factor * (0.9 + 0.1 * n)) for n in (1, 2, 3, 4, 8)}
    assert len(calls) == n_calls


def test_a_busy_machine_is_told_and_no_doubtful_value_kept(
    auto: Callable[..., Any], cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup.measure", lambda *_: BUSY)
    with auto() as llm, caplog.at_level(logging.DEBUG, "llama_cpp_eagle3"):
        llm.calibrate()
        assert load_costs(llm.loaded.costs_key()) is None
        assert 4 not in load_part(llm.loaded.costs_key()).target
        assert "the machine was busy meanwhile (4 rows of the target took" in caplog.text
        assert llm.policy.costs[0].measured[4] == 2200.0
    # costs that an older version stored are not used
    with auto() as llm:
        key = llm.loaded.costs_key()
        path = save_costs(key, BUSY)
        assert path is not None
        assert load_costs(key) is None


def test_beside_other_programs_it_is_measured_once_more(
    auto: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The least times count: other programs can only make passes slower."""
    first = Costs({1: 1000.0, 2: 1100.0, 4: 2900.0}, (DraftCosts({1: 100.0}, {1: 90.0}),), contention=0.3)
    then = Costs({1: 1050.0, 4: 1200.0, 8: 1500.0}, (DraftCosts({1: 80.0, 16: 200.0}, {1: 95.0}),), contention=0.05)
    left = [first, then]
    monkeypatch.setattr("llama_cpp_eagle3.draft.costs.setup.measure", lambda *_: left.pop(0))
    with auto() as llm, caplog.at_level(logging.DEBUG, "llama_cpp_eagle3"):
        llm.calibrate()
        costs = load_costs(llm.loaded.costs_key())
    assert left == []
    assert "other programs had 30% of the processors' time meanwhile: measuring once more" in caplog.text
    assert costs is not None
    assert costs.target == {1: 1000.0, 2: 1100.0, 4: 1200.0, 8: 1500.0}
    assert costs.drafts == (DraftCosts({1: 80.0, 16: 200.0}, {1: 90.0}),)
    assert (costs.contention, costs.was_busy) == (0.05, False)


def test_no_file_is_digested_while_passes_are_timed(auto: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At a first start a thread digests the model's file: beside it, passes took up to four times as long."""
    free: list[bool] = []

    def learn(*_: object, **__: object) -> None:
        other = threading.Thread(target=lambda: free.append(digest_lock.acquire(blocking=False)))
        other.start()
        other.join()

    monkeypatch.setattr("llama_cpp_eagle3.model.loaded.learn_costs", learn)
    with auto() as llm:
        llm.calibrate()
    assert free
    assert not any(free)


def test_what_other_programs_had(auto: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Costs that were measured beside other programs are kept, and measured again when these take less time."""

    def measured(contention: float, share_now: float) -> float:
        with pytest.MonkeyPatch.context() as patch, auto() as llm, caplog.at_level(logging.DEBUG, "llama_cpp_eagle3"):
            patch.setattr("llama_cpp_eagle3.draft.costs.timing.Contention.share", contention)
            patch.setattr("llama_cpp_eagle3.draft.costs.costs.implausible", lambda curve: [])  # on a busy machine
            patch.setattr("llama_cpp_eagle3.draft.costs.setup.Contention", lambda **_: SimpleNamespace(share=share_now))
            llm.calibrate()
            costs = load_costs(llm.loaded.costs_key())
            assert costs is not None
            return costs.contention

    assert measured(0.4, 0.4) == 0.4
    assert "other programs had 40% of the processors' time meanwhile" in caplog.text
    caplog.clear()
    assert measured(0.3, 0.3) == 0.4  # the machine is as busy as it was
    assert caplog.text == ""
    assert measured(0.05, 0.1) == 0.05
    assert "measuring again what passes cost, since other programs had 40%" in caplog.text
    caplog.clear()
    assert measured(0.0, 0.0) == 0.05
    assert caplog.text == ""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")
def test_contention() -> None:
    """Beside as many programs as processors, a program has about half of the time."""
    cpus = os.sched_getaffinity(0)
    cpu = min(cpus)
    os.sched_setaffinity(0, {cpu})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, {cpu})
        contention, end = Contention(), time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        assert contention.share > 0.25
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cpus)


def test_a_timing_far_below_corrects_at_once() -> None:
    curve = CostCurve(BUSY.target)
    curve.observe(4, 1200.0)
    assert curve.at(4) == pytest.approx(1200.0, rel=1e-3)
    assert curve.corrected == pytest.approx(GOOD.target)
    for _ in range(20):
        curve.observe(4, 5000.0)  # slower passes depend on the machine's present load and do not change stored costs
    assert curve.corrected[1] == 1000.0
    assert curve.at(1) > 1000.0
    curve = CostCurve(GOOD.target)
    curve.observe(1, 100.0)  # if one row is that fast, all are
    assert curve.at(4) == pytest.approx(120.0, rel=1e-3)
    assert curve.corrected == pytest.approx(GOOD.target)


def test_trials_bring_drafting_back() -> None:
    """Trials bring drafting back, however wrong the stored costs are."""
    real = RealCosts(us(TARGETS["Q4_0"]), noise=0.1)
    told = {n: (1.0 if n == 1 else 1000.0) * t for n, t in us(TARGETS["Q4_0"]).items()}
    machine = Machine(real, Head.constant(0.9))
    planner = make_policy(machine, told, n_max=8)
    assert not planner.can_pay()
    run_auto(machine, planner, 300)
    stats = planner.stats()
    assert 1 <= stats["trials"] <= 2
    assert planner.can_pay()
    assert stats["drafted"] > 40
    # trials that find nothing cost next to nothing
    real = RealCosts({n: 1e4 * n * 1.1 for n in range(2, 33)} | {1: 1e4})
    machine = Machine(real, Head.constant(0.9))
    planner = make_policy(machine, real.target, n_max=8)
    speed = run_auto(machine, planner, 20000)
    assert speed > 0.98 * 1e2  # rows that wait for the head cost one percent
    assert planner.stats()["trials"] > 10


def test_corrections_are_kept(auto: Callable[..., Any]) -> None:
    """Corrections of one run are known to the next one."""
    told = Costs({n: 1400.0 * n for n in (1, 2, 4, 8)}, GOOD.drafts)
    assert told.doubt == ""
    with auto() as llm:
        key = llm.loaded.costs_key()
        save_costs(key, told)
        llm.calibrate()
        assert not llm.policy.can_pay()
        llm.policy.costs[0].observe(4, 2000.0)  # as a trial would measure
        assert llm.policy.costs[0].at(8) <= 4000.0  # two such passes
        assert llm.policy.can_pay()
    costs = load_costs(key)
    corrected = {2: pytest.approx(2000.0), 4: pytest.approx(2000.0), 8: pytest.approx(4000.0)}
    assert costs == Costs({**told.target, **corrected}, told.drafts)
    with auto() as llm:
        llm.calibrate()
        assert llm.policy.can_pay()
        llm.policy.costs[0].observe(4, 1800.0)  # too small a change to store
    assert load_costs(key) == costs


@pytest.mark.usefixtures("no_clock")
def test_why_nothing_is_drafted(auto: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    never = Costs({n: 1e3 * n for n in (1, 2, 4, 8)}, (DraftCosts({1: 1e3, 16: 2e4}, {1: 1e3, 8: 8e3}),))
    with auto() as llm:
        save_costs(llm.loaded.costs_key(), never)
        for _ in range(2):
            take(llm, [1, 2, 3], 20)
        stats = llm.last_stats
        assert stats.drafts == 0
        assert re.search(r"a pass over 4 rows takes 4\.0 times as long here", stats.why_not_drafted)
        assert "would not pay" in repr(stats)
        assert stats.as_dict()["why_not_drafted"] == stats.why_not_drafted
        assert caplog.text.count("nothing is drafted: a pass over 4 rows takes") == 1  # once
        llm.draft, llm.draft_n_max = "chain", 0
        take(llm, [1, 2, 3], 20)
        assert "draft_n_max=0" in llm.last_stats.why_not_drafted
        llm.draft_n_max = 2
        take(llm, [1, 2, 3], 20)
        assert llm.last_stats.why_not_drafted == ""


def test_a_head_that_is_always_wrong(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, draft="auto")) as llm:
        save_costs(llm.loaded.costs_key(), GOOD)
        take(llm, [1, 2, 3], 400)
        take(llm, [1, 2, 3], 12)
        reasons = ("have not paid lately", "no draft was expected to pay")
        assert llm.last_stats.drafts > 0 or any(reason in llm.last_stats.why_not_drafted for reason in reasons)


def test_measuring_is_shown_as_such(auto: Callable[..., Any]) -> None:
    with auto() as llm:
        take(llm, [1, 2, 3], 10)
        stats = llm.last_stats
        assert 0.0 < stats.calibrate_seconds < 10.0
        assert stats.total_seconds < stats.calibrate_seconds
        take(llm, [1, 2, 3], 10)
        assert llm.last_stats.calibrate_seconds == 0.0
        assert llm.stats.calibrate_seconds == pytest.approx(stats.calibrate_seconds)


def test_one_key_for_the_command_and_the_class(perfect_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`calibrate` without flags stores the key that `Eagle3Llama` without options looks up."""
    from llama_cpp_eagle3.cli import main

    monkeypatch.setattr("llama_cpp_eagle3.cli.calibrate.measure_types", lambda *_: GOOD)
    target, head = perfect_pair
    assert main(["calibrate", target.path, "-md", head.path]) == 0
    with closing(Eagle3Llama(target.path, head.path, verbose=False)) as llm:
        assert load_costs(llm.loaded.costs_key()) == GOOD
        llm.calibrate()
        assert asdict(GOOD)["target"] == llm.policy.costs[0].measured
    monkeypatch.setattr("llama_cpp_eagle3.cli.calibrate.measure_types", lambda *_: BUSY)
    assert main(["calibrate", target.path, "-md", head.path]) == 1


def test_probabilities_do_not_matter_for_trials(rng: np.random.Generator) -> None:
    """Trials verify three tokens, no more, whatever the head's probabilities are."""
    real = RealCosts({n: 1e4 * n * 1.1 for n in range(2, 33)} | {1: 1e4})
    for p in (0.0, 0.5, 0.99):
        planner = make_policy(Machine(real, Head.constant(p)), real.target, n_max=8)
        run_auto(Machine(real, Head.constant(p)), planner, 200)
        assert set(planner.stats()["draft_tokens"]) <= {0, 3}
