"""What a pass over n rows takes with our CPU kernels and with ggml's alone: random weights at the 1B shape.

    python benchmarks/passes.py [--type Q4_0] [-t 2] [--runs 7]

Both sides take turns in one process, on one loaded model; a side's figure is its fastest pass, as other programs only
make passes slower. The last columns compare the logits: ours with ggml's, and the first row with the same row alone.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import llama_cpp
import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from llama_cpp_eagle3 import _core, planning
from llama_cpp_eagle3.bench import random_model

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def decode(llm: llama_cpp.Llama, n_rows: int) -> tuple[float, npt.NDArray[np.float32]]:
    """Seconds of a pass over n_rows tokens of an empty context, and the logits of the first."""
    lib.llama_memory_clear(lib.llama_get_memory(llm.ctx), True)
    batch = lib.llama_batch_init(n_rows, 0, 1)
    batch.n_tokens = n_rows
    for i in range(n_rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i + 1, i, 1, 0, 1
    start = perf_counter()
    failed = lib.llama_decode(llm.ctx, batch)
    logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(llm.ctx, 0), (llm.n_vocab(),)).copy()
    seconds = perf_counter() - start
    lib.llama_batch_free(batch)
    assert not failed
    return seconds, logits


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=random_model.SHAPES, default="1B")
    p.add_argument("--type", choices=random_model.TYPES, default="Q4_0")
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=7)
    args = p.parse_args()

    target, _ = random_model.random_pair(planning.cache_dir() / "random", args.shape, args.type, "Q8_0")
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
    llm = llama_cpp.Llama(str(target), n_ctx=512, n_batch=64, verbose=False, **threads)
    best: dict[tuple[str, int], float] = {}
    logits: dict[tuple[str, int], npt.NDArray[np.float32]] = {}
    for _ in range(args.runs):
        for side in ("ggml", "ours"):
            kernels = _core.CpuKernels(int(llm._model.model)) if side == "ours" else None
            for n in ROWS:
                seconds, logits[side, n] = decode(llm, n)
                best[side, n] = min(best.get((side, n), seconds), seconds)
            if kernels is not None:
                kernels.close()
                used = kernels.why_not or kernels.n_weights
    print(f"{args.shape} {args.type}, {args.threads} threads, ms a pass, best of {args.runs}; ours: {used}")
    print("| rows | ggml | ours | ggml / ours | ours / 1 row | largest difference | row 0 as alone |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for n in ROWS:
        ggml, ours = best["ggml", n] * 1e3, best["ours", n] * 1e3
        difference = np.abs(logits["ours", n] - logits["ggml", n]).max() / np.abs(logits["ggml", n]).max()
        same = np.array_equal(logits["ours", n], logits["ours", 1])
        print(
            f"| {n} | {ggml:.1f} | {ours:.1f} | {ggml / ours:.2f} | {ours / best['ours', 1] / 1e3:.2f} "
            f"| {difference:.0e} | {'yes' if same else 'no'} |"
        )


if __name__ == "__main__":
    main()
