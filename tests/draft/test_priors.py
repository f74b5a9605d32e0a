"""What is known of a drafter outlives the process: the next one drafts from its first answer on, or leaves it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import loading
from joint import write_head_of
from llama_cpp_eagle3._core import CostCurve, Policy
from llama_cpp_eagle3.draft.costs.priors import keep_priors, load_priors, prior_of_family, priors_path
from loading import cheap_rows, load, path_of, prompts, take
from planner_sim import Costs, Head, Machine, run_auto, run_plain, us
from small import write_small_pair

TARGET = us({1: 35.0, 2: 36.0, 4: 41.0, 8: 65.0, 16: 120.0})
BEGIN, STEP = us({1: 9.0, 4: 12.0, 16: 24.0}), us({1: 9.0, 2: 11.0, 4: 14.0})
"""Qwen2.5-Coder-1.5B in Q4_K_M with the 0.5B in Q4_0, two threads."""
SIBLING, USELESS = Head.constant(0.85), Head(lambda *_: 0.8, lambda *_: 0.0, 0.0)
N_PROMPT, N_TOKENS = 60, 160


class SmallModel(Machine):
    """Reads a prompt when it is asked, and never before."""

    n_wait_max = 10**9
    read_us = 1200.0


def policy(machine: Machine, priors: list[dict[str, Any] | None] = []) -> Policy:  # noqa: B006
    curves = [CostCurve(curve) for curve in (TARGET, BEGIN, STEP)]
    return Policy((machine,), curves, n_max=8, priors=priors)


def answers(
    head: Head, n: int, priors: list[dict[str, Any] | None] | None = None, n_prompt: int = N_PROMPT
) -> tuple[list[float], list[dict[str, Any] | None]]:
    """Return the tokens per second of a process's answers, prompts included, and what it knows at its end."""
    machine = SmallModel(Costs(TARGET, BEGIN, STEP), head)
    planner, found = policy(machine, priors or []), []
    for _ in range(n):
        planner.reset()
        machine.waiting = [n_prompt]
        start = machine.t
        run_auto(machine, planner, N_TOKENS, text=10**9)
        found.append(1e6 * N_TOKENS / (machine.t - start))
    return found, planner.priors()


def test_a_known_sibling_drafts_in_the_first_answer() -> None:
    """The first 160 tokens of a process that knows the pair have 0.95 of the tenth answer's speed."""
    tenth, known = answers(SIBLING, 10)
    first, _ = answers(SIBLING, 1, known)
    assert first[0] > 0.95 * tenth[-1]


def test_an_unknown_sibling_is_found_by_the_third_answer() -> None:
    tenth, _ = answers(SIBLING, 10)
    assert tenth[2] > 0.9 * tenth[-1]


def test_a_sibling_may_fail_at_first() -> None:
    """The first tokens of an answer are the least certain ones: a small model of the target's family drafts on."""
    hesitant = Head(lambda *_: 0.8, lambda _, __, n_tokens: 0.0 if n_tokens < 8 else 0.8, 0.0)
    plain, family = run_plain(Costs(TARGET), 10), prior_of_family(1)
    for n_prompt in (20, N_PROMPT, 150):
        assert answers(hesitant, 1, [family], n_prompt)[0][0] > 1.15 * plain
    assert max(answers(hesitant, 3, None)[0]) < 1.02 * plain  # of an unknown drafter two drafts are made


@pytest.mark.parametrize("n_prompt", [1, 40, N_PROMPT, 150, 300])
def test_a_useless_model_of_the_family_costs_once(n_prompt: int) -> None:
    plain = run_plain(Costs(TARGET), 10)
    speeds, _ = answers(USELESS, 8, [prior_of_family(1)], n_prompt)
    assert speeds[0] > 0.92 * plain
    assert len(speeds[1:]) / sum(1.0 / speed for speed in speeds[1:]) > 0.98 * plain


def test_one_answer_is_enough_to_know_it() -> None:
    """A command that answers once gains as much as a server."""
    tenth, _ = answers(SIBLING, 10)
    _, known = answers(SIBLING, 1)
    for _ in range(3):
        speeds, known = answers(SIBLING, 1, known)
    assert speeds[0] > 0.95 * tenth[-1]


@pytest.mark.parametrize("n_prompt", [1, 40, N_PROMPT, 300])
def test_a_useless_one_costs_little(n_prompt: int) -> None:
    """At most 3 % of the first 160 tokens, and 1 % of later ones, in this process and in the next ones."""
    plain = run_plain(Costs(TARGET), 10)
    speeds, known = answers(USELESS, 8, n_prompt=n_prompt)
    assert speeds[0] > 0.97 * plain - 0.3  # what is promised, and a probe that was begun
    for _ in range(16):
        of_one, known = answers(USELESS, 1, known, n_prompt=n_prompt)
        speeds += of_one
    later = speeds[1:]
    assert len(later) / sum(1.0 / speed for speed in later) > 0.985 * plain


def test_a_drafter_that_was_useless_is_found_when_it_becomes_good() -> None:
    _, known = answers(USELESS, 4, n_prompt=1)
    speeds, _ = answers(SIBLING, 12, known, n_prompt=1)
    assert speeds[-1] > 1.3 * run_plain(Costs(TARGET), 10)


def test_nothing_is_known_of_a_drafter_that_was_never_asked() -> None:
    machine = SmallModel(Costs(TARGET, BEGIN, STEP), SIBLING)
    assert policy(machine).priors() == [None]
    assert policy(machine, [None]).priors() == [None]


def test_it_survives_json() -> None:
    _, known = answers(SIBLING, 2)
    machine = SmallModel(Costs(TARGET, BEGIN, STEP), SIBLING)
    again = policy(machine, json.loads(json.dumps(known))).priors()
    assert again[0] is not None
    assert known[0] is not None
    for name in ("log_p", "row", "worth", "saved"):
        assert again[0][name] == pytest.approx(known[0][name], rel=1e-5), name
    assert [mean for mean, _ in again[0]["accepted"]] == pytest.approx([mean for mean, _ in known[0]["accepted"]])


@pytest.mark.parametrize(
    "damage",
    [
        {"log_p": float("nan")},
        {"log_p": 0.5},
        {"row": -1.0},
        {"saved": float("inf")},
        {"for_drafts": [float("nan")]},
        {"accepted": []},
        {"accepted": [[0.0, 1.0]] * 19},
        {"accepted": 3},
        {"worth": "much"},
        {"worth": None},
    ],
    ids=str,
)
def test_numbers_that_cannot_be(damage: dict[str, Any]) -> None:
    _, known = answers(SIBLING, 1)
    machine = SmallModel(Costs(TARGET, BEGIN, STEP), SIBLING)
    with pytest.raises(ValueError, match="prior"):
        policy(machine, [{**(known[0] or {}), **damage}])
    with pytest.raises(ValueError, match="prior"):
        policy(machine, [{}])


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def generate(pair: tuple[Any, Any]) -> list[int]:
    with closing(load(*pair, draft="auto")) as llm:
        cheap_rows(llm)  # so that the head is asked, whatever this machine's costs are
        return take(llm, prompts(1)[0], 40)


_SCRIPT = """
import json, sys
from loading import cheap_rows, load, path_of, prompts, take

llm = load(*json.loads(sys.argv[1]), draft="auto")
cheap_rows(llm)
take(llm, prompts(1)[0], 40)
"""


def test_a_script_need_not_close(own_cache: Path, perfect_pair: tuple[Any, Any]) -> None:
    """README's first lines close nothing: what was learned is kept when the interpreter ends."""
    pair = json.dumps([str(path_of(model)) for model in perfect_pair])
    env = {**os.environ, "PYTHONPATH": str(Path(loading.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", _SCRIPT, pair], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    (path,) = (own_cache / "priors").iterdir()
    assert json.loads(path.read_text())["priors"][0]["worth"] > 0.0


def test_the_next_process_has_it(own_cache: Path, perfect_pair: tuple[Any, Any]) -> None:
    """A loaded pair keeps what it knows when it is closed; damaged files are as none."""
    expected = generate(perfect_pair)
    (path,) = (own_cache / "priors").iterdir()
    document = json.loads(path.read_text())
    assert document["priors"][0]["worth"] > 0.0
    with closing(load(*perfect_pair, draft="auto")) as llm:
        key = llm.loaded.costs_key()
        assert priors_path(key) == path
        assert load_priors(key) == document["priors"]
        llm.calibrate(0.1)
        known = llm.policy.priors()[0]
        assert known is not None
        assert known["log_p"] == pytest.approx(document["priors"][0]["log_p"])
    for text in (
        "",
        "{",
        "[]",
        json.dumps({**document, "key": {}}),
        json.dumps({**document, "priors": [{"log_p": 7}]}),
    ):
        path.write_text(text)
        assert generate(perfect_pair) == expected


def test_a_model_of_the_family_is_expected_to_draft_well(own_cache: Path, tmp_path: Path) -> None:
    """Of a head nothing is expected, nor of a small model of which a file tells something."""
    target, small = write_small_pair(tmp_path)
    head = write_head_of(target, tmp_path / "head.gguf")
    with closing(load(target, draft_model_path=[head, small], draft="auto")) as llm:
        assert llm.loaded.expected_priors() == [None, prior_of_family(1)]
        llm.calibrate(0.1)
        unknown, expected = llm.policy.priors()
        assert unknown is None
        assert expected is not None
        assert (expected["for_drafts"], expected["saved"]) == ([8.0, 8.0], pytest.approx(3.0))
        keep_priors(llm.policy, key := llm.loaded.costs_key())
    path = priors_path(key)
    document = json.loads(path.read_text())
    document["priors"][1] |= {"saved": -2.0, "for_drafts": [0.5, 0.5]}
    path.write_text(json.dumps(document))
    with closing(load(target, draft_model_path=[head, small], draft="auto")) as llm:
        llm.calibrate(0.1)
        assert llm.policy.priors()[1]["for_drafts"] == [0.5, 0.5]
