"""Time our CPU kernels on weights that lie in the second cache, where they never wait for the memory.

    python benchmarks/in_cache.py [--kernels q4_K/avx2 q6_K/avx2] [--rows 1,4,8] [--publish]

One thread multiplies rows by a small matrix and by a larger one of random bytes; a figure is the difference of their
fastest runs. Where it is below the time in which the memory brings the same weights, a pass waits for the memory, else
for arithmetic. A pass's threads share the memory, so its bandwidth is given for one thread and for all.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import gguf
import numpy as np

import common
from comparison.bandwidth import read_bandwidth
from comparison.runs import n_cores
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import table

SIZES = {int(type): size for type, size in gguf.GGML_QUANT_SIZES.items()} | {42: (64, 18)}
"""Values and bytes of a block by type. The gguf package does not know Q2_0 (42) yet."""
N_IN = 1536
N_OUT = (64, 320)
"""Channels of the two matrices; the larger one has 0.1 to 0.5 MB."""


def fastest(kernel: str, weights: bytes, n_rows: int, n_runs: int) -> float:
    """Return the seconds of the fastest of several products."""
    x = np.random.default_rng(0).standard_normal((n_rows, N_IN), dtype=np.float32)
    best = np.inf
    for _ in range(n_runs):
        start = perf_counter()
        _core.cpu_kernel_mul_mat(kernel, weights, x)
        best = min(best, perf_counter() - start)
    return best


def main() -> None:
    """Print one table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kernels = _core.cpu_kernel_names()
    quantized = [kernel for kernel in kernels if kernel[0] not in "bf"]
    p.add_argument("--kernels", nargs="+", choices=kernels, default=quantized)
    p.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 8], metavar="N,N,...")
    p.add_argument("--runs", type=int, default=500)
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    p.set_defaults(threads=1)
    args = p.parse_args()
    of_one, of_all = (read_bandwidth(n, n_mib=256, n_times=3) for n in (1, n_cores()))
    rows: list[list[str]] = []
    data: dict[str, object] = {"bandwidth": [of_one, of_all]}
    for kernel in args.kernels:
        common.progress(kernel)
        n_values, n_bytes = SIZES[_core.cpu_kernel_format(kernel)[0]]
        sizes = [n * N_IN // n_values * n_bytes for n in N_OUT]
        small, large = (np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes() for size in sizes)
        speeds = [
            (sizes[1] - sizes[0]) / (fastest(kernel, large, n, args.runs) - fastest(kernel, small, n, args.runs))
            for n in args.rows
        ]
        rows.append([kernel, str(n_bytes), *(f"{n_bytes / speed * 1e9:.1f} ({speed / 1e9:.1f})" for speed in speeds)])
        data[kernel] = dict(zip(map(str, args.rows), speeds, strict=True))
    header = ["kernel", "bytes of a block", *(f"{n} rows" if n > 1 else "1 row" for n in args.rows)]
    text = (
        "Nanoseconds of a block of weights, in parentheses GB/s of weights, on one thread. Memory gives "
        f"{of_one / 1e9:.1f} GB/s to one thread and {of_all / 1e9:.1f} to {n_cores()}.\n\n{table(header, rows)}"
    )
    common.finish(args, common.Section("in_cache", "Kernels on weights in the cache", text, data), [])


if __name__ == "__main__":
    main()
