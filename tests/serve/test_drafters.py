"""A server whose model drafts with its own blocks, an assistant, a small model, or a block drafter."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import assistants
import dflash
import mtp
from joint import write_both
from serving import Running
from small import write_small_pair

BODY = {"n_predict": 30, "temperature": 0.0, "ignore_eos": True}
PROMPTS = ["the self", "returned another", "list of words that go on", "x"]


@dataclass(frozen=True)
class Kind:
    """A drafter, its target, and the least part of its drafts that is accepted."""

    source: str
    row: str
    rate: float
    beside: tuple[str, ...] = ()
    """A further drafter, which fixed settings do not ask."""


KINDS = {
    "mtp": Kind("mtp", "mimo2-mtp", 0.4),
    "mtp-hybrid": Kind("mtp", "qwen35-mtp", 0.4),
    "mtp-chained": Kind("mtp", "mimo2-mtp3", 0.1),
    "mtp-head": Kind("mtp", "mimo2-mtp", 0.4, ("eagle3",)),
    "assistant": Kind("assistant", "gemma4", 0.4),
    "simple": Kind("simple", "llama", 0.15),
    "simple-conv": Kind("simple", "lfm2", 0.15),
    "dflash": Kind("dflash", "llama", 0.15),
    "dflash-hybrid": Kind("dflash", "qwen35", 0.15),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def running(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("drafters")
    slots: Path = folder / "slots"
    slots.mkdir()
    files: list[str | Path]
    if kind.beside:
        files = [*write_both(folder, kind.row)]
    elif kind.source == "mtp":
        files = [mtp.write_able(folder, kind.row)]
    elif kind.source == "assistant":
        files = [*assistants.write_able(folder, kind.row)]
    elif kind.source == "simple":
        files = [*write_small_pair(folder, "llama", kind.row)]
    else:
        able = dflash.write_able(folder, kind.row)
        files = [able.target, able.drafter]
    sources = [kind.source, *kind.beside, "ngram"]
    with Running(
        *files, draft="chain", draft_n_max=3, draft_sources=sources, options={"slot_save_path": slots}
    ) as made:
        yield made


def test_requests_together(running: Running, kind: Kind) -> None:
    """Each request has the text that it has alone and without drafts; drafts are accepted, and counted by drafter."""
    plain = [running.ask("/completion", {**BODY, "prompt": p, "speculative": False})["content"] for p in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda p: running.ask("/completion", {**BODY, "prompt": p}), PROMPTS))
    assert [answer["content"] for answer in answers] == plain
    n_drafted = sum(answer["timings"]["draft_n"] for answer in answers)
    assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > kind.rate * n_drafted > 0
    llama_cpp_name = "mtp" if kind.source == "assistant" else kind.source
    assert answers[0]["generation_settings"]["speculative.types"] == f"draft-{llama_cpp_name}"
    assert answers[0]["metrics"]["speculative_decoding"]["by_source"].keys() == {kind.source}
    assert running.client.get("/props").json()["speculative"]["sources"] == [kind.source, *kind.beside, "ngram"]
    lines = running.client.get("/metrics").text.splitlines()
    name = f'llamacpp:spec_decode_source_num_draft_tokens_total{{source="{kind.source}"}}'
    (line,) = (x for x in lines if x.startswith(name))
    assert int(line.split()[1]) >= n_drafted


def test_settings_of_a_request(running: Running, kind: Kind) -> None:
    """A request may draft less, or nothing."""
    for n_max in (1, 2):
        answer = running.ask("/completion", {**BODY, "prompt": PROMPTS[0], "speculative": {"n_max": n_max}})
        assert 0 < answer["timings"]["draft_n"] <= n_max * (answer["timings"]["predicted_n"] - 1)
        assert answer["generation_settings"]["speculative.n_max"] == n_max
    answer = running.ask("/completion", {**BODY, "prompt": PROMPTS[0], "speculative.n_max": 0})
    assert answer["timings"].get("draft_n", 0) == 0


def test_saved_slots(running: Running) -> None:
    """The drafter continues from its saved state."""
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
