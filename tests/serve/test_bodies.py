"""Bodies of requests: parsed beside the event loop, with one limit for all; and the limit of connections."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from llama_cpp_eagle3.serve import http
from llama_cpp_eagle3.serve.log_lines import ACCESS
from serving import Running

BODY = {"prompt": "the self returned", "n_predict": 24, "temperature": 0.0}


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Held:
    """`parse_json`, which waits until it may continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_calls, self.go_on, self._parse = 0, threading.Event(), http.parse_json
        monkeypatch.setattr(http, "parse_json", self)

    def __call__(self, text: bytes) -> Any:
        self.n_calls += 1
        assert self.go_on.wait(60)
        return self._parse(text)


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])), timeout=120)


def send(opened: socket.socket, path: str, body: Any, n_left_out: int = 0) -> None:
    """Send a request without the last bytes of its body."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    opened.sendall(head.encode() + data[: len(data) - n_left_out])


def test_large_bodies_do_not_stop_a_stream(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are parsed, another client's stream continues, to its end."""
    expected = running.ask("/completion", BODY)["content"]
    large = json.dumps({"prompt": ["a"] * 100_000}).encode() + b" " * (4 << 20)
    with (
        ThreadPoolExecutor(4) as threads,
        running.client.stream("POST", "/completion", json={**BODY, "stream": True}) as stream,
    ):
        lines = stream.iter_lines()
        text = json.loads(next(lines)[6:])["content"]
        with monkeypatch.context() as patch:
            held = Held(patch)
            answers = [threads.submit(httpx.post, f"{running.url}/completion", content=large) for _ in range(4)]
            wait_for(lambda: held.n_calls == 2)
            text += "".join(json.loads(line[6:])["content"] for line in lines if line)
            assert not any(answer.done() for answer in answers)
            held.go_on.set()
            statuses = [answer.result().status_code for answer in answers]
    assert text == expected
    assert statuses == [400] * 4
    assert not running.server.queue.n_bytes


@pytest.fixture(scope="module")
def small(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve with little room for bodies."""
    options = {"n_body_max": 100_000, "slot_save_path": tmp_path_factory.mktemp("slots")}
    with Running(*pair, options=options, n_connections=8) as running:
        yield running


def test_bodies_are_bounded_together(small: Running) -> None:
    bodies = small.server.queue
    assert bodies.n_bytes_max == 400_000
    large = {**BODY, "prompt": "a", "user": "x" * 90_000}
    opened = [connect(small) for _ in range(4)]
    for one in opened:
        send(one, "/completion", large, n_left_out=1)
    wait_for(lambda: bodies.n_bytes > 360_000)
    for path in ("/completion", "/tokenize", "/v1/messages", "/slots/0?action=erase"):
        response = small.post(path, large)
        assert response.status_code == 503
        assert "bodies of other requests" in response.json()["error"]["message"]
        assert response.headers["retry-after"] == "1"
    assert small.ask("/completion", BODY)["content"]  # small ones are accepted
    opened.pop().close()
    wait_for(lambda: bodies.n_bytes < 310_000)
    assert small.post("/completion", large).status_code == 200
    for one in opened:
        one.sendall(b"}")
        assert one.recv(12) == b"HTTP/1.1 200"
        one.close()
    wait_for(lambda: not bodies.n_bytes)


def test_a_body_counts_until_it_is_prepared_and_no_longer(small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = small.server.queue
    large = {**BODY, "user": "x" * 90_000, "stream": True}
    with monkeypatch.context() as patch, connect(small) as opened:
        held = Held(patch)
        send(opened, "/completion", large)
        wait_for(lambda: held.n_calls == 1)
        assert bodies.n_bytes > 90_000
        held.go_on.set()
        assert opened.recv(12) == b"HTTP/1.1 200"
        assert not bodies.n_bytes


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_body_is_freed_once_it_is_prepared(path: str, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body is not kept with the request, which may stream for long."""
    step = running.server.engine.step
    monkeypatch.setattr(running.server.engine, "step", lambda: time.sleep(0.05) or step())
    body = {"prompt": "the self", "input": "the self", "messages": [{"role": "user", "content": "the self"}]}
    data = json.dumps({**body, "max_tokens": 300, "n_predict": 300, "ignore_eos": True, "stream": True})
    data = data[:-1] + ', "user": "' + "x" * (8 << 20) + '"}'
    with connect(running) as opened:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        tracemalloc.start()
        try:
            opened.sendall(head.encode() + data.encode())
            assert opened.recv(12) == b"HTTP/1.1 200"
            assert running.server.engine_thread.answers  # the request streams
            wait_for(lambda: tracemalloc.get_traced_memory()[0] < 4 << 20, 10.0)
            assert running.server.engine_thread.answers
        finally:
            tracemalloc.stop()


def test_connections_are_bounded(small: Running) -> None:
    small.client.close()
    small.client = httpx.Client(base_url=small.url, timeout=120, trust_env=False)
    assert small.ask("/completion", BODY)["content"]
    opened = [connect(small) for _ in range(7)]
    with connect(small) as refused:
        answer = b""
        while data := refused.recv(1000):
            answer += data
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"--limit-concurrency)")
    head, _, text = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(text)}".encode() in head
    assert small.ask("/completion", BODY)["content"]  # connected clients are served
    for one in opened:
        one.close()

    def is_answered() -> bool:
        return httpx.get(f"{small.url}/health").status_code == 200

    wait_for(is_answered)


@pytest.mark.parametrize(
    "path",
    [
        *("/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens"),
        *(
            "/v1/responses/input_tokens",
            "/v1/messages/count_tokens",
            "/completion",
            "/v1/messages",
            "/slots/0?action=save",
        ),
    ],
)
def test_who_leaves_is_noticed(
    path: str, running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On each endpoint, a client that leaves is noticed while its request is prepared."""
    caplog.set_level(logging.INFO, logger=ACCESS.name)
    with monkeypatch.context() as patch:
        held = Held(patch)
        with connect(running) as opened:
            send(opened, path, {"content": "a"})
            wait_for(lambda: held.n_calls == 1)

        def answers() -> list[tuple[str, int]]:  # the last request of another test may be logged here
            records = [record for record in caplog.records if record.name == ACCESS.name]
            return [(record.fields["path"], record.fields["status"]) for record in records]  # type: ignore[attr-defined]

        wait_for(lambda: (path.partition("?")[0], 499) in answers())
        assert not running.server.queue.n_waiting
        held.go_on.set()
    assert running.ask("/tokenize", {"content": "a"})["tokens"]
