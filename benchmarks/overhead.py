"""What a round takes outside ggml and llama_decode: Python, bindings, bookkeeping, greedy sampling."""

from __future__ import annotations

from dataclasses import asdict

import common

from llama_cpp_eagle3.bench.figures import Spread, table
from llama_cpp_eagle3.bench.runs import Run, run_own, total

PARTS = {
    "together": lambda run: run.t_overhead_round * run.rounds,
    "drafter in C++, outside its graphs": lambda run: run.t_propose + run.t_process - run.t_graph,
    "around the drafter (Python, trimming)": lambda run: run.t_draft - run.t_propose - run.t_process,
    "sampling": lambda run: run.t_sample,
    "the rest (loop, generators, around llama_decode)": lambda run: (
        run.t_decode - run.t_verify - run.t_draft - run.t_sample
    ),
}


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
    rows = [[name, Spread.of(part(run) / run.rounds for run in runs).text(1, 1e-6)] for name, part in PARTS.items()]
    text = (
        f"{table(['', 'µs per round'], rows)}\n\n{len(prompts)} prompts, {args.n_predict} tokens each, greedy, "
        f"draft_n_max {args.draft_n_max}; medians of {args.runs} runs (lowest - highest)."
    )
    data = {"runs": [asdict(run) for run in runs]}
    common.finish(args, common.Section("overhead", "Our own time per round", text, data), [model, draft])


if __name__ == "__main__":
    main()
