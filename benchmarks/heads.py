"""Time drafting with kinds of heads: step by step, in one pass (P-EAGLE), and with latent attention (MLA).

Random weights; no target runs, so the head is in the processor's caches as far as it fits.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

import llama_cpp
import numpy as np
from llama_cpp._logger import set_verbose

import common
import random_model
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.files.cache_dir import cache_dir

N_DRAFT = (1, 2, 3, 4, 7, 8, 15)
N_ACCEPTED = 2


class Bench:
    """A drafter after a text."""

    def __init__(self, args, model: int, draft: str):
        self.drafter = _core.Eagle3Drafter(
            draft, model, args.ctx_size, n_gpu_layers=args.gpu_layers, n_threads=args.threads
        )
        self.rng, self.n_past = np.random.default_rng(0), args.n_past
        self.process(self.n_past)

    def process(self, n: int) -> None:
        rows = self.rng.normal(0.0, 1.0, (n, 3 * self.drafter.head.n_embd_tgt)).astype(np.float32)
        self.drafter.process_rows(rows, [1] * n, self.drafter.n_past())

    def draft(self, n: int) -> float:
        """Return milliseconds of drafting n tokens after a step in which some were accepted."""
        self.process(self.n_past - self.drafter.truncate(self.n_past))
        common.draft_chain(self.drafter, 2, 1)
        self.process(N_ACCEPTED + 1)
        start = perf_counter_ns()
        common.draft_chain(self.drafter, 2, n)
        return (perf_counter_ns() - start) * 1e-6


def main() -> None:
    p = common.parser(__doc__, runs=20)
    p.add_argument("--shape", choices=random_model.SHAPES, default="1B")
    p.add_argument("--types", nargs="+", choices=random_model.TYPES, default=["Q4_0", "F16"], help="of the heads")
    p.add_argument("--kinds", nargs="+", choices=random_model.HEADS, default=random_model.HEADS)
    p.add_argument("--draft-vocab", type=int, nargs="+", default=[], help="also EAGLE-3 heads with so many tokens")
    p.add_argument("--n-past", type=int, default=100, help="length of the text")
    args = p.parse_args()
    set_verbose(False)
    folder, shape = cache_dir() / "random", random_model.SHAPES[args.shape]
    folder.mkdir(parents=True, exist_ok=True)
    target = args.model or str(random_model.random_pair(folder, args.shape, "Q4_0", args.types[0])[0])
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = args.gpu_layers
    model = llama_cpp.llama_model_load_from_file(target.encode(), params)
    rows, data, files = [], {}, [target]
    for ftype in args.types:
        benches = {}
        kinds = {kind: (kind, shape) for kind in args.kinds}
        kinds |= {f"eagle3, {n} tokens": ("eagle3", replace(shape, n_vocab_dft=n)) for n in args.draft_vocab}
        for name, (kind, sizes) in kinds.items():
            path = folder / f"random-{args.shape}-{name.replace(', ', '-').replace(' ', '-')}-{ftype}.gguf"
            if not path.exists():
                random_model.write_head(path, sizes, ftype, kind)
            files.append(str(path))
            benches[name] = Bench(args, model, str(path))
        times: dict[str, dict[int, list[float]]] = {kind: {n: [] for n in N_DRAFT} for kind in benches}
        for i in range(args.runs + 2):
            for n in N_DRAFT:
                for kind, bench in benches.items():
                    t = bench.draft(n)
                    if i >= 2:  # graphs are built and caches warm then
                        times[kind][n].append(t)
        for kind, found in times.items():
            rows.append([ftype, kind, *(Spread.of(found[n]).text(1) for n in N_DRAFT)])
        data[ftype] = times
    text = (
        f"{table(['type', 'head', *(f'{n} tokens' for n in N_DRAFT)], rows)}\n\nMilliseconds for drafting so many "
        f"tokens after {args.n_past} others, {N_ACCEPTED + 1} rows of the target to catch up with; on "
        f"{next(iter(benches.values())).drafters[0].device}; medians of {args.runs} runs (lowest - highest), taken in "
        "turn."
    )
    benches.clear()
    common.finish(
        args, common.Section("heads", f"Kinds of heads: the {args.shape} shape", text, {"times": data}), files
    )
    del bench
    llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main()
