"""Measure acceptance and speed of the bundled pair: plain decoding and drafts of 1 to 8 tokens in the same engine.

Greedy. Every prompt goes through all settings in turn; then the next run begins.
"""

from __future__ import annotations

from dataclasses import asdict

import common
from comparison.figures import percent
from comparison.runs import Run, run_own, total
from llama_cpp_eagle3.bench.report import Spread, table


def measure(args, model: str, draft: str, n_maxs: list[int]) -> tuple[dict[int, list[Run]], int]:
    """Return the runs of each setting (0 is plain), and the number of prompts whose text is not plain decoding's."""
    plain, drafted = common.engine(args, model, None), common.engine(args, model, draft)
    prompts = [plain.tokenize(text.encode(), special=True) for text in common.prompts(args)]
    runs: dict[int, list[Run]] = {n_max: [] for n_max in n_maxs}
    different = set()
    for i in range(args.runs + 1):
        found: dict[int, list[Run]] = {n_max: [] for n_max in n_maxs}
        for j, prompt in enumerate(prompts):
            common.progress(f"run {i} of {args.runs}, prompt {j + 1} of {len(prompts)}")
            expected = None
            for n_max in n_maxs:
                llm = drafted if n_max else plain
                llm.draft_n_max = n_max
                run, tokens = run_own(llm, prompt, args.n_predict)
                found[n_max].append(run)
                expected = expected or tokens
                if tokens != expected:
                    different.add(j)
            if i == 0 and j == 4:
                break  # the first run warms up
        if i > 0:
            for n_max in n_maxs:
                runs[n_max].append(total(found[n_max]))
    return runs, len(different)


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--draft-n-max", type=int, nargs="+", default=list(range(1, 9)))
    args = p.parse_args()
    model, draft = common.pair(args)
    runs, n_different = measure(args, model, draft, [0, *args.draft_n_max])

    plain = Spread.of(run.tokens_per_second for run in runs[0])
    rows = [["plain", "1.00", "", plain.text(0), "1.00", "", f"{verify_us(runs[0]):.0f}"]]
    for n_max in args.draft_n_max:
        first, speed = runs[n_max][0], Spread.of(run.tokens_per_second for run in runs[n_max])
        drafter = Spread.of(run.t_draft_step for run in runs[n_max])
        rows.append(
            [
                str(n_max),
                f"{first.acceptance_length:.2f}",
                percent(first.acceptance),
                speed.text(0),
                f"{speed.median / plain.median:.2f}",
                f"{drafter.median * 1e6:.0f}",
                f"{verify_us(runs[n_max]):.0f}",
            ]
        )
    head = [
        *("draft_n_max", "mean acceptance length", "accepted", "tokens/s", "of plain"),
        *("drafter µs per step", "verify µs per step"),
    ]
    text = [table(head, rows), ""]
    if 4 in runs:
        run = runs[4][0]
        rates = ", ".join(percent(rate) for rate in run.rates)
        text.append(f"At draft_n_max 4 the 1st to 4th drafted token was accepted in {rates} of {run.steps} steps.")
    n_prompts = len(common.prompts(args))
    text.append(
        f"{n_prompts} prompts, {args.n_predict} tokens each, greedy; medians of {args.runs} interleaved runs (lowest - "
        f"highest). Prompts whose text differed from plain decoding's: {n_different}."
    )
    data = {str(n_max): [asdict(run) for run in found] for n_max, found in runs.items()}
    common.finish(args, common.Section("pair", "The bundled pair", "\n".join(text), data), [model, draft])


def verify_us(runs: list[Run]) -> float:
    """Return the median time inside llama_decode per step."""
    return Spread.of(run.t_verify / run.steps for run in runs).median * 1e6


if __name__ == "__main__":
    main()
