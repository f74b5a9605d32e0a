"""Many clients: the queue, clients that leave, and the state of slots meanwhile."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving import Running

BODY = {"prompt": "the self", "n_predict": 30, "temperature": 0.0}
LONG = {"prompt": "the self", "n_predict": 400, "temperature": 0.0, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(pair: Any) -> Iterator[Running]:
    """Serve with two slots, and room for two waiting requests."""
    with Running(*pair, draft_n_max=2, n_ctx=1024, options={"n_queue_max": 2}) as running:
        yield running


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def n_cancelled(running: Running) -> float:
    families = text_string_to_metric_families(running.client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.labels.get("finished_reason") == "cancelled")


class Slow:
    """Makes every step slow, so that a test can observe it."""

    def __init__(self, running: Running, seconds: float = 0.01):
        self._engine, self._seconds = running.server.engine, seconds

    def __enter__(self) -> None:
        def wait() -> None:
            time.sleep(self._seconds)

        self._before, self._engine.before_step = self._engine.before_step, wait

    def __exit__(self, *args: Any) -> None:
        self._engine.before_step = self._before


class Changing(set[Any]):
    """A set of jobs that changes during iteration."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("Set changed size during iteration")


def test_the_same_text_for_all(running: Running) -> None:
    expected = running.ask("/completion", BODY)["content"]
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda i: running.ask("/completion", BODY)["content"], range(16)))
    assert texts == [expected] * 16


def test_a_full_queue(small: Running) -> None:
    with Slow(small), ThreadPoolExecutor(8) as threads:
        many = list(threads.map(lambda i: small.post("/completion", BODY), range(8)))
    full = [response for response in many if response.status_code == 429]
    assert len(full) >= 2
    assert sum(response.status_code == 200 for response in many) >= 4
    for response in full:
        assert int(response.headers["Retry-After"]) >= 1
        assert response.json()["error"]["type"] == "rate_limit_error"
    assert small.post("/completion", BODY).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_clients_leave(small: Running, stream: bool) -> None:
    """Clients leave while generating, while waiting, and with a stream: all are gone with the next step."""
    jobs = small.server.engine_thread.answers
    n_before = n_cancelled(small)
    with Slow(small, 0.1):  # so that no request is done before its client leaves, even on a busy machine
        sockets: list[socket.socket] = []
        for _ in range(4):
            sockets.append(send(small, {**LONG, "stream": stream}))
        wait_for(lambda: small.server.engine.n_running == small.server.engine.n_waiting == 2)
        sockets.pop().close()  # this one waits
        wait_for(lambda: len(jobs) == 3)
        for opened in sockets:
            opened.close()
        wait_for(lambda: not jobs)
    wait_for(lambda: n_cancelled(small) == n_before + 4)  # no request was done
    assert small.server.engine.n_running == small.server.engine.n_waiting == 0


def send(running: Running, body: dict[str, Any]) -> socket.socket:
    """Send a request without waiting."""
    opened = socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
    data = httpx.Request("POST", running.url + "/completion", json=body).read()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    opened.sendall(head + data)
    return opened


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_closes_its_sending_half(small: Running, stream: bool) -> None:
    """A client that closes its sending half gets its answer; a full close still counts as leaving."""
    jobs, n_before = small.server.engine_thread.answers, n_cancelled(small)
    body = {"prompt": "the self", "n_predict": 8, "temperature": 0.0}
    expected = small.ask("/completion", body)["content"]
    with Slow(small, 0.05), send(small, {**body, "stream": stream}) as opened:
        opened.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: opened.recv(65536), b""))
    head, _, text = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    if stream:
        events = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: ")]
        assert "".join(event["content"] for event in events) == expected
    else:
        assert b"connection: close" in head
        assert json.loads(text)["content"] == expected
    assert n_cancelled(small) == n_before
    with Slow(small, 0.1):
        with send(small, {**LONG, "stream": stream}) as opened:
            wait_for(lambda: len(jobs) == 1)
            opened.shutdown(socket.SHUT_WR)
        wait_for(lambda: not jobs)
    wait_for(lambda: n_cancelled(small) == n_before + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_several_leaves(pair: Any, stream: bool) -> None:
    """All of its sequences end, before they get a slot."""
    with Running(*pair, draft_n_max=2, n_ctx=1024, options={"n_queue_max": 8}) as running:
        engine, jobs = running.server.engine, running.server.engine_thread.answers
        with Slow(running, 0.1):
            others = [send(running, LONG) for _ in range(2)]
            wait_for(lambda: engine.n_running == 2)
            with send(running, {**LONG, "n": 3, "stream": stream}):
                wait_for(lambda: len(jobs) == 5 and engine.n_waiting == 3)
            wait_for(lambda: len(jobs) == 2)
            assert n_cancelled(running) == 3
            for opened in others:
                opened.close()
            wait_for(lambda: not jobs)
        wait_for(lambda: n_cancelled(running) == 5)  # no request was done


def test_slots_say_what_runs(small: Running) -> None:
    """They do not say what a client wrote: any client may ask."""
    body = {**LONG, "stop": ["secret"], "grammar": 'root ::= [^#]* "secret"', "logit_bias": [["a", 1.0]]}
    with Slow(small), small.client.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        slots = httpx.get(small.url + "/slots", trust_env=False).json()
        busy = [slot for slot in slots if slot["is_processing"]]
        assert len(slots) == 2
        assert len(busy) == 1
        assert busy[0]["next_token"][0]["n_decoded"] >= 1
        assert busy[0]["params"]["n_predict"] == LONG["n_predict"]
        assert "secret" not in json.dumps(slots)
        assert small.server.engine.n_running == 1
    wait_for(lambda: not small.server.engine_thread.answers)
    assert not any(slot["is_processing"] for slot in small.client.get("/slots").json())


def test_first_come_first_served(small: Running) -> None:
    order: list[int] = []

    def ask(i: int) -> None:
        small.ask("/completion", {**BODY, "n_predict": 20})
        order.append(i)

    with Slow(small), ThreadPoolExecutor(4) as threads:
        for i in range(4):
            threads.submit(ask, i)
            wait_for(lambda i=i: len(small.server.engine_thread.answers) > i or len(order) > 0)  # type: ignore[misc]
    assert sorted(order[:2]) == [0, 1]


def test_a_failed_pass_is_not_the_end(small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = small.ask("/completion", BODY)["content"]
    failures = iter([RuntimeError("a pass failed")])

    def fail_once() -> None:
        for e in failures:
            raise e

    monkeypatch.setattr(small.server.engine, "before_step", fail_once)
    assert small.ask("/completion", BODY)["content"] == expected


def test_a_model_that_is_gone(pair: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with Running(*pair) as running:

        def fail() -> None:
            raise RuntimeError("the device is gone")

        running.server.engine_thread.answers = Changing()
        monkeypatch.setattr(running.server.engine, "before_step", fail)
        response = running.post("/completion", BODY)
        assert response.status_code == 500
        assert "the device is gone" in response.json()["error"]["message"]
        assert running.client.get("/health").status_code == 503
        assert running.post("/completion", BODY).status_code == 500
    said = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert len(said) == 1
    assert "restart it: the device is gone" in said[0].getMessage()


def test_a_pass_that_hangs(pair: Any) -> None:
    """`stop` of the engine's thread returns False in time while a pass hangs, and True after it."""
    with Running(*pair) as running:
        engine, worker = running.server.engine, running.server.engine_thread
        is_in, may_go_on = threading.Event(), threading.Event()

        def hang() -> None:
            is_in.set()
            may_go_on.wait()

        engine.before_step = hang
        with send(running, BODY):
            assert is_in.wait(120)
            assert not worker.stop(0.01)
            may_go_on.set()
            assert worker.stop()


def test_jobs_that_come_meanwhile(small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with Slow(small), small.client.stream("POST", "/completion", json=LONG) as response:
        lines = response.iter_lines()
        next(lines)
        monkeypatch.setattr(small.server.engine_thread, "answers", Changing(small.server.engine_thread.answers.copy()))
        found = httpx.get(small.url + "/slots", trust_env=False)
        assert [slot["is_processing"] for slot in found.json()].count(True) == 1
    wait_for(lambda: not small.server.engine_thread.answers)
