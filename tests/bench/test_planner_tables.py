"""The published tables of the planner's mechanisms and constants belong to its current sources."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("planner")


def test_tables_are_of_these_sources(planner: Any) -> None:
    """The tables belong to csrc/policy: `python benchmarks/planner.py --publish`, and again with `--constants`."""
    digest = planner.digest()
    assert json.loads((RESULTS / "planner.json").read_text(encoding="utf-8"))["sources"] == digest
    for name in ("planner.md", "planner_constants.md"):
        assert f"`{digest}`" in (RESULTS / name).read_text(encoding="utf-8"), name


def test_a_changed_source_is_noticed(planner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planner.digest()
    (tmp_path / "policy").mkdir()
    for path in planner.planner_sources():
        (tmp_path / "policy" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(planner, "SOURCES", tmp_path)
    assert planner.digest() == before
    with (tmp_path / "policy" / "source.cpp").open("a") as file:
        file.write("// a comment\n")
    assert planner.digest() == before
    with (tmp_path / "policy" / "source.cpp").open("a") as file:
        file.write("constexpr int changed = 1;\n")
    assert planner.digest() != before


def test_each_constant_has_a_reason_and_a_worth(planner: Any) -> None:
    page = (RESULTS / "planner_constants.md").read_text(encoding="utf-8")
    found = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    assert {row[1].strip().strip("`") for row in found} == set(planner.CONSTANTS)
    for row in found:
        assert all(cell.strip() for cell in row[1:-1]), row
