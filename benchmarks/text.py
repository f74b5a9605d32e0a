"""Draft from text: measure the index's cost per token, and the speed-up, against llama-server with ngram-mod.

Without arguments the index is measured. `--replay` makes the target generate recorded texts: everything is computed,
only the drawn tokens are replaced, on both sides. `--own` takes the target's own greedy texts after the prompts. Speeds
are without the prompt, and, with `--cpu-time`, of processor time, so that other programs do not count. Each run of a
text is in a new llama-server, since its ngram-mod remembers earlier texts; ours knows only the current text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import common
from comparison import peer_tools
from comparison.replay import Recorded, Replay, read, tokens_of
from comparison.runs import Peer, load, run_own
from comparison.server import Server
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import NgramDrafter
from llama_cpp_eagle3.bench.report import Spread, table

SOURCES = {"auto": ("eagle3", "ngram"), "head": ("eagle3",), "text": ("ngram",)}


@dataclass
class Measured:
    """The figures of one text on one side."""

    tokens_per_second: float
    acceptance_length: float
    accepted: str
    """Accepted tokens of the drafted ones, by source."""


Side = Callable[[Recorded], Measured]
_N_WARM = 2  # tokens that are generated before, so that the prompt is in the cache


def index_cost(n_max: int = 1_000_000) -> None:
    """Time one more token of the index, in texts of growing length whose words are as frequent as in a language."""
    words = (np.random.default_rng(0).zipf(1.3, n_max + 3000) % 32000).tolist()
    drafter, n_held = NgramDrafter(), 0
    for n in (10_000, 100_000, n_max):
        start = time.process_time()
        drafter.update(words[:n])
        bulk_ns = 1e9 * (time.process_time() - start) / (n - n_held)
        text, start = words[:n], time.process_time()
        for word in words[n : n + 1000]:
            text.append(word)
            drafter.update(text)
        one_us = 1e3 * (time.process_time() - start)
        start = time.process_time()
        for _ in range(1000):
            drafter.propose(32, 32)
        propose_us, n_held = 1e3 * (time.process_time() - start), n + 1000
        print(
            f"{n} tokens: {bulk_ns:.0f} ns a token, {one_us:.2f} us one by one through Python, "
            f"{propose_us:.2f} us a draft of 32, {drafter.n_bytes() / n:.0f} bytes a token"
        )


def own_side(args: argparse.Namespace, name: str, stack: ExitStack) -> Side:
    """Load our engine with these sources; "plain" drafts nothing."""
    options = {} if name == "plain" else {"draft": "auto", "draft_sources": SOURCES[name]}
    head = None if name == "plain" else args.model_draft
    llm = stack.enter_context(closing(load(args.model, head, args.threads, 0, args.ctx_size, **options)))
    if name != "plain":
        llm.calibrate()
    replay = Replay()

    def run(text: Recorded) -> Measured:
        if args.replay:
            replay.answer = text.answer
            llm.engine.stepper.on_sample = replay
        clock = time.process_time if args.cpu_time else time.perf_counter
        found, _ = run_own(llm, text.prompt, len(text.answer), stop=False, clock=clock)
        stats = llm.last_stats
        accepted = ", ".join(f"{name} {x.accepted}/{x.drafted}" for name, x in stats.by_source.items())
        return Measured(found.tokens_per_second, found.acceptance_length, accepted)

    return run


def server_side(args: argparse.Namespace, name: str, text: Recorded) -> Measured:
    """Run a text on llama-server: "ngram 3", "server 3", "ngram 0"."""
    kind, n_max = name.split()
    other = Peer(peer_tools.get_tools(args.tools), None, args.model, args.model_draft, args.threads, 0, args.ctx_size)
    replay = peer_tools.get_replay() if args.replay else None
    with Server(other, int(n_max), ngram=kind == "ngram", replay=replay) as server:
        if args.replay:
            server.replay([*text.prompt, *text.answer])
        server.run(text.prompt, _N_WARM, fresh=False, stop=False)
        start = server.process_time()
        found = server.run(text.prompt, len(text.answer), fresh=False, stop=False)
        seconds = server.process_time() - start
        if found.tokens + 1 != len(text.answer):
            raise SystemExit(f"llama-server wrote {found.tokens + 1} tokens, expected {len(text.answer)}")
        # count from the first token on, as on our side
        seconds = seconds * found.t_decode / (found.t_prompt + found.t_decode) if args.cpu_time else found.t_decode
        return Measured(found.tokens / seconds, found.acceptance_length, f"{found.accepted}/{found.drafted}")


def texts_of(args: argparse.Namespace) -> list[Recorded]:
    """Return prompts and their texts as tokens: no more than the target was trained for, where llama-server ends."""
    with closing(Eagle3Llama(args.model, vocab_only=True, verbose=False)) as llm:

        def tokenize(text: bytes, begins: bool) -> list[int]:
            return llm.tokenize(text, add_bos=begins, special=True)

        if args.replay:
            texts = [tokens_of(text, tokenize, args.n_predict) for text in read(args.replay, args.n_prompts)]
        else:  # any tokens will do
            prompts = [tokenize(text.encode(), True) for text in common.prompts(args)]
            texts = [Recorded(prompt, [0] * args.n_predict) for prompt in prompts]
        n_ctx = min(args.ctx_size, int(llm.metadata[f"{llm.metadata['general.architecture']}.context_length"]))
    longest = max(len(text.prompt) for text in texts)
    if longest + 2 >= n_ctx:
        raise SystemExit(f"a prompt of {longest} tokens leaves no room for an answer, the context holds {n_ctx}")
    return [Recorded(text.prompt, text.answer[: n_ctx - len(text.prompt) - 1]) for text in texts]


def measure(args: argparse.Namespace, names: list[str]) -> list[dict[str, list[Measured]]]:
    """Return by text: side -> runs."""
    texts = texts_of(args)
    found: list[dict[str, list[Measured]]] = [{name: [] for name in names} for _ in texts]
    with ExitStack() as stack:
        sides: dict[str, Side] = {
            name: partial(server_side, args, name) if " " in name else own_side(args, name, stack) for name in names
        }
        for i in range(args.runs):
            for j, text in enumerate(texts):
                for k in range(len(names)):
                    name = names[(k + i + j) % len(names)]
                    found[j][name].append(sides[name](text))
                    print(f"run {i + 1}, text {j}, {name}: {found[j][name][-1]}", flush=True)
    return found


def section(args: argparse.Namespace, names: list[str], found: list[dict[str, list[Measured]]]) -> common.Section:
    """Return the speeds of each text, and the ratios of all."""
    first, others = names[0], names[1:]

    def speeds(runs: list[Measured]) -> list[float]:
        return [run.tokens_per_second for run in runs]

    rows = [[str(j), *(Spread.of(speeds(text[name])).text() for name in names)] for j, text in enumerate(found)]
    ratios = {
        name: Spread.of(a / b for text in found for a, b in zip(speeds(text[first]), speeds(text[name]), strict=True))
        for name in others
    }
    rows.append([f"{first} / it, all", "", *(ratios[name].text(2) for name in others)])
    note = "The target's own greedy texts"
    if args.replay:
        note = f"**REPLAY**: the target generated the recorded texts of `{args.replay.name}`"
    text = (
        f"{note}, {args.n_predict} tokens each at most, and as the target's context holds. "
        f"Tokens per second{' of processor time' if args.cpu_time else ''} without the prompt; "
        f"medians of {args.runs} runs (lowest - highest), ratios text by text and run by run. 'ngram N': llama-server "
        f"with ngram-mod and, if N, draft-eagle3 with n_max N; 'server N': without ngram-mod.\n\n"
        f"{table(['text', *names], rows)}"
    )
    data = {"texts": [{name: [asdict(run) for run in runs] for name, runs in text.items()} for text in found]}
    kind = args.replay.stem if args.replay else "own"
    return common.Section("text", f"Drafts from text: {kind}", text, data, f"text-{kind}")


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.set_defaults(ctx_size=1024)
    what = p.add_mutually_exclusive_group()
    what.add_argument("--replay", type=Path, help="lines of prompt and answer")
    what.add_argument("--own", action="store_true", help="the target's own greedy texts")
    p.add_argument("--cpu-time", action="store_true", help="count processor time: for a busy machine, with one thread")
    p.add_argument("--sides", default="auto,head,ngram 3", help="of plain, auto, head, text, 'ngram N', 'server N'")
    args = p.parse_args()
    if not args.own and args.replay is None:
        index_cost()
        return
    args.model, args.model_draft = common.pair(args)
    names = args.sides.split(",")
    found = measure(args, names)
    common.finish(args, section(args, names, found), [args.model, args.model_draft])


if __name__ == "__main__":
    main()
