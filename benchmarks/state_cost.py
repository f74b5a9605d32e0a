"""Time a prompt with saved states of recurrent layers and sliding windows and without, in turns.

    python benchmarks/state_cost.py -m FILE --publish

In a long prompt of messages, states are saved where messages begin and every so many tokens; a pass of the target ends
at each. A turn is a short message after such a prompt, with states where it and its answer begin: these save the next
turn, which would evaluate the whole message again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from contextlib import closing

import common
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.engine import Sampling

_N_SYSTEM, _N_MESSAGE, _N_ANSWER = 300, 60, 3


def seconds(llm: Eagle3Llama, tokens: list[int], boundaries: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token, and the number of cached tokens."""
    start = time.perf_counter()
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    sequence = llm.engine.add(tokens, sampling, max_tokens=1, boundaries=boundaries)
    while not sequence.is_done:
        llm.engine.step()
    return time.perf_counter() - start, sequence.n_cached


def measure(args: argparse.Namespace) -> tuple[list[list[str]], int]:
    """Return rows of a table, and the bytes of a state."""
    times: dict[str, dict[str, list[float]]] = {what: {"with": [], "without": []} for what in ("prompt", "turn")}
    n_states: dict[str, int] = {}
    options = {"n_ctx": args.tokens + 512, "n_threads": args.threads, "swa_full": False, "verbose": False}
    rng = random.Random(0)
    for run in range(args.runs):
        for side in ("with", "without") if run % 2 else ("without", "with"):
            common.progress(f"run {run}: {side}")
            kept = {"checkpoint_min_step": args.step} if side == "with" else {"ctx_checkpoints": 0}
            with closing(Eagle3Llama(args.model, draft_sources=(), **options, **kept)) as llm:
                n_vocab = llm.n_vocab()
                prompt = [rng.randrange(n_vocab // 8, n_vocab // 2) for _ in range(args.tokens)]
                turn = [rng.randrange(n_vocab // 8, n_vocab // 2) for _ in range(_N_MESSAGE + _N_ANSWER)]
                seconds(llm, prompt[:64], [])  # the first pass of a process is slower
                llm.engine.clear()
                ends = [_N_SYSTEM, *range(_N_SYSTEM + 400, args.tokens - 400, 400), args.tokens - _N_MESSAGE]
                ends.append(args.tokens - _N_ANSWER)
                times["prompt"][side].append(seconds(llm, prompt, ends)[0])
                n_states[side] = llm.prefix_stats.n_states
                longer = prompt + turn
                found, n_cached = seconds(llm, longer, [*ends, len(prompt), len(longer) - _N_ANSWER])
                assert n_cached >= args.tokens - 1
                times["turn"][side].append(found)
                n_bytes = llm.engine.target.n_state_bytes()
    rows = []
    for what, sides in times.items():
        a, b = (statistics.median(sides[side]) for side in ("with", "without"))
        ratios = [x / y for x, y in zip(sides["with"], sides["without"], strict=True)]
        n = args.tokens if what == "prompt" else _N_MESSAGE + _N_ANSWER
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"
        rows.append(
            [what, f"{n:,}", str(n_states["with"]) if what == "prompt" else "2", f"{a:.3f}", f"{b:.3f}", spread]
        )
    assert n_states["with"] > 0
    assert n_states["without"] == 0
    return rows, n_bytes


def main() -> int:
    p = common.parser(__doc__, runs=5)
    p.add_argument("--tokens", type=int, default=1500, help="of the prompt")
    p.add_argument("--step", type=int, default=400, help="tokens between two states of a prompt at least")
    p.add_argument("--name", help="of the model, in results/")
    args = p.parse_args()
    if args.model is None:
        sys.exit("-m: expected a model with recurrent layers or sliding windows")
    rows, n_bytes = measure(args)
    head = ["what", "tokens", "states", "with them, s", "without, s", "ratio"]
    text = f"{table(head, rows)}\n\nA state has {n_bytes / 2**20:.1f} MiB."
    title = f"What states cost a prompt{f': {args.name}' if args.name else ''}"
    name = f"state_cost-{args.name}" if args.name else ""
    section = common.Section("state_cost", title, text, {"rows": rows, "n_state_bytes": n_bytes}, name)
    common.finish(args, section, [args.model])
    return 0


if __name__ == "__main__":
    sys.exit(main())
