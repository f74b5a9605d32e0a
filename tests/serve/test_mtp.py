"""A server whose model drafts with its own block for multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtp import write_able
from serving import Running

BODY = {"n_predict": 30, "temperature": 0.0, "ignore_eos": True}
PROMPTS = ["the self", "returned another", "list of words that go on", "x"]


@pytest.fixture(scope="module", params=["mimo2-mtp", "qwen35-mtp"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("mtp")
    slots: Path = folder / "slots"
    slots.mkdir()
    path = write_able(folder, request.param)
    with Running(path, draft="chain", draft_n_max=3, options={"slot_save_path": slots}) as made:
        yield made


def test_requests_together(running: Running) -> None:
    """Each has the text that it has alone and without drafts; drafts are accepted, with both slots busy."""
    plain = [running.ask("/completion", {**BODY, "prompt": p, "speculative": False})["content"] for p in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda p: running.ask("/completion", {**BODY, "prompt": p}), PROMPTS))
    assert [answer["content"] for answer in answers] == plain
    n_drafted = sum(answer["timings"]["draft_n"] for answer in answers)
    assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 0.4 * n_drafted > 0
    assert answers[0]["generation_settings"]["speculative.types"] == "draft-mtp"
    assert running.client.get("/props").json()["speculative"]["sources"] == ["mtp", "ngram"]


def test_saved_slots(running: Running) -> None:
    """The block goes on where it was."""
    prompt = list(range(40, 70))
    answer = running.ask("/completion", {**BODY, "prompt": prompt, "id_slot": 1, "return_tokens": True})
    running.ask("/slots/1?action=save", {"filename": "one.bin"})
    running.post("/slots/0?action=erase")
    running.ask("/slots/0?action=restore", {"filename": "one.bin"})
    longer = {**BODY, "prompt": prompt + answer["tokens"]}
    want = running.ask("/completion", {**longer, "id_slot": 1})
    found = running.ask("/completion", {**longer, "id_slot": 0})
    assert found["content"] == want["content"]
    assert found["timings"]["cache_n"] >= 58
    assert found["timings"]["draft_n_accepted"] == want["timings"]["draft_n_accepted"] > 0
