"""Run llama.cpp's llama-server, plain or with a drafter, over loopback, with the figures of `runs` and `load`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from llama_cpp_eagle3.draft.kinds import MtpBlock, kind_of
from llama_cpp_eagle3.errors import Eagle3Error

from .load import Load, groups
from .runs import Peer, Run

N_BATCH = 2048
"""A server's batch, in tokens: llama.cpp's default, or n_ctx of a slot if that is more."""

_T_START = 300.0  # seconds that loading may take
_T_REQUEST = 3600.0
_COUNTER = re.compile(r"^llamacpp:spec_decode_num_(\w+)_total(?:\{position=\"(\d+)\"\})? (\d+)", re.MULTILINE)


class Server:
    """A running llama-server. Use it in a `with` block."""

    def __init__(
        self,
        peer: Peer,
        n_max: int,
        synthetic: Sequence[float] | None = None,
        *,
        n_parallel: int = 1,
        flash_attn: str = "off",
        ngram: bool = False,
        replay: Path | None = None,
    ):
        """Start the server and wait until it has loaded.

        Args:
            peer: files and settings; n_ctx is that of each slot.
            n_max: --spec-draft-n-max; 0 = no drafter.
            synthetic: odds by which drafted tokens are accepted.
            n_parallel: number of slots.
            flash_attn: on, off or auto.
            ngram: draft with ngram-mod too.
            replay: the library of `peer_tools.get_replay`: needed for the method `replay`.

        Raises:
            Eagle3Error: the server ended, or took too long to load.
        """
        self.port, self.n_parallel = _free_port(), n_parallel
        self._log: IO[bytes] = tempfile.NamedTemporaryFile(prefix="llama-server-")  # noqa: SIM115
        self._said: IO[str] = tempfile.NamedTemporaryFile("w", prefix="llama-server-")  # noqa: SIM115
        command = self.command(peer, n_max, self.port, synthetic, n_parallel, flash_attn, ngram)
        env = None if replay is None else {**os.environ, "LD_PRELOAD": str(replay), "PEER_REPLAY": self._said.name}
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, env=env)
        end = time.monotonic() + _T_START
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                log = self._read_log()
                self.close()
                raise Eagle3Error(f"{' '.join(command)} does not answer:\n{log[-2000:]}")
            time.sleep(0.05)

    @staticmethod
    def command(
        peer: Peer,
        n_max: int,
        port: int,
        synthetic: Sequence[float] | None,
        n_parallel: int = 1,
        flash_attn: str = "off",
        ngram: bool = False,
    ) -> list[str]:
        """Return the command line."""
        n_threads, n_layers = str(peer.n_threads), str(peer.n_gpu_layers if peer.n_gpu_layers >= 0 else 999)
        n_ctx = str(n_parallel * peer.n_ctx)
        # llama-server wants one rate for each drafted token
        rates = [*(synthetic or []), *[0.0] * n_max][:n_max]
        # a block for multi-token prediction is in the target's file
        own, kind = peer.draft == peer.model, MtpBlock if peer.draft == peer.model else kind_of(peer.draft)
        types = ["ngram-mod"] * ngram + ([kind.spec_types[0]] if n_max else [])
        head = [*([] if own else ["-md", peer.draft, "-ngld", n_layers]), "--spec-draft-n-max", str(n_max)]
        return [
            *(str(peer.tools / "llama-server"), "-m", peer.model, *(head if n_max else [])),
            *(["--spec-type", ",".join(types)] if types else []),
            *("-c", n_ctx, "-b", str(max(peer.n_ctx, N_BATCH)), "-ub", "512", "-t", n_threads, "-tb", n_threads),
            *("-ngl", n_layers, "-fa", flash_attn, "-np", str(n_parallel)),
            *("--host", "127.0.0.1", "--port", str(port), "--metrics", "--no-ui", "--cache-ram", "0", "--offline"),
            *(["--spec-synth-rates", ",".join(map(str, rates))] if synthetic else []),
        ]

    def run(
        self,
        prompt: Sequence[int],
        n_predict: int,
        *,
        fresh: bool = True,
        stop: bool = True,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Run:
        """Generate, by default greedily; the arguments are those of `run_own`."""
        before = self._counters()
        asked = _greedy(prompt, n_predict, fresh=fresh, stop=stop)
        if temperature > 0.0:
            del asked["samplers"], asked["top_k"]  # so that llama-server uses its default samplers
            asked |= {"temperature": temperature, "seed": seed}
        answer = self._ask("/completion", asked)
        counted = {key: n - before.get(key, 0) for key, n in self._counters().items()}
        times = json.loads(answer)["timings"]
        per_position = sorted((int(i), n) for (name, i), n in counted.items() if name == "accepted_tokens_per_pos")
        n_tokens, n_accepted = int(times["predicted_n"]) - 1, counted.get(("accepted_tokens", ""), 0)
        return Run(
            # the prompt's pass gives the first token
            tokens=n_tokens,
            steps=n_tokens - n_accepted,
            drafted=counted.get(("draft_tokens", ""), 0),
            accepted=n_accepted,
            per_position=[n for _, n in per_position],
            t_decode=times["predicted_ms"] * 1e-3,
            t_prompt=times["prompt_ms"] * 1e-3,
        )

    def replay(self, tokens: Sequence[int]) -> None:
        """Make the target generate these tokens for every prompt that they begin with. Needs the library."""
        self._said.seek(0)
        self._said.truncate()
        self._said.write(" ".join(map(str, tokens)))
        self._said.flush()

    def process_time(self) -> float:
        """Processor time of the server, in seconds; on Linux only."""
        return time.clock_gettime((~self._process.pid << 3) | 2)  # clock_getcpuclockid's number

    def run_many(
        self, prompts: Sequence[Sequence[int]], n_predict: int, clock: Callable[[], float] = time.perf_counter
    ) -> Load:
        """Continue prompts greedily, in groups of as many prompts as slots; the arguments are those of `load_own`.

        clock: returns seconds, of wall-clock time or `process_time`.
        """
        return sum((self._group(g, n_predict, clock) for g in groups(prompts, self.n_parallel)), Load(0.0, 0, 0.0, 0))

    def _group(self, prompts: Sequence[Sequence[int]], n_predict: int, clock: Callable[[], float]) -> Load:
        before = self._counters()

        def client(prompt: Sequence[int]) -> list[float]:
            asked = _greedy(prompt, n_predict, stop=False) | {"stream": True, "return_tokens": True}
            times: list[float] = []
            with closing(self._connect()) as connection:
                for line in self._exchange(connection, "/completion", asked):
                    if line.startswith(b"data: "):
                        times += [clock()] * len(json.loads(line[6:])["tokens"])
            return times

        with ThreadPoolExecutor(len(prompts)) as clients:
            start = clock()
            times = list(clients.map(client, prompts))
        after = self._counters()
        counted = ((name, "") for name in ("draft_tokens", "accepted_tokens"))
        return Load.of(start, times, *(after.get(key, 0) - before.get(key, 0) for key in counted))

    def _counters(self) -> dict[tuple[str, str], int]:
        """Return llama-server's counters of speculation: (name, position or "") -> number."""
        found = _COUNTER.findall(self._ask("/metrics"))
        return {(name, position): int(n) for name, position, n in found}

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        with closing(self._connect()) as connection:
            return b"".join(self._exchange(connection, path, body)).decode()

    def _connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=_T_REQUEST)

    def _exchange(self, connection: HTTPConnection, path: str, body: dict[str, Any] | None) -> Iterator[bytes]:
        """Send a request and yield the lines of the answer as they come."""
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(500).decode(errors="replace")
                raise Eagle3Error(f"llama-server answered {path} with {response.status}: {text}")
            yield from response
        except OSError as e:
            raise Eagle3Error(f"llama-server does not answer ({e}):\n{self._read_log()[-2000:]}") from e

    def _is_ready(self) -> bool:
        try:
            self._ask("/health")
        except Eagle3Error:
            return False
        return True

    def _read_log(self) -> str:
        if self._log.closed:
            return "it was closed"
        # the log is opened again, since the server writes at the position of its own handle
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._said.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _greedy(prompt: Sequence[int], n_predict: int, *, fresh: bool = True, stop: bool = True) -> dict[str, Any]:
    """Return the body of a request to /completion."""
    return {
        "prompt": list(prompt),
        "n_predict": n_predict,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "cache_prompt": not fresh,
        "ignore_eos": not stop,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
