"""Sample text by temperature, with drafts that know the noise of the draw (rng "gumbel") and without ("llama").

All use llama.cpp's default samplers. Every prompt goes through all settings in turn, with the same seed. The acceptance
does not depend on the machine, except with "auto", which drafts what pays there. Speeds are by processor time, without
prompts: use -t 1. --publish writes the table and the plot.

    python benchmarks/sampled.py -t 1 -n 48 --publish
    python benchmarks/inflate.py --shape 1B --type Q4_0 FOLDER
    python benchmarks/sampled.py -t 1 -n 48 -m TARGET -md HEAD --n-prompts 10 --temperatures 0.8 1.0 --drafts plain auto
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import common
from comparison.report import plot_curves
from comparison.runs import load
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.engine import RNGS
from llama_cpp_eagle3.engine.stats import Stats

DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chain of 4": {"draft": "chain", "draft_n_max": 4},
    "tree": {"draft": "tree"},
    "auto": {"draft": "auto", "draft_sources": ("eagle3",)},
}


@dataclass
class Side:
    """Figures of one generator at one temperature."""

    stats: Stats = field(default_factory=Stats)
    seconds: list[float] = field(default_factory=list)
    """Processor time per token, of each text."""


def measure(args: Any, model: str, draft: str, names: list[str]) -> dict[str, dict[float, dict[str, Side]]]:
    """Return draft -> temperature -> generator -> figures; of greedy text there is one generator."""
    found: dict[str, dict[float, dict[str, Side]]] = {name: {} for name in names}
    with ExitStack() as stack:
        llms: Mapping[str, Eagle3Llama] = {
            name: stack.enter_context(
                closing(
                    load(
                        model,
                        None if name == "plain" else draft,
                        *(args.threads, args.gpu_layers, args.ctx_size),
                        **DRAFTS[name],
                    )
                )
            )
            for name in names
        }
        prompts = [llms[names[0]].tokenize(text.encode(), special=True) for text in common.prompts(args)]
        for i in range(args.runs):
            for j, prompt in enumerate(prompts):
                common.progress(f"run {i + 1} of {args.runs}, prompt {j + 1} of {len(prompts)}")
                for name, llm in llms.items():
                    llm.generate_batch([prompt], max_tokens=1)  # all sides continue from an evaluated prompt
                    for t in args.temperatures:
                        sides = found[name].setdefault(t, {rng: Side() for rng in (RNGS if t > 0 else RNGS[:1])})
                        for rng, side in sides.items():
                            start = time.process_time()
                            result = llm.generate_batch(
                                [prompt],
                                max_tokens=args.n_predict,
                                temperature=t,
                                seed=1000 * i + j,
                                rng=rng,
                                ignore_eos=True,
                            )[0]
                            side.seconds.append((time.process_time() - start) / len(result.tokens))
                            side.stats += result.stats
    return found


def _ratio(before: list[float], now: list[float]) -> float:
    """Return the median speed-up of interleaved pairs."""
    return median(a / b for a, b in zip(before, now, strict=True))


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6, 0.8, 1.0, 1.2])
    p.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    args = p.parse_args()
    model, draft = common.pair(args)
    found = measure(args, model, draft, args.drafts)

    rows = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, by_temperature in found.items():
        for t, sides in by_temperature.items():
            lengths = {rng: side.stats.mean_acceptance_length for rng, side in sides.items()}
            for rng in RNGS if name != "plain" else ():
                curves.setdefault(f"{name}, {rng}", []).append((t, lengths.get(rng, lengths[RNGS[0]])))
            seconds = {rng: side.seconds for rng, side in sides.items()}
            plain = found["plain"][t]["gumbel"].seconds if "plain" in found else []
            rows.append(
                [
                    *(name, f"{t:g}", f"{lengths['gumbel']:.2f}", f"{lengths['llama']:.2f}" if t > 0 else ""),
                    f"{len(seconds['gumbel']) / sum(seconds['gumbel']):.1f}",
                    f"{_ratio(plain, seconds['gumbel']):.2f}" if plain else "",
                    f"{_ratio(seconds['llama'], seconds['gumbel']):.2f}" if t > 0 else "",
                ]
            )
    head = ["draft", "temperature", "`gumbel`", "`llama`", "tokens/s", "of plain", "of `llama`"]
    n = len(common.prompts(args))
    text = (
        f"{table(head, rows)}\n\nMean acceptance length by generator, tokens/s with `gumbel`. {n} prompts, "
        f"{args.n_predict} tokens each, llama.cpp's default samplers, runs: {args.runs}, each with seeds of its own. "
        "tokens/s: of the processor's time, prompts apart; ratios are medians of interleaved pairs."
    )
    data = {
        name: {
            f"{t:g}": {
                rng: {"mean_acceptance_length": side.stats.mean_acceptance_length, "cpu_seconds": side.seconds}
                for rng, side in sides.items()
            }
            for t, sides in by_temperature.items()
        }
        for name, by_temperature in found.items()
    }
    common.finish(args, common.Section("sampled", "Sampled text", text, data), [model, draft])
    if args.publish:
        plot_curves(common.HERE / "results" / "sampled.svg", curves, "temperature", "mean acceptance length")


if __name__ == "__main__":
    main()
