"""docs/clients.md, versions.txt and the files of checks belong together."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
RUN = runpy.run_path(str(FOLDER / "run.py"))


def test_page_is_what_the_last_runs_found() -> None:
    results = json.loads(RUN["RESULTS"].read_text(encoding="utf-8"))
    assert RUN["PAGE"].read_text(encoding="utf-8") == RUN["page"](results)


def test_each_client_is_pinned_and_described() -> None:
    clients = RUN["clients"]()
    assert {client.path for client in clients} == set(FOLDER.glob("programs/*.py"))
    assert set(RUN["PART"]) < {client.name for client in clients}
    for client in clients:
        assert client.docstring.count("\n") >= 3, client.name
        assert all("==" in one or one.startswith("python>=") for one in client.requirements), client.name


def test_what_fails_is_told_in_words(tmp_path: Path) -> None:
    """The page shows figures as a sentence, and other errors by their name."""
    program = tmp_path / "program.py"
    program.write_text(
        "from checks import Counted\n"
        "def it_is_found():\n"
        "    cost = Counted()\n"
        "    cost.n_found, cost.n_prompt, cost.seconds, cost.n = 9.0, 1200.0, 2.5, 2.0\n"
        "    assert cost.n_found > 1000, cost\n"
        "def it_breaks():\n"
        "    {}['x']\n"
        "def it_is_equal():\n"
        "    assert 1 == 2\n"
        "def it_works():\n"
        "    pass\n"
    )
    results = tmp_path / "results"
    command = [sys.executable, str(FOLDER / "checks.py"), str(program)]
    subprocess.run(command, env={**os.environ, "RESULTS": str(results)}, check=True, capture_output=True)
    assert dict(map(json.loads, results.read_text().splitlines())) == {
        "it is found": "9 of 1,200 tokens of prompts were found again, and a first token took 1.25 s",
        "it breaks": "KeyError: 'x'",
        "it is equal": "AssertionError: assert 1 == 2",
        "it works": "",
    }


def test_a_newer_python_is_found_beside_its_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyenv has python3.13-config and python3.13-gdb.py, which is no program, in the same folder."""
    folder = tmp_path / ".pyenv/versions/3.99.0/bin"
    folder.mkdir(parents=True)
    for name in ("python3.99", "python3.99-config", "python3.99-gdb.py"):
        (folder / name).write_text("#!/bin/sh\necho Python 3.99.0\n" if name == "python3.99" else "import gdb\n")
        (folder / name).chmod(0o755 if name == "python3.99" else 0o644)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RUN["newer_python"]("3.99") == str(folder / "python3.99")
