"""Drafts from text: what the index costs per token, and recorded texts replayed against llama-server with ngram-mod.

Everything is computed in a replay, only what is drawn from the target is replaced; on both sides. Speeds are tokens per
second of processor time of one thread, so that other programs do not count, without the prompt. More than one run of a
conversation is more than llama-server's ngram-mod should have: it remembers what it wrote.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

import numpy as np

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import TextDrafter
from llama_cpp_eagle3.bench import machine, peer
from llama_cpp_eagle3.bench.replay import Recorded, Replay, read, tokens_of
from llama_cpp_eagle3.bench.runs import Peer, load, run_own
from llama_cpp_eagle3.bench.server import Server

SOURCES = {"auto": ("head", "text"), "head": ("head",), "text": ("text",)}
Side = Callable[[Recorded], tuple[float, float, str]]
"""Text -> tokens per second of processor time, mean acceptance length, and what was accepted of which source."""


def index_cost(n_max: int = 1_000_000) -> None:
    """Processor time of one more token, at texts of growing length with words as frequent as words are."""
    words = (np.random.default_rng(0).zipf(1.3, n_max + 3000) % 32000).tolist()
    drafter, n_held = TextDrafter(), 0
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
    """Our engine, with these sources; "plain" drafts nothing."""
    options = {} if name == "plain" else {"draft": "auto", "draft_sources": SOURCES[name]}
    head = None if name == "plain" else args.model_draft
    llm = stack.enter_context(closing(load(args.model, head, args.threads, 0, args.ctx_size, **options)))
    llm.calibrate()
    replay = Replay()

    def run(text: Recorded) -> tuple[float, float, str]:
        replay.answer = text.answer
        llm.engine.on_draw = replay
        start = time.process_time()
        found, _ = run_own(llm, text.prompt, len(text.answer), fresh=False, stop=False)
        seconds = time.process_time() - start
        stats = llm.last_stats
        accepted = f"head {stats.head_accepted}/{stats.head_drafted}, text {stats.text_accepted}/{stats.text_drafted}"
        return found.tokens / seconds, found.acceptance_length, accepted

    return run


def server_side(args: argparse.Namespace, name: str, stack: ExitStack) -> Side:
    """llama-server: "ngram 3", "server 3", "ngram 0"."""
    kind, n_max = name.split()
    other = Peer(peer.get_tools(args.tools), None, args.model, args.model_draft, args.threads, 0, args.ctx_size)
    server = Server(other, int(n_max), ngram=kind == "ngram", replay=peer.get_replay())
    stack.enter_context(server)

    def run(text: Recorded) -> tuple[float, float, str]:
        server.say([*text.prompt, *text.answer])
        start = server.process_time()
        found = server.run(text.prompt, len(text.answer), fresh=False, stop=False)
        seconds = server.process_time() - start
        return found.tokens / seconds, found.acceptance_length, f"{found.accepted}/{found.drafted}"

    return run


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("-m", "--model")
    p.add_argument("-md", "--model-draft")
    p.add_argument("--replay", type=Path, help="lines of prompt and answer; without it the index is measured alone")
    p.add_argument("--first", type=int, default=0, help="number of the first conversation")
    p.add_argument("--n-prompts", type=int, default=2)
    p.add_argument("-n", "--n-predict", type=int, default=64)
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("-c", "--ctx-size", type=int, default=1024)
    p.add_argument("-t", "--threads", type=int, default=1)
    p.add_argument("--sides", default="auto,head,ngram 3", help="of plain, auto, head, text, 'ngram N', 'server N'")
    p.add_argument("--tools", help=f"folder of llama.cpp's tools (or {peer.ENV_TOOLS})")
    p.add_argument("--json", type=Path, help="append a line of figures for each conversation")
    args = p.parse_args()
    if args.replay is None:
        index_cost()
        return
    names = args.sides.split(",")
    with ExitStack() as stack:
        sides = {name: (server_side if " " in name else own_side)(args, name, stack) for name in names}
        with closing(Eagle3Llama(args.model, vocab_only=True, verbose=False)) as llm:
            texts = [
                tokens_of(text, lambda t, begins: llm.tokenize(t, add_bos=begins, special=True), args.n_predict)
                for text in read(args.replay)[args.first : args.first + args.n_prompts]
            ]
        for j, text in enumerate(texts):
            found: dict[str, list[float]] = {name: [] for name in names}
            for side in sides.values():  # a draft from all texts of a process must not know this one: only the prompt
                side(Recorded(text.prompt, text.answer[:2]))
            for i in range(args.runs):
                for k in range(len(names)):
                    name = names[(k + i) % len(names)]
                    speed, length, accepted = sides[name](text)
                    found[name].append(speed)
                    print(
                        f"REPLAY {args.replay.stem} {args.first + j}, {name}: {speed:.1f} tokens/s, "
                        f"{length:.2f} tokens a round, accepted {accepted}",
                        flush=True,
                    )
            ratios = {n: median(found[names[0]]) / median(found[n]) for n in names[1:]}
            print(f"  {names[0]} over: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
            if args.json is not None:
                line = {"replay": args.replay.stem, "conversation": args.first + j, "tokens": len(text.answer)}
                line |= {"tokens_per_second": found, **machine.describe(args.threads)}
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
