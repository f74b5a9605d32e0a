"""Measure how long decoding sequences wait for a token during the prefill of another, long prompt.

Seven sequences decode; then a prompt of 4,000 tokens arrives. The figures are the longest time between two tokens of a
decoding sequence until that prompt's first token, relative to the median step before it, and gaps relative to the
nearest steps without prefill: texts, drafts and the K/V cache grow meanwhile, so that steps without prefill take longer
too. `--prefill-budget N` puts N rows of the prompt into a step, in place of the number that the engine measures; N =
n_batch is prefill without chunks.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

import common
from comparison.runs import load
from inflate import inflated_pair
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.engine import Sampling
from llama_cpp_eagle3.files.cache_dir import cache_dir

_N_RUNNING = 7
_N_USUAL = 12  # steps before the prompt arrives


@dataclass
class Gaps:
    """Seconds that steps took, in each of which every running sequence gets a token."""

    before: list[float]
    """Steps before the prompt arrives."""
    beside: list[tuple[float, bool]]
    """Steps while the prompt is read, and whether rows of it were in the pass."""

    def row(self, name: str) -> list[str]:
        """Return a row of the table."""
        usual, longest = float(np.median(self.before)), max(seconds for seconds, _ in self.beside)
        ratios = self._ratios()
        return [
            name,
            *(f"{1e3 * t:.0f}" for t in (usual, longest)),
            f"{longest / usual:.2f}",
            *((f"{np.median(ratios):.2f}", f"{max(ratios):.2f}") if ratios else ("-", "-")),
            f"{sum(seconds for seconds, _ in self.beside):.0f}",
        ]

    def _ratios(self) -> list[float]:
        """Divide steps with rows of the prompt by the mean of the nearest ones without, before and after."""
        without = [i for i, (_, reads) in enumerate(self.beside) if not reads]
        if len(without) < 2:
            return []  # every pass had rows of the prompt, as --prefill-budget says
        found = []
        for i, (seconds, reads) in enumerate(self.beside):
            near = [max((j for j in without if j < i), default=None), min((j for j in without if j > i), default=None)]
            known = [self.beside[j][0] for j in near if j is not None]
            if reads and known:
                found.append(seconds / float(np.mean(known)))
        return found


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.add_argument("--n-prompt", type=int, default=4000, help="tokens of the prompt that comes in")
    p.add_argument("--prefill-budget", type=int, nargs="*", default=[0, 512], help="0 = as the engine measures")
    p.add_argument("--cpu-time", action="store_true", help="count processor time: for a busy machine, with one thread")
    p.add_argument("--folder", type=Path, default=cache_dir() / "inflated", help="for the model files")
    args = p.parse_args()
    model, head = common.pair(args) if args.model else map(str, inflated_pair(args.folder)[:2])
    rows, data = [], []
    for prefill_budget in args.prefill_budget:
        gaps = measure(args, model, head, prefill_budget)
        rows.append(gaps.row("measured" if prefill_budget == 0 else str(prefill_budget)))
        data.append({"prefill_budget": prefill_budget, **asdict(gaps)})
    titles = [
        "prompt rows in a pass", "step before, ms", "longest gap, ms", "ratio", "gap / steps in between, median",
        "longest", "prompt read in, s",
    ]  # fmt: skip
    text = (
        f"{table(titles, rows)}\n\n{_N_RUNNING} sequences generate, a prompt of {args.n_prompt} tokens comes in. "
        f"The step before is a median.{' Times are of the processor, not of the wall.' if args.cpu_time else ''}"
    )
    common.finish(args, common.Section("gaps", "Beside a long prompt", text, {"runs": data}), [model, head])


def measure(args: argparse.Namespace, model: str, head: str, prefill_budget: int) -> Gaps:
    """Run once, from the prompt's arrival to its first token."""
    n_ctx = (_N_RUNNING + 1) * (args.n_prompt + 256)
    llm: Eagle3Llama = load(
        model, head, args.threads, args.gpu_layers, n_ctx, n_batch=512, n_parallel=_N_RUNNING + 1, draft="auto",
        prefill_budget=prefill_budget or None,
    )  # fmt: skip
    llm.calibrate()
    engine, rng = llm.engine, np.random.default_rng(0)
    now = process_time if args.cpu_time else perf_counter

    def step() -> float:
        start = now()
        engine.step()
        return now() - start

    sampling = Sampling(temperature=0.0, ignore_eos=True)
    texts = [llm.tokenize(text.encode(), special=True) for text in common.prompts(args)[:_N_RUNNING]]
    running = [engine.add(text, sampling, max_tokens=4000) for text in texts]
    while not all(s.generated for s in running):
        engine.step()
    gaps = Gaps([step() for _ in range(_N_USUAL)], [])
    long = engine.add(rng.integers(0, 1000, args.n_prompt).tolist(), sampling, max_tokens=1)
    while not long.generated:
        n_past = long.n_past
        seconds = step()
        gaps.beside.append((seconds, long.n_past > n_past))
    assert not any(s.is_done for s in running)
    llm.close()
    return gaps


if __name__ == "__main__":
    main()
