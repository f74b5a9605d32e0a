"""Both servers under load: closed loops of clients and Poisson arrivals, in turn, on the same files and prompts.

    python benchmarks/serve.py -m target.gguf -md head.gguf [--clients 1 2 4 8] [--n-max 2 4] [-o results.json]

For each cell: throughput, time to the first token, time per token and the gap between two events, at p50 and p95, and
the servers' own CPU time per token beyond the engine's. llama-server runs plain and with draft-eagle3 at each n_max.
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
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from llama_cpp_eagle3.bench.peer import get_tools
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts


@dataclass
class Cell:
    """One server under one load."""

    server: str
    load: str
    n_clients: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    def figures(self) -> dict[str, Any]:
        def at(values: list[float], q: float) -> float:
            return 1e3 * statistics.quantiles(values, n=100)[round(100 * q) - 1] if len(values) > 1 else 0.0

        names = {"ttft": self.first, "tpot": self.per_token, "gap": self.gaps}
        quantiles = {f"{name}_p{q}_ms": at(values, q / 100) for name, values in names.items() for q in (50, 95)}
        return {
            "server": self.server,
            "load": self.load,
            "clients": self.n_clients,
            "tokens_per_second": self.n_tokens / self.seconds,
            "cpu_ms_per_token": 1e3 * self.cpu_seconds / max(1, self.n_tokens),
            "acceptance": self.n_accepted / max(1, self.n_drafted),
            **quantiles,
        }


class Running:
    """A server process."""

    def __init__(self, command: list[str], port: int):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 300
        while True:
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(command)} does not answer")
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        return time.clock_gettime((~self.process.pid << 3) | 2)  # as clock_getcpuclockid makes it

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


async def ask(client: httpx.AsyncClient, prompt: str, n_predict: int, cell: Cell) -> None:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "stream": True, "cache_prompt": False}
    start = last = time.perf_counter()
    n = 0
    first = 0.0
    async with client.stream("POST", "/completion", json=body | {"ignore_eos": True}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            if event["stop"]:
                timings = event["timings"]
                cell.n_drafted += timings.get("draft_n", 0)
                cell.n_accepted += timings.get("draft_n_accepted", 0)
                break
            n += 1
            if n == 1:
                first = now
                cell.first.append(now - start)
            else:
                cell.gaps.append(now - last)
            last = now
    cell.n_tokens += n
    if n > 1:
        cell.per_token.append((last - first) / (n - 1))


async def load(url: str, prompts: list[str], n_predict: int, cell: Cell, rate: float) -> None:
    """rate 0: so many clients, each asks again when it has its answer; else arrivals per second."""
    limits = httpx.Limits(max_connections=512)
    async with httpx.AsyncClient(base_url=url, timeout=3600, limits=limits, trust_env=False) as client:
        waiting = list(prompts)
        start = time.perf_counter()
        if rate:
            rng, tasks = random.Random(1), []
            for prompt in waiting:
                tasks.append(asyncio.create_task(ask(client, prompt, n_predict, cell)))
                await asyncio.sleep(rng.expovariate(rate))
            await asyncio.gather(*tasks)
        else:

            async def one() -> None:
                while waiting:
                    await ask(client, waiting.pop(0), n_predict, cell)

            await asyncio.gather(*(one() for _ in range(cell.n_clients)))
        cell.seconds = time.perf_counter() - start


def commands(args: argparse.Namespace, n_clients: int, port: int) -> dict[str, list[str]]:
    common = ["-m", args.model, "-c", str(n_clients * args.ctx_size), "-np", str(n_clients), "-t", str(args.threads)]
    common += ["-ngl", str(args.gpu_layers), "--port", str(port), "--cache-ram", "0"]
    head = ["-md", args.model_draft]
    peer = [str(get_tools() / "llama-server"), *common, "--no-ui", "--offline", "-fa", "off"]
    found = {"llama-server": peer, "ours": [sys.executable, "-m", "llama_cpp_eagle3", "serve", *common, *head]}
    for n_max in args.n_max:
        draft = [*head, "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(n_max), "-ngld", str(args.gpu_layers)]
        found[f"llama-server n_max {n_max}"] = [*peer, *draft]
    return found


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target, head = map(str, bundled_pair())
    parser.add_argument("-m", "--model", default=target)
    parser.add_argument("-md", "--model-draft", default=head)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--n-max", type=int, nargs="*", default=[2, 4])
    parser.add_argument("-n", "--n-predict", type=int, default=64)
    parser.add_argument("--n-prompts", type=int, default=16, help="per client")
    parser.add_argument("--load-factor", type=float, default=0.7, help="arrivals, of the closed loop's")
    parser.add_argument("-c", "--ctx-size", type=int, default=512, help="of each slot")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=0)
    parser.add_argument("-r", "--rounds", type=int, default=2, help="turns of all servers")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    texts = heldout_prompts()
    rows: list[dict[str, Any]] = []
    for n_clients in args.clients:
        prompts = [texts[i % len(texts)] for i in range(n_clients * args.n_prompts)]
        rate = 0.0  # of arrivals, the same for all: a share of what llama-server does without drafts
        for _ in range(args.rounds):
            for name in commands(args, n_clients, 0):
                port = free_port()
                server = Running(commands(args, n_clients, port)[name], port)
                try:
                    asyncio.run(load(server.url, prompts[:n_clients], 8, Cell(name, "warm-up", n_clients), 0.0))
                    for kind in ("closed", "poisson"):
                        cell = Cell(name, kind, n_clients)
                        before = server.cpu_seconds()
                        asyncio.run(load(server.url, prompts, args.n_predict, cell, rate if kind == "poisson" else 0.0))
                        cell.cpu_seconds = server.cpu_seconds() - before
                        rate = rate or args.load_factor * len(prompts) / cell.seconds
                        rows.append(cell.figures())
                        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}))
                finally:
                    server.close()
    if args.output is not None:
        args.output.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
