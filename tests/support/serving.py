"""A server in a thread, on a port of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import httpx
import uvicorn

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.config.serve_options import ServeOptions
from llama_cpp_eagle3.serve.app import make_app
from llama_cpp_eagle3.serve.protocol import http_config
from llama_cpp_eagle3.serve.server import Server
from loading import load


class Running(AbstractContextManager["Running"]):
    """A pair, served in this process. target: a file, or a model that is loaded."""

    def __init__(
        self,
        target: Any,
        head: Any = None,
        *,
        options: dict[str, Any] | None = None,
        n_connections: int = 512,
        **model: Any,
    ):
        opened = {"n_parallel": 2, "n_ctx": 512} | model
        llm = target if isinstance(target, Eagle3Llama) else load(target, head, **opened)
        said = {"model_name": "tiny", "metrics": True} | (options or {})
        self.server = Server(llm, ServeOptions(**said))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = http_config(make_app(self.server), n_connections, timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        while not self._uvicorn.started:
            time.sleep(0.005)
        self.client = httpx.Client(base_url=self.url, timeout=120.0, trust_env=False)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def ask(self, path: str, body: Any) -> Any:
        """Return the answer to a request that must succeed."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return all events of a stream; if it ends with [DONE], that is the last one."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]

    def stream_named(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return all events of a stream whose events are named by their types."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert [line[7:] for line in lines if line.startswith("event: ")] == [event["type"] for event in events]
        return events

    def close(self) -> None:
        self.client.close()
        self._uvicorn.should_exit = True
        self._thread.join()
        self._socket.close()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
