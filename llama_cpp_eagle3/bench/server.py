"""llama.cpp's llama-server with draft-eagle3: one request at a time over loopback, with the figures of `runs`."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import Eagle3Error
from .runs import Peer, Run

_T_START = 300.0  # seconds that loading may take
_T_REQUEST = 3600.0
_COUNTER = re.compile(r"^llamacpp:spec_decode_num_(\w+)_total(?:\{position=\"(\d+)\"\})? (\d+)", re.MULTILINE)


class Server:
    """A running llama-server. Use it in a `with` block."""

    def __init__(self, peer: Peer, n_max: int, synthetic: Sequence[float] | None = None):
        """Start it and wait until it has loaded.

        Raises:
            Eagle3Error: it ended, or took too long.
        """
        self.port = _free_port()
        self._log: IO[bytes] = tempfile.NamedTemporaryFile(prefix="llama-server-")  # noqa: SIM115
        command = self.command(peer, n_max, self.port, synthetic)
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        end = time.monotonic() + _T_START
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                log = self._read_log()
                self.close()
                raise Eagle3Error(f"{' '.join(command)} does not answer:\n{log[-2000:]}")
            time.sleep(0.05)

    @staticmethod
    def command(peer: Peer, n_max: int, port: int, synthetic: Sequence[float] | None) -> list[str]:
        """The call."""
        n_threads, n_layers = str(peer.n_threads), str(peer.n_gpu_layers if peer.n_gpu_layers >= 0 else 999)
        # rates are wanted for each drafted token, no more and no less
        rates = [*(synthetic or []), *[0.0] * n_max][:n_max]
        return [
            *(str(peer.tools / "llama-server"), "-m", peer.model, "-md", peer.draft),
            *("--spec-type", "draft-eagle3", "--spec-draft-n-max", str(n_max)),
            *("-c", str(peer.n_ctx), "-b", str(peer.n_ctx), "-ub", "512", "-t", n_threads, "-tb", n_threads),
            *("-ngl", n_layers, "-ngld", n_layers, "-fa", "off", "-np", "1"),
            *("--host", "127.0.0.1", "--port", str(port), "--metrics", "--no-ui", "--cache-ram", "0", "--offline"),
            *(["--spec-synth-rates", ",".join(map(str, rates))] if synthetic else []),
        ]

    def run(self, prompt: Sequence[int], n_predict: int, *, fresh: bool = True, stop: bool = True) -> Run:
        """Generate greedily; the arguments are those of `run_own`."""
        before = self._counters()
        answer = self._ask(
            "/completion",
            {
                "prompt": list(prompt),
                "n_predict": n_predict,
                "temperature": 0,
                "samplers": ["top_k"],
                "top_k": 1,
                "cache_prompt": not fresh,
                "ignore_eos": not stop,
            },
        )
        counted = {key: n - before.get(key, 0) for key, n in self._counters().items()}
        times = json.loads(answer)["timings"]
        per_position = sorted((int(i), n) for (name, i), n in counted.items() if name == "accepted_tokens_per_pos")
        n_tokens, n_accepted = int(times["predicted_n"]) - 1, counted.get(("accepted_tokens", ""), 0)
        return Run(
            # the first token came with the prompt
            tokens=n_tokens,
            rounds=n_tokens - n_accepted,
            drafted=counted.get(("draft_tokens", ""), 0),
            accepted=n_accepted,
            per_position=[n for _, n in per_position],
            t_decode=times["predicted_ms"] * 1e-3,
            t_prompt=times["prompt_ms"] * 1e-3,
        )

    def _counters(self) -> dict[tuple[str, str], int]:
        """What it has counted of speculation: (name, position or "") -> number."""
        found = _COUNTER.findall(self._ask("/metrics"))
        return {(name, position): int(n) for name, position, n in found}

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_T_REQUEST)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        except OSError as e:
            raise Eagle3Error(f"llama-server does not answer ({e}):\n{self._read_log()[-2000:]}") from e
        finally:
            connection.close()
        if response.status != 200:
            raise Eagle3Error(f"llama-server answered {path} with {response.status}: {text[:500]}")
        return text

    def _is_ready(self) -> bool:
        try:
            self._ask("/health")
        except Eagle3Error:
            return False
        return True

    def _read_log(self) -> str:
        if self._log.closed:
            return "it was closed"
        # opened again: the program goes on writing at the place of its own handle
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
