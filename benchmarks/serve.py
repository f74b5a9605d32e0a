"""Run both servers under load: closed loops of clients and Poisson arrivals, on the same files and prompts, in turn.

The bundled pair, inflated to 16 layers of width 2048 (`inflate`), greedy, streamed over loopback; llama-server runs
plain and with draft-eagle3. In the closed loop every client sends its next request when it has its answer; the arrivals
have the same rate for all, a share of plain llama-server's. Measured figures are kept in results/serve.json, so that
several calls can share the work: `--seconds` limits the time of one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

import common
from comparison import peer_tools
from inflate import inflated_pair
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.cli.bench import numbers
from llama_cpp_eagle3.files.cache_dir import cache_dir

OURS, PLAIN = "ours", "llama-server"
CLOSED, POISSON = "closed loop", "Poisson"
RESULTS = common.HERE / "results" / "serve.json"
_N_WARM = 8  # tokens of the requests that warm up
_MOST_GAP, _MOST_OF_DRAFTED, _LEAST_OF_PLAIN = 1.1, 1.25, 1.0
_PERCENTS = (50, 95)


@dataclass
class Cell:
    """Figures of one server under one load."""

    side: str
    load: str
    clients: int
    run: int
    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds to the first token, for each request."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two events."""
    per_token: list[float] = field(default_factory=list)
    """Mean seconds per token, for each request."""

    @property
    def speed(self) -> float:
        """Tokens/s: all tokens over all time."""
        return self.tokens / self.seconds


def percentile(cells: list[Cell], name: str, percent: int) -> float:
    """Return a percentile over all runs together, in milliseconds."""
    values = [value for cell in cells for value in getattr(cell, name)]
    return 1e3 * statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class Running:
    """A server process."""

    def __init__(self, command: list[str], port: int):
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 300
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"{' '.join(command)} does not answer")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def process_time(self) -> float:
        """Processor time of the process, in seconds; on Linux only."""
        return time.clock_gettime((~self._process.pid << 3) | 2)  # clock_getcpuclockid's number

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def connect(url: str) -> httpx.AsyncClient:
    """Return a client with a connection for each request: llama-server closes unused connections after a while."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=3600, trust_env=False, limits=limits)


async def ask(client: httpx.AsyncClient, prompt: str, n_predict: int, cell: Cell, **more: Any) -> None:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    start = time.perf_counter()
    times = []
    async with client.stream("POST", "/completion", json=body | {"stream": True} | more) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if event["stop"]:
                    cell.drafted += event["timings"].get("draft_n", 0)
                    cell.accepted += event["timings"].get("draft_n_accepted", 0)
                else:
                    times.append(time.perf_counter())
    cell.requests += 1
    cell.tokens += len(times)
    cell.first.append(times[0] - start)
    cell.gaps += [b - a for a, b in pairwise(times)]
    cell.per_token.append((times[-1] - times[0]) / (len(times) - 1))


async def load(url: str, prompts: list[str], n_predict: int, cell: Cell, rate: float) -> None:
    """Send the prompts. rate: arrivals per second; 0: a closed loop."""
    async with connect(url) as client:
        left = list(prompts)
        start = time.perf_counter()

        async def loop() -> None:
            while left:
                await ask(client, left.pop(0), n_predict, cell)

        if rate == 0:
            await asyncio.gather(*(loop() for _ in range(cell.clients)))
        else:
            rng, tasks = random.Random(1), []
            for prompt in prompts:
                tasks.append(asyncio.create_task(ask(client, prompt, n_predict, cell)))
                await asyncio.sleep(rng.expovariate(rate))
            await asyncio.gather(*tasks)
        cell.seconds = time.perf_counter() - start


def free_port() -> int:
    """Return a port on which no program listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def sides(args: argparse.Namespace) -> list[str]:
    return [PLAIN, OURS, *(f"{PLAIN} n_max {n}" for n in args.n_max)]


def command(args: argparse.Namespace, files: tuple[str, str], side: str, n_clients: int, port: int) -> list[str]:
    common_flags = ["-m", files[0], "-c", str(n_clients * args.ctx_size), "-np", str(n_clients), "--cache-ram", "0"]
    common_flags += ["-t", str(args.threads), "-ngl", str(args.gpu_layers), "--port", str(port), "-fa", "off"]
    if side == OURS:
        return [sys.executable, "-m", "llama_cpp_eagle3", "serve", *common_flags, "-md", files[1]]
    program = [str(peer_tools.get_tools(args.tools) / "llama-server"), *common_flags, "--no-ui", "--offline"]
    if side == PLAIN:
        return program
    n_max = side.split()[-1]
    return [
        *program, "-md", files[1], "--spec-type", "draft-eagle3", "--spec-draft-n-max", n_max,
        "-ngld", str(args.gpu_layers),
    ]  # fmt: skip


def turns(args: argparse.Namespace, cells: list[Cell]) -> Iterator[tuple[int, int, str]]:
    """Yield (run, clients, side) without figures so far."""
    done = {(cell.run, cell.clients, cell.side) for cell in cells if cell.load == POISSON}
    for run in range(args.runs):
        for n_clients in args.clients:
            names = sides(args)
            # sides change their order; plain decoding comes first, since the rate of arrivals depends on it
            k = run % len(names)
            for side in names[k:] + names[:k]:
                if (run, n_clients, side) not in done:
                    yield run, n_clients, side


def measure(
    args: argparse.Namespace, files: tuple[str, str], turn: tuple[int, int, str], cells: list[Cell]
) -> list[Cell]:
    """Put both loads on a new server."""
    run, n_clients, side = turn
    texts = [text[: args.prompt_size] for text in common.prompts(args)]
    prompts = [texts[i % len(texts)] for i in range(max(args.requests, n_clients))]
    port = free_port()
    found = []
    with closing(Running(command(args, files, side, n_clients, port), port)) as server:
        asyncio.run(load(server.url, prompts[:n_clients], _N_WARM, Cell(side, CLOSED, n_clients, run), 0.0))
        for kind in (CLOSED, POISSON):
            cell = Cell(side, kind, n_clients, run)
            plain = [c for c in [*cells, *found] if (c.side, c.load, c.clients) == (PLAIN, CLOSED, n_clients)]
            rate = args.rate * plain[0].requests / plain[0].seconds if kind == POISSON else 0.0
            asyncio.run(load(server.url, prompts, args.n_predict, cell, rate))
            found.append(cell)
    return found


def report(args: argparse.Namespace, cells: list[Cell]) -> str:
    """Return the tables, and whether the goals are met."""
    texts = []
    goals: list[list[str]] = []
    for kind in (CLOSED, POISSON):
        rows = []
        for n_clients in args.clients:
            of = {
                side: [c for c in cells if (c.side, c.load, c.clients) == (side, kind, n_clients)]
                for side in sides(args)
            }
            of = {side: found for side, found in of.items() if found}
            speed = {side: Spread.of(c.speed for c in found) for side, found in of.items()}
            for side, found in of.items():
                times = [
                    f"{percentile(found, name, percent):.0f}"
                    for name in ("first", "per_token", "gaps")
                    for percent in _PERCENTS
                ]
                drafted = sum(c.drafted for c in found)
                accepted = f"{100 * sum(c.accepted for c in found) / drafted:.0f} %" if drafted else ""
                rows.append([str(n_clients), side, speed[side].text(1), *times, accepted])
            if not {OURS, PLAIN} < of.keys():
                continue
            ours = speed[OURS].median
            drafting = max(speed[side].median for side in of if side not in (OURS, PLAIN))
            gap = percentile(of[OURS], "gaps", 95) / percentile(of[PLAIN], "gaps", 95)
            goals.append(
                [
                    f"{kind}, {n_clients}",
                    f"{ours / drafting:.2f}",
                    f"{ours / speed[PLAIN].median:.2f}",
                    f"{gap:.2f}",
                ]
            )
        head = ["clients", "server", "tokens/s", "first token p50, ms", "p95", "per token p50", "p95", "gap p50", "p95"]
        texts.append(f"### {kind}\n\n{table([*head, 'accepted'], rows)}")
    wanted = f"at least {_MOST_OF_DRAFTED} | at least {_LEAST_OF_PLAIN:.1f} | at most {_MOST_GAP}"
    goals.insert(0, ["goal", *wanted.split(" | ")])
    head = ["", "our tokens/s / draft-eagle3's best n_max", "/ llama-server plain", "p95 of gaps / plain"]
    return "\n\n".join([table(head, goals), *texts])


def main() -> int:
    p = common.parser(__doc__, runs=2)
    p.set_defaults(n_predict=24, ctx_size=512, threads=1)
    p.add_argument("--clients", type=numbers, default=[1, 2, 4, 8], metavar="N,...")
    p.add_argument("--n-max", type=numbers, default=[1, 3], metavar="N,...", help="of llama-server's draft-eagle3")
    p.add_argument("--requests", type=int, default=3, help="at least; there is one of each client")
    p.add_argument("--prompt-size", type=int, default=120, help="characters")
    p.add_argument("--rate", type=float, default=0.7, help="of arrivals, by that of llama-server's closed loop")
    p.add_argument("--head", default="Q8_0", help="type of the head")
    p.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after so many")
    p.add_argument("--folder", type=Path, default=cache_dir() / "inflated", help="for the model files")
    args = p.parse_args()
    start = time.monotonic()
    if args.model:
        files = common.pair(args)
    else:
        target, head = inflated_pair(args.folder, "1B", "Q4_0", args.head)
        files = str(target), str(head)
    is_kept = args.publish
    cells = [Cell(**cell) for cell in json.loads(RESULTS.read_text())["cells"]] if is_kept and RESULTS.exists() else []
    for turn in list(turns(args, cells)):
        if time.monotonic() - start > args.seconds:
            break
        print(*turn, file=sys.stderr, flush=True)
        cells += measure(args, files, turn, cells)
        if is_kept:
            RESULTS.write_text(json.dumps({"cells": [asdict(cell) for cell in cells]}))
    n_left = len(list(turns(args, cells)))
    if n_left > 0:
        print(f"{n_left} turns of servers are left: call it again", file=sys.stderr)
    about = (
        f"One request of each client in a run, but at least {args.requests}; {args.n_predict} tokens each after the "
        f"first {args.prompt_size} characters of held-out texts, greedy; medians of {args.runs} runs (lowest - "
        f"highest), percentiles of all runs together. Arrivals come at {args.rate} of the rate at which llama-server "
        "plain answers in the closed loop. Gaps are those between two events of a stream: tokens of one step come at "
        "once."
    )
    text = f"{report(args, cells)}\n\n{about}"
    data: dict[str, Any] = {"cells": [asdict(cell) for cell in cells]}
    common.finish(args, common.Section("serve", "Both servers under load: a 1B model in Q4_0", text, data), files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
