"""Four clients generate, save, restore and erase at once: every text is plain llama_cpp's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slot_traffic import KINDS, ask_around, compare, serve


@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_undisturbed_runs(tmp_path: Path, name: str) -> None:
    with serve(tmp_path, name) as running:
        clients = ask_around(running, tmp_path, seed=3, seconds=30, n_max=4)
        path = running.server.llm.model_path
    answers = [answer for client in clients for answer in client.answers]
    found = compare(path, name, answers, n_spread=3)
    assert found.n_tokens > 40
    assert 0 < found.spread < 0.02
