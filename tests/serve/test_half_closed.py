"""Clients that close their sending half after a request get their answer, unless they leave."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from serving import Running

BODY = {"prompt": "the self returned", "n_predict": 12, "temperature": 0.0}


def send(running: Running, body: dict[str, Any], version: str = "1.1") -> socket.socket:
    """Send a request, and close the sending half."""
    opened = socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])), timeout=120)
    data = httpx.Request("POST", running.url + "/completion", json=body).read()
    opened.sendall(f"POST /completion HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    opened.shutdown(socket.SHUT_WR)
    return opened


def read_all(opened: socket.socket) -> tuple[list[bytes], bytes]:
    """Return the interim responses' first lines, and the bytes that came after them until the server closed."""
    data = b""
    while got := opened.recv(65536):
        data += got
    interim = []
    while data.startswith(b"HTTP/1.1 100 "):
        head, _, data = data.partition(b"\r\n\r\n")
        interim.append(head)
    return interim, data


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_it_gets_its_answer(running: Running) -> None:
    expected = running.ask("/completion", BODY)["content"]
    with send(running, BODY) as opened:
        interim, data = read_all(opened)
    assert interim
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["content"] == expected


def test_it_gets_its_stream(running: Running) -> None:
    expected = running.ask("/completion", BODY)["content"]
    with send(running, {**BODY, "stream": True}) as opened:
        data = read_all(opened)[1]
    lines = [line for line in data.splitlines() if line.startswith(b"data: {")]
    assert "".join(json.loads(line[6:])["content"] for line in lines) == expected


@pytest.mark.parametrize("stream", [True, False])
def test_it_leaves(running: Running, stream: bool) -> None:
    """Only writing distinguishes leaving from waiting."""
    jobs = running.server.engine_thread.answers
    body = {**BODY, "n_predict": -1, "ignore_eos": True, "stream": stream, "prompt": "a"}
    step = running.server.engine.step

    def slow() -> Any:
        time.sleep(0.05)
        return step()

    running.server.engine.step = slow  # type: ignore[method-assign]
    try:
        opened = send(running, body)
        wait_for(lambda: len(jobs) == 1)
        time.sleep(0.3)
        assert len(jobs) == 1
        opened.close()
        wait_for(lambda: not jobs, 8.0)  # it would take 25 s
    finally:
        running.server.engine.step = step  # type: ignore[method-assign]


def test_half_a_request(running: Running) -> None:
    """Half a request is not waited for."""
    with socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])), timeout=120) as opened:
        opened.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        opened.shutdown(socket.SHUT_WR)
        assert opened.recv(100) == b""


def test_http_1_0(running: Running) -> None:
    """HTTP/1.0 has no interim responses: such a client counts as gone, as before."""
    with send(running, BODY, "1.0") as opened:
        assert opened.recv(100) == b""
    wait_for(lambda: not running.server.engine_thread.answers)
