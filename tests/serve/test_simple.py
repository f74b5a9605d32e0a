"""A server for whose model a small model drafts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving import Running
from small import write_small_pair

BODY = {"n_predict": 30, "temperature": 0.0, "ignore_eos": True}
PROMPTS = ["the self", "returned another", "list of words that go on", "x"]


@pytest.fixture(scope="module", params=["llama", "lfm2"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("small")
    slots: Path = folder / "slots"
    slots.mkdir()
    target, small = write_small_pair(folder, "llama", request.param)
    with Running(target, small, draft="chain", draft_n_max=3, options={"slot_save_path": slots}) as made:
        yield made


def test_requests_together(running: Running) -> None:
    """Each has the text that it has alone and without drafts; drafts are accepted, and counted as what they are."""
    plain = [running.ask("/completion", {**BODY, "prompt": p, "speculative": False})["content"] for p in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda p: running.ask("/completion", {**BODY, "prompt": p}), PROMPTS))
    assert [answer["content"] for answer in answers] == plain
    n_drafted = sum(answer["timings"]["draft_n"] for answer in answers)
    assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 0.15 * n_drafted > 0
    assert answers[0]["generation_settings"]["speculative.types"] == "draft-simple"
    assert answers[0]["metrics"]["speculative_decoding"]["by_source"].keys() == {"simple"}
    assert running.client.get("/props").json()["speculative"]["sources"] == ["simple", "ngram"]
    lines = running.client.get("/metrics").text.splitlines()
    (line,) = (x for x in lines if x.startswith('llamacpp:spec_decode_source_num_draft_tokens_total{source="simple"}'))
    assert int(line.split()[1]) >= n_drafted


def test_saved_slots(running: Running) -> None:
    """The small model goes on where it was."""
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
