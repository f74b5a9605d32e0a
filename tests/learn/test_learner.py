"""When a server learns: while nobody waits, in a process that stands still for each request."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.draft.learn import Heads, Learner, learner, rounds, training
from loading import load

_SECONDS = 120.0


def wait(is_so: Callable[[], Any]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Server:
    """A keeper with texts, and a learner whose server is idle or busy as a test says."""

    def __init__(self, keeper: Any):
        self.is_busy, self.keeper, self.swapped = False, keeper, list[int]()
        self.round: Path = keeper.folder.round

    def start(self, share: float = 0.25) -> Learner:
        self.learner = Learner(
            self.keeper, lambda version, gain: self.swapped.append(version), lambda: self.is_busy, 2, share, 0.05
        )
        return self.learner

    def count(self) -> int:
        with suppress(OSError, ValueError):
            return int((self.round / "count").read_text())
        return 0

    def result(self, **more: Any) -> None:
        (self.round / "head.gguf").write_bytes(b"a head")
        told = {
            "state": "used", "why": "", "n_texts": 3, "n_answer": 30, "before": 1.5, "after": 2.0, "error": 0.1,
            "gate": [0], "until": 1,
        }  # fmt: skip
        rounds.write_result(self.keeper.folder, told | more)


@pytest.fixture
def server(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Keep two texts, of which a training may begin; it is a program that only counts."""
    monkeypatch.setattr(training, "MODULE", "stub_training")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1] / "support")]))
    monkeypatch.setattr(training, "check_installed", lambda: None)
    monkeypatch.setattr(learner, "check_installed", lambda: None)
    monkeypatch.setattr(learner, "is_on_battery", lambda: False)
    monkeypatch.setattr(learner, "free_memory", lambda: None)
    monkeypatch.setattr(rounds, "N_ANSWER_MIN", 10)
    monkeypatch.setattr(rounds, "N_CONVERSATIONS_MIN", 2)
    with closing(load(*pair, learn_dir=tmp_path / "kept")) as llm:
        llm.generate_batch([[1, 5], [1, 6]], max_tokens=10, temperature=0, progress=False)
        wait(lambda: len(llm.keeper.texts) == 2)
        yield Server(llm.keeper)


def test_it_stands_still_for_requests(server: Server) -> None:
    """It begins when nobody waits, stops within 50 ms of a request, goes on after it, and ends with the server."""
    with closing(server.start()) as found:
        wait(lambda: server.count() > 3)
        assert found.state == "learns"
        pid = int((server.round / "pid").read_text())
        server.is_busy = True
        start = time.monotonic()
        found.busy()
        assert time.monotonic() - start < 0.05
        n = server.count()
        time.sleep(0.1)
        assert server.count() <= n + 1
        assert found.state == "stands still while there are requests"
        server.is_busy = False
        wait(lambda: server.count() > n + 3)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert Heads(server.keeper.folder).seconds_today > 0


def test_a_head_is_used_or_dropped(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """What the gate lets through drafts; the log says what came of it, and the next start knows it."""
    caplog.set_level(logging.INFO)
    with closing(server.start()):
        wait(server.count)
        server.keeper.folder.heads.rmdir()  # its user threw the heads away
        server.result()
        wait(lambda: server.swapped)
        assert server.swapped == [1]
        heads = server.keeper.heads
        assert (heads.version, heads.current.after) == (1, 2.0)
        assert heads.path(1).read_bytes() == b"a head"
        assert not server.round.exists()
        said = "head 1 drafts from now on: 2.00 tokens a step instead of 1.50 (+-0.10) on 1 texts"
        wait(lambda: said in caplog.text)  # the log has it after the swap
        wait(lambda: "nothing is learned now: of 10 new tokens" in caplog.text)
        # it turns out to be worse than the one before it
        heads.entries[0].live_tokens, heads.entries[0].live_steps = 3000, 1000
        heads.current.live_tokens, heads.current.live_steps = 1999, 900
        time.sleep(0.1)
        assert server.swapped == [1]
        heads.count(1, 0)
        wait(lambda: len(server.swapped) == 2)
    assert server.swapped == [1, 0]
    found = Heads(server.keeper.folder)
    assert found.version == 0
    assert "it gave 2.22 tokens a step in 2000 tokens, head 0 before it 3.00" in found.entries[1].why


def test_a_bad_head_is_dropped(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(server.start()):
        wait(server.count)
        server.result(state="refused", why="it is poisoned", after=1.0)
        wait(lambda: 1 in server.keeper.heads.entries)
    assert server.swapped == []
    assert server.keeper.heads.version == 0
    assert "head 1 is dropped, since it is poisoned" in caplog.text
    assert not list(server.keeper.folder.heads.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("is_on_battery", lambda: True, "the machine runs on its battery"),
        ("free_memory", lambda: 1 << 20, "are free"),
        ("share", 0.0, "0% of the day were spent on it"),
    ],
)
def test_when_it_does_not_begin(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: Any, why: str
) -> None:
    caplog.set_level(logging.INFO)
    if name != "share":
        monkeypatch.setattr(learner, name, value)
    with closing(server.start(*([value] if name == "share" else []))) as found:
        wait(lambda: why in caplog.text)
        time.sleep(0.05)
        assert why in found.state
    assert sum(why in r.getMessage() for r in caplog.records) == 1
    assert not server.round.exists()


def test_the_last_three_heads_are_kept(server: Server) -> None:
    heads = server.keeper.heads
    for version in range(1, 6):
        server.round.mkdir(exist_ok=True)
        server.result()
        heads.take_in(rounds.read_result(server.keeper.folder))
        assert heads.version == version
    assert [version for version in heads.entries if heads.path(version)] == [3, 4, 5]
