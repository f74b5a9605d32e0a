"""No request holds the others: a server that strangers keep busy still answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

import hostile
from vlm_pairs import load_vlm

SECONDS = 0.5
ASK = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Watch:
    """Asks a server how it is, ten times a second, and keeps the longest time that an answer took."""

    path: str
    pid: int
    worst: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()

    def _cpu(self) -> float:
        """Seconds that all threads of the server have computed: what is less than the clock's is another program's."""
        words = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            while not self.is_over.wait(0.1):
                wall, cpu = time.monotonic(), self._cpu()
                connection.sendall(ASK)
                data = b""
                while not data.endswith(b'{"status":"ok"}'):
                    part = connection.recv(4096)
                    assert part, data
                    data += part
                self.worst = max(self.worst, min(time.monotonic() - wall, self._cpu() - cpu))


@contextmanager
def served(*flags: Any) -> Iterator[tuple[str, int]]:
    """Serve in a process of its own; returns its socket and the process's id."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = f"{folder}/x.sock"
        command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", *flags, "-np", "2", "-t", "1", "--host", path]
        env = {**os.environ, "LLAMA_CPP_EAGLE3_CACHE": f"{folder}/cache"}
        with open(f"{folder}/log", "w+", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            try:
                while not os.path.exists(path):
                    assert process.poll() is None, log.read()
                    time.sleep(0.02)
                assert send(path, hostile.Body("/completion", bytes), b'{"prompt":"a","n_predict":2}') == 200
                yield path, process.pid
            finally:
                process.terminate()
                assert process.wait(120) == 0


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """Serve a model that sees pictures."""
    vlm = load_vlm("qwen25vl")
    with served("-m", vlm.path, "--mmproj", vlm.mmproj, "-c", "8192") as started:
        yield started


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, tiny_target: Any) -> Iterator[tuple[str, int]]:
    """Serve a model with a chat template that is slow where a message says so."""
    template = tmp_path_factory.mktemp("slow") / "slow.jinja"
    template.write_text(hostile.slow_template(), encoding="utf-8")
    with served("-m", tiny_target.path, "--chat-template-file", template) as started:
        yield started


def send(path: str, body: hostile.Body, data: bytes) -> int:
    transport = httpx.HTTPTransport(uds=path)
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=60.0) as client:
        return client.post(body.path, content=data, headers=body.headers).status_code


def held(server: tuple[str, int], body: hostile.Body) -> tuple[float, int]:
    """Send a request; returns how long it held the server, and its status."""
    path, pid = server
    data = body.make()
    with Watch(path, pid) as watch:
        status = send(path, body, data)
    return watch.worst, status


BODIES: dict[str, Any] = hostile.bodies(load_vlm("qwen25vl").file)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", BODIES)
def test_a_busy_server_answers(name: str, server: tuple[str, int]) -> None:
    """What other programs take is not counted; and what is held by chance is not held three times."""
    for _ in range(3):
        seconds, status = held(server, BODIES[name])
        print(f"{name}: {seconds:.2f} s, {status}")
        assert status in (200, 400, 413, 415), status
        if seconds <= SECONDS:
            return
    pytest.fail(f"the server did not answer for {seconds:.2f} s")


def peak_memory(pid: int) -> int:
    """MiB that a process had at most."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", hostile.SLOW)
def test_a_slow_template_holds_nobody(name: str, slow: tuple[str, int]) -> None:
    """Its request is refused with its name, within half a minute and a gigabyte, and others do not notice."""
    path, pid = slow
    before = peak_memory(pid)
    start = time.monotonic()
    with Watch(path, pid) as watch:
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=200.0) as client:
            message = {"role": "user", "content": name}
            response = client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 2})
    print(f"{name}: {time.monotonic() - start:.1f} s, {watch.worst:.2f} s, {peak_memory(pid) - before} MiB")
    assert response.status_code == 400, response.text
    assert watch.worst <= SECONDS
    assert peak_memory(pid) - before < 1024
    error = response.json()["error"]["message"]
    assert "chat template that was given" in error or "context" in error, error
