"""A long mixed load on a real server: memory must stay flat, nothing may go wrong that was not asked for.

    python tests/soak_serve.py [--requests 10000] [--clients 8]

Streams, whole answers, conversations, tools, schemas, clients that leave, bad bodies, saved slots; every hundredth
answer is compared with plain decoding. Prints figures, and ends with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from llama_cpp_eagle3.models import bundled_pair, heldout_prompts
from loading import is_tie, load_plain, take

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
BAD: list[Any] = [
    {"prompt": 5},
    {"prompt": "a", "n_predict": "x"},
    {"prompt": "a", "grammar": "("},
    [],
    {"prompt": [10**9]},
]
N_GREEDY = 24


class Soak:
    def __init__(self, client: httpx.AsyncClient, n: int):
        self.client, self.n_left = client, n
        self.rng = random.Random(0)
        self.prompts = heldout_prompts()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.checked: list[tuple[str, list[int]]] = []

    async def one_client(self) -> None:
        kinds = ["greedy", "stream", "whole", "chat", "tools", "schema", "leave", "bad", "slot"]
        while self.n_left > 0:
            self.n_left -= 1
            kind = "greedy" if self.n_left % 100 == 0 else self.rng.choice(kinds)
            try:
                await getattr(self, kind)()
                self.counts[kind] += 1
            except Exception as e:
                self.wrong.append(f"{kind}: {type(e).__name__}: {e}")

    def body(self, **more: Any) -> dict[str, Any]:
        prompt = self.rng.choice(self.prompts)[: self.rng.randint(20, 400)]
        return {"prompt": prompt, "n_predict": self.rng.randint(1, 48), "seed": self.rng.randint(0, 1 << 30), **more}

    async def ask(self, path: str, body: Any, code: int = 200) -> Any:
        response = await self.client.post(path, json=body)
        if response.status_code != code:
            raise RuntimeError(f"{response.status_code} for {json.dumps(body)[:200]}: {response.text[:300]}")
        return response.json()

    async def greedy(self) -> None:
        body = self.body(temperature=0.0, n_predict=N_GREEDY, return_tokens=True)
        answer = await self.ask("/completion", body)
        if len(self.checked) < 200:
            self.checked.append((body["prompt"], answer["tokens"]))

    async def stream(self) -> None:
        n = 0
        async with self.client.stream("POST", "/completion", json=self.body(stream=True)) as response:
            async for line in response.aiter_lines():
                n += line.startswith("data: ")
        if n < 2:
            raise RuntimeError(f"{n} events")

    async def whole(self) -> None:
        await self.ask("/v1/completions", self.body(n=self.rng.randint(1, 3), logprobs=self.rng.choice([None, 2])))

    async def chat(self) -> None:
        body = self.body()
        await self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": body.pop("prompt")}], **body})

    async def tools(self) -> None:
        messages = [{"role": "user", "content": "add"}]
        body = {"messages": messages, "tools": [TOOL], "max_tokens": 16, "stream": self.rng.random() < 0.5}
        response = await self.client.post("/v1/chat/completions", json=body)
        if response.status_code != 200:
            raise RuntimeError(response.text[:300])

    async def schema(self) -> None:
        answer = await self.ask("/completion", self.body(json_schema=SCHEMA, n_predict=64))
        if answer["stop_type"] == "eos":
            json.loads(answer["content"])

    async def leave(self) -> None:
        body = self.body(n_predict=400, stream=self.rng.random() < 0.5, ignore_eos=True)
        with suppress(httpx.ReadTimeout):
            await self.client.post("/completion", json=body, timeout=self.rng.choice([0.02, 0.1, 0.3]))

    async def bad(self) -> None:
        await self.ask("/completion", self.rng.choice(BAD), 400)

    async def slot(self) -> None:
        name, i = f"slot{self.rng.randint(0, 3)}", self.rng.randint(0, 3)
        await self.ask(f"/slots/{i}?action=save", {"filename": name})
        await self.ask(f"/slots/{(i + 1) % 4}?action=restore", {"filename": name})


def rss(process: subprocess.Popen[bytes]) -> float:
    """MiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


async def run(args: argparse.Namespace, url: str, process: subprocess.Popen[bytes]) -> Soak:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        while True:
            with suppress(httpx.TransportError):
                if (await client.get("/health")).status_code == 200:
                    break
            await asyncio.sleep(0.1)
        soak = Soak(client, args.requests)
        clients = asyncio.gather(*(soak.one_client() for _ in range(args.clients)))
        start, sizes = time.monotonic(), []
        while not clients.done():
            await asyncio.wait([clients], timeout=max(1.0, args.requests / 1000))
            sizes.append((args.requests - soak.n_left, rss(process)))
            print(
                f"{time.monotonic() - start:6.0f} s, {sizes[-1][0]:6d} requests, RSS {sizes[-1][1]:.1f} MiB", flush=True
            )
        warm = [size for n, size in sizes if n >= 0.2 * args.requests]
        growth = max(warm[-3:]) - max(warm[:3])
        print(f"RSS after a fifth {warm[0]:.1f} MiB, at the end {warm[-1]:.1f} MiB, growth {growth:+.1f} MiB")
        if growth > 0.05 * warm[0]:
            soak.wrong.append(f"memory grows: {growth:.1f} MiB")
        while (await client.get("/slots")).json() and any(
            s["is_processing"] for s in (await client.get("/slots")).json()
        ):
            await asyncio.sleep(0.1)
        return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    target, _ = bundled_pair()
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", "-np", "4", "-c", "4096", "-t", "1"]
        command += ["--port", str(port), "--slot-save-path", folder, "--cache-ram", "64"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            soak = asyncio.run(run(args, f"http://127.0.0.1:{port}", process))
        finally:
            process.terminate()
            process.wait(20)
    with closing(load_plain(target)) as plain:
        n_ties = 0
        for prompt, tokens in soak.checked:
            given = plain.tokenize(prompt.encode(), special=True)
            expected = take(plain, given, len(tokens))
            n = next((i for i, t in enumerate(expected) if t == plain.token_eos()), len(expected))
            n_ties += is_tie(plain, given, expected[:n], tokens[:n])
    print(f"{dict(soak.counts)}; {len(soak.checked)} answers compared with plain decoding, {n_ties} part at ties")
    for line in soak.wrong[:20]:
        print(f"  {line}")
    return int(bool(soak.wrong))


if __name__ == "__main__":
    sys.exit(main())
