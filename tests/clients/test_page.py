"""docs/clients.md, versions.txt and the files of checks belong together."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

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
