"""Measure a server's time beside its engine's: CPU time of HTTP, JSON and detokenizing, per token.

It is the processor time of the server's process while clients stream answers, less that of the same engine with the
same prompts, settings and number of sequences in a process without a server. Both sides run in turn, without drafts and
with them, on one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import closing
from typing import Any

import common
from comparison.runs import load
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.engine import DraftSettings, Sampling
from serve import Cell, Running, ask, connect, free_port

_GOAL_MS = 0.3
_N_CLIENTS = 8


def main() -> None:
    p = common.parser(__doc__)
    p.set_defaults(n_predict=200, ctx_size=512, threads=1)
    p.add_argument("--draft-n-max", type=int, default=3)
    args = p.parse_args()
    model, head = common.pair(args)
    texts = [text[:120] for text in common.prompts(args)[:_N_CLIENTS]]
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", "-m", model, "-md", head, "-np", str(_N_CLIENTS)]
    command += ["-c", str(_N_CLIENTS * args.ctx_size), "-t", str(args.threads), "--port", str(port), "-ngl", "0"]
    command += ["--spec-draft-n-max", str(args.draft_n_max), "--cache-ram", "0"]
    n_tokens = _N_CLIENTS * args.n_predict
    found: dict[tuple[str, bool], list[float]] = {}
    options = {"n_parallel": _N_CLIENTS, "draft": "chain", "draft_n_max": args.draft_n_max}
    llm = load(model, head, args.threads, 0, _N_CLIENTS * args.ctx_size, **options)
    with closing(llm), closing(Running(command, port)) as server:
        for i in range(args.runs + 1):
            for drafts in (False, True):
                of_server, of_engine = _of_server(server, texts, args, drafts), _of_engine(llm, texts, args, drafts)
                if i > 0:  # the first run warms up
                    found.setdefault(("server", drafts), []).append(1e3 * of_server / n_tokens)
                    found.setdefault(("engine", drafts), []).append(1e3 * of_engine / n_tokens)
    rows = []
    for drafts in (False, True):
        server_ms, engine_ms = found["server", drafts], found["engine", drafts]
        rest = Spread.of(a - b for a, b in zip(server_ms, engine_ms, strict=True))
        name = f"chains of {args.draft_n_max}" if drafts else "without drafts"
        rows.append([name, Spread.of(server_ms).text(3), Spread.of(engine_ms).text(3), rest.text(3)])
    head_row = ["", "server, ms per token", "engine alone", "HTTP, JSON, text"]
    text = (
        f"{table(head_row, rows)}\n\nThe goal is at most {_GOAL_MS} ms. {_N_CLIENTS} clients at once, {args.n_predict} "
        f"tokens each, one event per token; medians of {args.runs} interleaved runs (lowest - highest)."
    )
    data = {"runs": {f"{name} {'drafts' if drafts else 'plain'}": values for (name, drafts), values in found.items()}}
    common.finish(args, common.Section("serve_cost", "The server's own time per token", text, data), [model, head])


def _of_server(server: Running, texts: list[str], args: argparse.Namespace, drafts: bool) -> float:
    """Return the processor time of a streamed answer to each text."""

    async def run() -> None:
        cell = Cell("", "", len(texts), 0)
        more: dict[str, Any] = {} if drafts else {"speculative": False}
        async with connect(server.url) as client:
            await asyncio.gather(*(ask(client, text, args.n_predict, cell, **more) for text in texts))

    start = server.process_time()
    asyncio.run(run())
    return server.process_time() - start


def _of_engine(llm: Eagle3Llama, texts: list[str], args: argparse.Namespace, drafts: bool) -> float:
    engine, settings = llm.engine, DraftSettings(mode="chain" if drafts else "off", n_max=args.draft_n_max)
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    start = time.process_time()
    for text in texts:
        tokens = llm.tokenize(text.encode(), special=True)
        engine.add(tokens, sampling, max_tokens=args.n_predict, draft=settings, cache_prompt=False)
    while engine.has_work:
        engine.step()
    return time.process_time() - start


if __name__ == "__main__":
    main()
