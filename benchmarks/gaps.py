"""How long sequences that generate wait while somebody's long prompt is read.

Seven sequences generate; then a prompt of 4,000 tokens comes in. Told is the longest time between two tokens of a
running sequence until that prompt's first token, relative to a usual round before. `--n-prompt-rows` takes as many rows
of the prompt into a pass instead of what the engine measures; as many as the batch holds is what reading it in one go
would do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import common
import numpy as np

from llama_cpp_eagle3 import Eagle3Llama, planning
from llama_cpp_eagle3.bench.figures import table
from llama_cpp_eagle3.bench.inflate import inflated_pair
from llama_cpp_eagle3.bench.runs import load
from llama_cpp_eagle3.engine import Sampling

_N_RUNNING = 7
_N_USUAL = 12  # rounds before the prompt comes


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.add_argument("--n-prompt", type=int, default=4000, help="tokens of the prompt that comes in")
    p.add_argument("--n-prompt-rows", type=int, nargs="*", default=[0, 512], help="0 = as the engine measures")
    p.add_argument("--folder", type=Path, default=planning.cache_dir() / "inflated", help="for the model files")
    args = p.parse_args()
    if args.model:
        model, head = common.pair(args)
    else:
        found = inflated_pair(args.folder)
        model, head = str(found[0]), str(found[1])
    rows, data = [], []
    for n_prompt_rows in args.n_prompt_rows:
        figures = measure(args, model, head, n_prompt_rows)
        data.append(figures)
        rows.append(
            [
                "measured" if n_prompt_rows == 0 else str(n_prompt_rows),
                f"{1e3 * figures['usual']:.0f}",
                f"{1e3 * figures['longest']:.0f}",
                f"{figures['longest'] / figures['usual']:.2f}",
                f"{figures['reading']:.1f}",
            ]
        )
    head_row = ["prompt rows in a pass", "usual round, ms", "longest gap, ms", "ratio", "prompt read in, s"]
    text = f"{table(head_row, rows)}\n\n{_N_RUNNING} sequences generate, a prompt of {args.n_prompt} tokens comes in."
    common.finish(args, common.Section("gaps", "Beside a long prompt", text, {"runs": data}), [model, head])


def measure(args: argparse.Namespace, model: str, head: str, n_prompt_rows: int) -> dict[str, float]:
    """Seconds: a usual round, the longest gap, and from the prompt's coming in to its first token."""
    n_ctx = (_N_RUNNING + 1) * (args.n_prompt + 256)
    llm: Eagle3Llama = load(
        model, head, args.threads, args.gpu_layers, n_ctx, n_batch=512, n_parallel=_N_RUNNING + 1, draft="auto",
        n_prompt_rows=n_prompt_rows or None,
    )  # fmt: skip
    llm.calibrate()
    engine, rng = llm.engine, np.random.default_rng(0)
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    texts = [llm.tokenize(text.encode(), special=True) for text in common.prompts(args)[:_N_RUNNING]]
    running = [engine.add(text, sampling, max_tokens=4000) for text in texts]
    while not all(s.generated for s in running):
        engine.step()
    times = _step(llm, _N_USUAL)
    long = engine.add(rng.integers(0, 1000, args.n_prompt).tolist(), sampling, max_tokens=1)
    start, gaps = perf_counter(), []
    while not long.generated:
        gaps += _step(llm, 1)
    reading = perf_counter() - start
    assert all(not s.is_done for s in running)
    llm.close()
    return {"usual": float(np.median(times)), "longest": max(gaps), "reading": reading}


def _step(llm: Eagle3Llama, n: int) -> list[float]:
    """Every running sequence gets a token in every step: a step's time is the gap."""
    times = []
    for _ in range(n):
        start = perf_counter()
        llm.engine.step()
        times.append(perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
