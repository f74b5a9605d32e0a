"""Measure the bundled head in every type that `quantize` writes: size, drafting time, acceptance.

Greedy, with one draft length. Every prompt goes through all types in turn; then the next run begins.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import common
from comparison.figures import percent
from comparison.runs import Run, run_own, total
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3_heads.convert import quantize

TYPES = ("f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0")


def measure(args, model: str, heads: dict[str, Path]) -> dict[str, list[Run]]:
    """Return the runs of each type."""
    engines = {kind: common.engine(args, model, str(path)) for kind, path in heads.items()}
    for llm in engines.values():
        llm.draft_n_max = args.draft_n_max
    texts = common.prompts(args)
    runs: dict[str, list[Run]] = {kind: [] for kind in heads}
    for i in range(args.runs + 1):
        found: dict[str, list[Run]] = {kind: [] for kind in heads}
        for j, text in enumerate(texts):
            common.progress(f"run {i} of {args.runs}, prompt {j + 1} of {len(texts)}")
            for kind, llm in engines.items():
                prompt = llm.tokenize(text.encode(), special=True)
                found[kind].append(run_own(llm, prompt, args.n_predict)[0])
            if i == 0 and j == 1:
                break  # the first run warms up
        if i > 0:
            for kind in heads:
                runs[kind].append(total(found[kind]))
    return runs


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.add_argument("--draft-n-max", type=int, default=4)
    args = p.parse_args()
    model, draft = common.pair(args)
    with tempfile.TemporaryDirectory() as folder:
        heads = {kind: quantize(draft, Path(folder) / f"{kind}.gguf", kind) for kind in TYPES}
        sizes = {kind: path.stat().st_size for kind, path in heads.items()}
        runs = measure(args, model, heads)

    rows = []
    for kind, found in runs.items():
        drafter = Spread.of(run.t_draft_step for run in found)
        first = found[0]
        rows.append(
            [
                kind,
                f"{sizes[kind] / 1e6:.1f}",
                f"{drafter.median * 1e6:.0f}",
                f"{first.acceptance_length:.2f}",
                percent(first.acceptance),
                percent(first.rates[0]),
                Spread.of(run.tokens_per_second for run in found).text(0),
            ]
        )
    head = ["type", "MB", "drafter µs per step", "mean acceptance length", "accepted", "1st token", "tokens/s"]
    text = "\n".join(
        [
            table(head, rows),
            "",
            f"{len(common.prompts(args))} prompts, {args.n_predict} tokens each, drafts of {args.draft_n_max}, greedy; "
            f"medians of {args.runs} interleaved runs (lowest - highest).",
        ]
    )
    data = {kind: [asdict(run) for run in found] for kind, found in runs.items()}
    common.finish(args, common.Section("quantize_head", "Types of the head", text, data), [model, draft])


if __name__ == "__main__":
    main()
