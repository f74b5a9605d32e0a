"""Calls that could end the process, and the interpreter's end itself: each in a process, with its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import process_cases

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def ends(tiny_target: Any, tiny_head: Any) -> dict[str, Any]:
    """Return how each case ended."""
    command = [sys.executable, str(Path(process_cases.__file__)), tiny_target.path, tiny_head.path]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def said(end: dict[str, Any]) -> Any:
    """Return a case's result, once its process has ended in order."""
    assert end["status"] == 0, end["errors"]
    return json.loads(end["out"].splitlines()[0])


def test_every_call_on_a_closed_model(ends: dict[str, Any]) -> None:
    outcomes = said(ends["closed"])
    assert set(outcomes) == set(process_cases.CALLS)
    for name, outcome in outcomes.items():
        assert outcome.startswith("Eagle3Error: this Eagle3Llama is closed"), name
    assert said(ends["with_block"]).startswith("Eagle3Error: this Eagle3Llama is closed")


@pytest.mark.parametrize("case", ["parts_closed", "parts_deleted"])
def test_parts_of_a_model_that_is_gone(ends: dict[str, Any], case: str) -> None:
    """The parts raise, or keep the model alive."""
    outcomes = said(ends[case])
    assert set(outcomes) == set(process_cases.PARTS)
    for name, outcome in outcomes.items():
        keeps_it = case == "parts_deleted" and name in ("generator", "batch")
        assert keeps_it or (outcome.startswith("Eagle3Error: ") and "closed" in outcome), name


def test_rows_outlive_the_model(ends: dict[str, Any]) -> None:
    assert said(ends["tap_deleted"]) == "returned"


@pytest.mark.parametrize("name", process_cases.BAD_OPTIONS)
def test_options_that_cannot_work(ends: dict[str, Any], name: str) -> None:
    """Options that cannot work are refused by name."""
    outcome = said(ends[f"options {name}"])
    assert outcome.startswith(("ValueError: ", "Eagle3Error: ")), outcome
    assert name.split("=")[0].split()[0] in outcome


STATES = [name for name in process_cases.CASES if name.startswith("state ")]


@pytest.mark.parametrize("name", STATES)
def test_states_that_are_none(ends: dict[str, Any], name: str) -> None:
    outcome = said(ends[name])
    assert outcome.startswith(("TypeError: expected what save_state()", "ValueError: ", "survived")), outcome


EXITS = [name for name in process_cases.CASES if name.startswith("exit_")]


@pytest.mark.parametrize("name", EXITS)
def test_the_end_of_the_interpreter(ends: dict[str, Any], name: str) -> None:
    end = ends[name]
    assert said(end) == "left"
    assert "Traceback" not in end["errors"]
    assert "Exception" not in end["errors"]
    if name == "exit_waits":
        assert "thread: 200" in end["out"]
