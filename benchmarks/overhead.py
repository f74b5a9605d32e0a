"""Measure the time of a step outside ggml and llama_decode: Python, bindings, bookkeeping, greedy sampling."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import common
import llama_cpp_eagle3
from comparison.runs import Run, load, run_own, total
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.engine import DraftSettings, Engine, Sampling

PARTS = {
    "together": lambda run: run.t_overhead_step * run.steps,
    "drafter in C++, outside its graphs": lambda run: run.t_propose + run.t_process - run.t_graph,
    "around the drafter (Python, trimming)": lambda run: run.t_draft - run.t_propose - run.t_process,
    "sampling": lambda run: run.t_sample,
    "the rest (loop, generators, around llama_decode)": lambda run: (
        run.t_decode - run.t_verify - run.t_draft - run.t_sample
    ),
}

_PACKAGE = str(Path(llama_cpp_eagle3.__file__).parent)
_N_PARALLEL = 8


def calls_of_steps(engine: Engine, n_steps: int) -> float:
    """Return how many of our functions a step calls: of Python, and of C++ from Python. A clock has no part in it."""
    n_calls = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal n_calls
        if frame.f_code.co_filename.startswith(_PACKAGE):
            # comprehensions are functions in older Pythons alone
            n_calls += event == "call" and not frame.f_code.co_name.startswith("<")
            n_calls += event == "c_call" and called.__module__ == "llama_cpp_eagle3._core"

    sys.setprofile(count)
    try:
        for _ in range(n_steps):
            engine.step()
    finally:
        sys.setprofile(None)
    return n_calls / n_steps


def _step_of_many(args: argparse.Namespace, model: str, draft: str, prompts: list[list[int]], draft_on: bool) -> Spread:
    """Return the seconds per sequence and step outside ggml and llama_decode, while all slots are taken."""
    llm = load(
        model, draft, args.threads, args.gpu_layers, _N_PARALLEL * args.ctx_size, draft="chain", n_parallel=_N_PARALLEL
    )
    engine, settings = llm.engine, DraftSettings(mode="chain" if draft_on else "off", n_max=args.draft_n_max)
    times = []
    for _ in range(args.runs + 1):
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        sequences = [engine.add(p, sampling, max_tokens=args.n_predict, draft=settings) for p in prompts[:_N_PARALLEL]]
        while not all(s.generated for s in sequences):
            engine.step()
        n_steps, start = 0, perf_counter()
        t_us = engine.target.t_decode_us + llm.drafters[0].t_graph_us
        while not any(s.is_done for s in sequences):
            engine.step()
            n_steps += len(sequences)
        t_us = engine.target.t_decode_us + llm.drafters[0].t_graph_us - t_us
        times.append((perf_counter() - start - 1e-6 * t_us) / n_steps)
        engine.drop(sequences)
    llm.close()
    return Spread.of(times[1:])


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--draft-n-max", type=int, default=3)
    args = p.parse_args()
    model, draft = common.pair(args)
    llm = common.engine(args, model, draft)
    llm.draft_n_max = args.draft_n_max
    prompts = [llm.tokenize(text.encode(), special=True) for text in common.prompts(args)]
    run_own(llm, prompts[0], args.n_predict)
    runs: list[Run] = []
    for i in range(args.runs):
        common.progress(f"run {i + 1} of {args.runs}")
        runs.append(total(run_own(llm, prompt, args.n_predict)[0] for prompt in prompts))
    many = [_step_of_many(args, model, draft, prompts, draft_on) for draft_on in (False, True)]
    rows = [[name, Spread.of(part(run) / run.steps for run in runs).text(1, 1e-6)] for name, part in PARTS.items()]
    text = (
        f"{table(['', 'µs per step'], rows)}\n\n{len(prompts)} prompts, {args.n_predict} tokens each, greedy, "
        f"draft_n_max {args.draft_n_max}; medians of {args.runs} runs (lowest - highest).\n\n"
        f"With {_N_PARALLEL} sequences, per sequence and step: {many[0].text(1, 1e-6)} µs without drafts, "
        f"{many[1].text(1, 1e-6)} µs with chains."
    )
    data = {"runs": [asdict(run) for run in runs], f"seconds_with_{_N_PARALLEL}": [asdict(m) for m in many]}
    common.finish(args, common.Section("overhead", "Our own time per step", text, data), [model, draft])


if __name__ == "__main__":
    main()
