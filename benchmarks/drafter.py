"""Time the head's graphs: catching up, steps, levels of a tree, prompts. Random weights, no target runs."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import llama_cpp
import numpy as np
from llama_cpp._logger import set_verbose

import common
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import Spread, table

N_CATCH_UP = (1, 2, 4, 8, 16)
N_LEVEL = (2, 4, 8, 16)
N_PROMPT = 128


class Bench:
    """A drafter at some position of a text, and methods that time its graphs."""

    def __init__(self, args, model: int, draft: str):
        self.drafter = _core.Eagle3Drafter(
            draft, model, args.ctx_size, n_gpu_layers=args.gpu_layers, n_threads=args.threads, n_unroll=args.unroll
        )
        head = self.drafter.head
        self.n_feat = max(len(head.boundaries), 1) * head.n_embd_tgt
        self.n_past, self.n_runs = args.n_past, args.runs
        self.rng = np.random.default_rng(0)
        self.process(self.n_past)

    def process(self, n: int) -> None:
        rows = self.rng.normal(0.0, 1.0, (n, self.n_feat)).astype(np.float32)
        self.drafter.process_rows(rows, [1] * n, self.drafter.n_past())

    def back(self) -> None:
        """Go back to the position that all measurements start from."""
        self.process(self.n_past - self.drafter.truncate(self.n_past))
        common.draft_chain(self.drafter, 2, 1)

    def time(self, call: Callable[[], object], prepare: Callable[[], object]) -> tuple[Spread, Spread]:
        """Return milliseconds of a call, and of its graphs alone."""
        total, graph = [], []
        for _ in range(self.n_runs + 1):
            prepare()
            graph_before, start = self.drafter.t_graph_us, perf_counter_ns()
            call()
            total.append((perf_counter_ns() - start) * 1e-6)
            graph.append((self.drafter.t_graph_us - graph_before) * 1e-3)
        return Spread.of(total[1:]), Spread.of(graph[1:])  # the first call builds graphs

    def rows(self, n_max: int) -> list[list[str]]:
        found: list[tuple[str, tuple[Spread, Spread]]] = []
        drafter = self.drafter

        def accept(n: int) -> None:
            self.back()
            self.process(n)

        def begin(n: int) -> None:
            self.back()
            drafter.begin([0], [2], n)

        for n in N_CATCH_UP:
            found.append(
                (
                    f"catch-up of {n}, 1 draft",
                    self.time(lambda: common.draft_chain(drafter, 2, 1), lambda n=n: accept(n)),
                )
            )
        for n in (1, *N_LEVEL):
            rows = list(range(n))
            found.append(
                (f"level of {n} nodes", self.time(lambda r=rows: drafter.expand(r, 8), lambda n=n: begin(max(n, 8))))
            )
        for n in (1, 4):
            found.append(
                (
                    f"catch-up of {n}, {n_max} drafts",
                    self.time(lambda: common.draft_chain(drafter, 2, n_max), lambda n=n: accept(n)),
                )
            )
        found.append((f"prompt of {N_PROMPT}", self.time(lambda: self.process(N_PROMPT), self.back)))
        return [[name, total.text(3), graph.text(3)] for name, (total, graph) in found]


def main() -> None:
    p = common.parser(__doc__, runs=50)
    common.add_shape(p)
    p.add_argument("--n-past", type=int, default=100, help="length of the text")
    p.add_argument("--draft-n-max", type=int, default=3)
    p.add_argument("--unroll", type=int, default=-1, help="steps of a chain in one graph, -1 = by device")
    args = p.parse_args()
    files = common.pair(args) if args.model else common.random_pair(args)
    set_verbose(False)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = args.gpu_layers
    model = llama_cpp.llama_model_load_from_file(files[0].encode(), params)
    bench = Bench(args, model, files[1])
    rows = bench.rows(args.draft_n_max)
    text = (
        f"{table(['', 'ms', 'of it in ggml'], rows)}\n\nBehind {args.n_past} tokens, on {bench.drafter.device}; "
        f"medians of {args.runs} runs (lowest - highest)."
    )
    section = common.Section("drafter", f"The drafter alone: the {args.shape} shape", text, {"rows": rows})
    common.finish(args, section, files)
    del bench
    llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main()
