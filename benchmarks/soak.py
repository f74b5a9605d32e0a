"""Put a long mixed load on a real server: memory stays flat, and only bad requests fail.

Eight clients at once ask for streams, whole answers, conversations, tools, schemas and saved slots, send bad bodies,
and some leave in the middle. Every hundredth answer is compared with plain decoding by llama_cpp. The exit code is 1 if
something is wrong: an unexpected answer, a line in the server's log above level INFO, or memory that grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import httpx
import llama_cpp
import numpy as np

import common
from llama_cpp_eagle3.bench.report import table
from serve import free_port

_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
    },
}
_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
_BAD: list[tuple[str, Any]] = [
    ("/completion", {"prompt": 5}),
    ("/completion", {"prompt": "a", "n_predict": "x"}),
    ("/completion", {"prompt": "a", "grammar": "root ::= ("}),
    ("/completion", []),
    ("/v1/completions", {"prompt": [10**9]}),
    ("/v1/completions", {"prompt": [1] * 100_000}),
    ("/v1/chat/completions", {"messages": 5}),
    ("/slots/99?action=erase", {}),
]
_N_GREEDY = 16  # tokens of the compared answers
_CHECK_EVERY = 100
_TIE = 1e-3  # between the two best logits
_EARLY, _WARM = 0.2, 0.5  # shares of all requests; caches still fill in the first half
_MAX_GROWTH = 0.02
_N_SLOTS = 4


class Soak:
    """The requests of all clients, and their results."""

    flags: ClassVar[list[str]] = []
    """Of the server, besides those of every load."""
    warnings: ClassVar[tuple[str, ...]] = (
        *("a JSON schema is kept in part", "the chat template knows no tools"),
        "a prefix of",  # that does not fit into --cache-ram 8
    )
    """How lines of the log begin that the load asks for."""

    def __init__(self, client: httpx.AsyncClient, prompts: list[str], n_requests: int, seconds: float):
        self.client, self.prompts, self.n_requests = client, prompts, n_requests
        self._end = time.monotonic() + seconds
        self.n_begun = 0
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.checked: list[tuple[str, list[int]]] = []
        self._rng = random.Random(0)
        self._kinds = [self.stream, self.whole, self.chat, self.tools, self.schema, self.leave, self.bad, self.slot]

    async def run_client(self) -> None:
        """Send one request after the other."""
        while self.n_begun < self.n_requests and time.monotonic() < self._end:
            self.n_begun += 1
            ask = self.greedy if self.n_begun % _CHECK_EVERY == 0 else self._rng.choice(self._kinds)
            try:
                await ask()
            except (RuntimeError, ValueError, KeyError, httpx.HTTPError) as e:
                self.wrong.append(f"{ask.__name__}: {type(e).__name__}: {e}")
                print(self.wrong[-1], flush=True)
            self.counts[ask.__name__] += 1

    def body(self, **more: Any) -> dict[str, Any]:
        rng = self._rng
        prompt = rng.choice(self.prompts)[: rng.randint(20, 200)]
        return {"prompt": prompt, "n_predict": rng.randint(1, 12), "seed": rng.randint(0, 1 << 30), **more}

    async def ask(self, path: str, body: Any, codes: tuple[int, ...] = (200,)) -> Any:
        response = await self.client.post(path, json=body)
        if response.status_code not in codes:
            raise RuntimeError(f"{response.status_code} for {path} {str(body)[:200]}: {response.text[:300]}")
        return response.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        async with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        if response.status_code != 200 or any("error" in event for event in events):
            raise RuntimeError(f"{response.status_code} for {path}: {str(events[-1:])[:300]}")
        return events

    async def greedy(self) -> None:
        body = self.body(temperature=0.0, n_predict=_N_GREEDY, return_tokens=True)
        answer = await self.ask("/completion", body)
        self.checked.append((body["prompt"], answer["tokens"]))

    async def stream(self) -> None:
        *tokens, last = await self.events("/completion", self.body())
        if len(tokens) != last["tokens_predicted"]:
            raise RuntimeError(f"{len(tokens)} events for {last['tokens_predicted']} tokens")

    async def whole(self) -> None:
        n = self._rng.randint(1, 3)
        answer = await self.ask("/v1/completions", self.body(n=n, logprobs=self._rng.choice([None, 2])))
        if len(answer["choices"]) != n:
            raise RuntimeError(f"{len(answer['choices'])} choices instead of {n}")

    async def chat(self) -> None:
        body = self.body()
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        await self.ask("/v1/chat/completions", body)

    async def tools(self) -> None:
        body = {"messages": [{"role": "user", "content": "add"}], "tools": [_TOOL], "max_tokens": 12}
        body["tool_choice"] = self._rng.choice(["auto", "required"])
        if self._rng.random() < 0.5:
            await self.events("/v1/chat/completions", body)
        else:
            await self.ask("/v1/chat/completions", body)

    async def schema(self) -> None:
        answer = await self.ask("/completion", self.body(json_schema=_SCHEMA, n_predict=16))
        if answer["stop_type"] == "eos":
            json.loads(answer["content"])

    async def leave(self) -> None:
        body = self.body(n_predict=400, stream=self._rng.random() < 0.5, ignore_eos=True)
        with suppress(httpx.TimeoutException, asyncio.TimeoutError):
            await asyncio.wait_for(
                self.client.post("/completion", json=body, timeout=self._rng.choice([0.01, 0.05, 0.1])), 0.2
            )

    async def bad(self) -> None:
        path, body = self._rng.choice(_BAD)
        await self.ask(path, body, (400,))

    async def slot(self) -> None:
        name, i = f"slot{self._rng.randint(0, 3)}", self._rng.randrange(_N_SLOTS)
        await self.ask(f"/slots/{i}?action=save", {"filename": name})
        await self.ask(f"/slots/{(i + 1) % _N_SLOTS}?action=restore", {"filename": name})


def rss_of(process: subprocess.Popen[bytes]) -> float:
    """Return the process's memory in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def run(
    args: argparse.Namespace, url: str, process: subprocess.Popen[bytes], kind: type[Soak]
) -> tuple[Soak, list[Any]]:
    """Send all requests; return the results, and (requests, MiB) from time to time."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        while not await is_ready(client):
            if process.poll() is not None:
                sys.exit("the server does not start")
            await asyncio.sleep(0.1)
        soak = kind(client, common.prompts(args), args.requests, args.seconds)
        clients = asyncio.gather(*(soak.run_client() for _ in range(args.clients)))
        start, sizes = time.monotonic(), []
        while not clients.done():
            await asyncio.wait([clients], timeout=2.0)
            sizes.append((soak.n_begun, round(rss_of(process), 2)))
            print(f"{time.monotonic() - start:4.0f} s, {soak.n_begun} requests, {sizes[-1][1]} MiB", flush=True)
        await clients
        for _ in range(100):
            slots = (await client.get("/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                return soak, sizes
            await asyncio.sleep(0.1)
        soak.wrong.append("a slot is busy after the last request")
        return soak, sizes


async def is_ready(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await client.get("/health")).status_code == 200
    return False


def compare(target: str, checked: list[tuple[str, list[int]]]) -> tuple[int, list[str]]:
    """Return how many answers part from plain decoding where its two best logits tie, and other differences."""
    n_ties, wrong = 0, []
    options = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "logits_all": True}
    with closing(llama_cpp.Llama(target, verbose=False, **options)) as plain:
        for prompt, found in checked:
            tokens = plain.tokenize(prompt.encode(), special=True)
            expected = list(islice(plain.generate(tokens, temp=0.0, repeat_penalty=1.0), len(found)))
            i = next((i for i, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]), None)
            if i is None:
                continue
            plain.reset()
            plain.eval([*tokens, *expected[:i]])
            best = np.sort(plain.scores[plain.n_tokens - 1])[-2:]
            if best[1] - best[0] < _TIE:
                n_ties += 1
            else:
                wrong.append(f"token {i} after {prompt[-30:]!r} is {found[i]} instead of {expected[i]}")
    return n_ties, wrong


def complaints(log: Path, expected: tuple[str, ...]) -> list[str]:
    """Return the log's lines above level INFO, but those that begin as expected."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    above = [line for line in lines if line.get("level", "").lower() not in ("info", "debug")]
    return [str(line) for line in above if not line.get("message", "").startswith(expected)]


def main(kind: type[Soak] = Soak, name: str = "soak", title: str = "A long mixed load on the server") -> int:
    """Run a server and put the load on it; returns the exit code."""
    p = common.parser(sys.modules[kind.__module__].__doc__, runs=1)
    p.set_defaults(threads=1)
    p.add_argument("--requests", type=int, default=10_000)
    p.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    p.add_argument("--clients", type=int, default=8)
    args = p.parse_args()
    target, head = common.pair(args)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", "-m", target, "-md", head, "-np", str(_N_SLOTS)]
        command += ["-c", str(1024 * _N_SLOTS), "-t", str(args.threads), "--port", str(port), "--log-format", "json"]
        command += kind.flags
        command += ["-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "--slot-save-path", folder]
        start = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen([*command, "--cache-ram", "8"], stderr=file)
            try:
                soak, sizes = asyncio.run(run(args, f"http://127.0.0.1:{port}", process, kind))
            finally:
                process.terminate()
                code = process.wait(20)
        seconds = time.monotonic() - start
        wrong = soak.wrong + complaints(log, kind.warnings) + ([f"the server ended with {code}"] if code else [])
    n_ties, differences = compare(target, soak.checked)
    wrong += differences
    warm = [size for n, size in sizes if n >= _WARM * soak.n_begun]
    growth = warm[-1] - warm[0]
    if growth > _MAX_GROWTH * warm[0]:
        wrong.append(f"memory grows by {growth:.1f} MiB after the first {_WARM:.0%} of the requests")
    rows = [[kind, str(n)] for kind, n in sorted(soak.counts.items())]
    early = next(size for n, size in sizes if n >= _EARLY * soak.n_begun)
    sizes_told = (f"{early:.1f} MiB after {_EARLY:.0%} of the requests", f"{warm[0]:.1f} after {_WARM:.0%}")
    memory = f"{', '.join(sizes_told)}, {warm[-1]:.1f} at the end"
    text = (
        f"{table(['kind', 'requests'], rows)}\n\n{soak.n_begun} requests by {args.clients} clients in {seconds:.0f} s "
        f"on {_N_SLOTS} slots. Memory of the server: {memory}. {len(soak.checked)} answers compared with plain "
        f"decoding, {len(differences)} differ, {n_ties} part at ties. Errors that were not asked for: {len(wrong)}."
    )
    data = {"sizes": sizes, "counts": dict(soak.counts), "wrong": wrong}
    common.finish(args, common.Section(name, title, text, data), [target, head])
    for line in wrong[:20]:
        print(f"  {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
