"""Time a pass over n rows with our CPU kernels and with ggml's alone, beside the time of reading the weights.

    python benchmarks/passes.py [--type Q4_0 Q8_0] [--rows 1,2,4,8,16] [--n-past 2000] [-t 2] [--runs 7] [--publish]
    python benchmarks/passes.py --file MODEL.gguf --kernel q4_0x8/avx2

The model has random weights of some shape, or is a file. Both sides take turns in one process, on one loaded model; a
side's figure is its fastest pass, and so is reading's, as other programs only make them slower. Our kernels are used
for any number of rows. The last columns compare the logits: ours with ggml's, and the first row with the same row
alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import gguf
import llama_cpp
import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

import common
import random_model
from comparison.bandwidth import read_bandwidth
from comparison.report import plot_curves
from inflate import quantize_target
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.files.cache_dir import cache_dir

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def decode(
    llm: llama_cpp.Llama, n_past: int, n_rows: int, clock: Callable[[], float]
) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the seconds of a pass over n_rows tokens after n_past others, and the logits of the first row."""
    lib.llama_memory_seq_rm(lib.llama_get_memory(llm.ctx), 0, n_past, -1)
    batch = lib.llama_batch_init(n_rows, 0, 1)
    batch.n_tokens = n_rows
    for i in range(n_rows):
        pos = n_past + i
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i + 1, pos, 1, 0, 1
    start = clock()
    failed = lib.llama_decode(llm.ctx, batch)
    logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(llm.ctx, 0), (llm.n_vocab(),)).copy()
    seconds = clock() - start
    lib.llama_batch_free(batch)
    assert not failed
    return seconds, logits


def random_target(shape: str, ftype: str, n_threads: int) -> Path:
    """Return a file with random weights; types that random_model does not write are quantized from F16 by llama.cpp."""
    folder = cache_dir() / "random"
    if ftype in random_model.TYPES:
        return random_model.random_pair(folder, shape, ftype, "Q8_0")[0]
    path = folder / f"{shape}-{ftype}-quantized.gguf"
    if not path.exists():
        quantize_target(random_model.random_pair(folder, shape, "F16", "Q8_0")[0], path, ftype, n_threads)
    return path


def n_bytes_read(path: Path) -> int:
    """Return the bytes of all weights that a pass multiplies by (all experts included)."""
    tensors = {str(t.name): int(t.n_bytes) for t in gguf.GGUFReader(path).tensors}
    if "output.weight" in tensors:  # a pass then reads only some rows of the embedding table
        tensors.pop("token_embd.weight", None)
    return sum(tensors.values())


def numbers(text: str) -> list[int]:
    """Parse N,N,..."""
    return [int(part) for part in text.split(",")]


@dataclass
class Passes:
    """Figures of one file: milliseconds of a pass by side and rows, and the differences of the logits."""

    path: Path
    kernels: dict[str, int]
    reading_ms: float
    """Bytes of the weights, divided by the measured read bandwidth."""
    times_ms: dict[str, dict[int, float]]
    differences: dict[int, float]
    """Largest difference of our logits from ggml's, relative to the largest logit."""
    as_alone: dict[int, bool]

    def rows(self) -> list[list[str]]:
        """Return the rows of the table."""
        ggml, ours = self.times_ms["ggml"], self.times_ms["ours"]
        first = min(ours)
        return [
            [
                f"{n}",
                f"{ggml[n]:.1f}",
                f"{ours[n]:.1f}",
                f"{ggml[n] / ours[n]:.2f}",
                f"{ours[n] / ours[first]:.2f}",
                f"{ours[n] / self.reading_ms:.2f}",
                f"{self.differences[n]:.0e}",
                "yes" if self.as_alone[n] else "no",
            ]
            for n in ours
        ]


def measure(path: Path, args: argparse.Namespace) -> Passes:
    """Time both sides in turns."""
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
    n_rows_max = max(args.rows)
    n_batch = max(64, n_rows_max)
    sizes = {"n_ctx": max(512, args.n_past + n_rows_max), "n_batch": n_batch, "n_ubatch": n_batch}
    llm = common.load_llama_cpp(str(path), **sizes, **threads)
    matrices = _core.model_matrices(int(llm._model.model))
    clock = process_time if args.cpu_time else perf_counter
    limits = dict.fromkeys(args.kernel or _core.cpu_kernel_names(), n_rows_max)
    best: dict[str, dict[int, float]] = {"ggml": {}, "ours": {}}
    logits: dict[str, dict[int, npt.NDArray[np.float32]]] = {"ggml": {}, "ours": {}}
    used: dict[str, int] = {}
    for n in range(0, args.n_past, n_batch):
        decode(llm, n, min(n_batch, args.n_past - n), clock)
    bandwidth = 0.0  # the best run's: programs on other machines may take bandwidth from one second to the next
    for _ in range(args.runs):
        bandwidth = max(bandwidth, read_bandwidth(args.threads, n_mib=256, n_times=2))
        for side in best:
            kernels = _core.CpuKernels(matrices, limits) if side == "ours" else None
            for n in args.rows:
                seconds, logits[side][n] = decode(llm, args.n_past, n, clock)
                best[side][n] = min(best[side].get(n, 1e3 * seconds), 1e3 * seconds)
            if kernels is not None:
                kernels.close()
                used = dict(kernels.n_weights)
    llm.close()
    ours, ggml = logits["ours"], logits["ggml"]
    return Passes(
        path,
        used,
        n_bytes_read(path) / bandwidth * 1e3,
        best,
        {n: float(np.abs(ours[n] - ggml[n]).max() / np.abs(ggml[n]).max()) for n in ours},
        {n: bool(np.array_equal(ours[n], ours[min(ours)])) for n in ours},
    )


def main() -> None:
    """Print a table for each file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--file", type=Path, help="a GGUF file instead of random weights")
    p.add_argument("--shape", choices=random_model.SHAPES, default="1B")
    p.add_argument("--type", nargs="+", default=["Q4_0"], help="Q4_0, Q4_K_M, Q8_0, ...: types of llama-quantize")
    p.add_argument("--kernel", action="append", choices=_core.cpu_kernel_names(), help="these alone (default: all)")
    p.add_argument("--rows", type=numbers, default=ROWS, metavar="N,N,...")
    p.add_argument("--n-past", type=int, default=0, help="tokens before the pass (default: none)")
    p.add_argument("--cpu-time", action="store_true", help="the processor's time of all threads, not the wall's")
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    args = p.parse_args()

    files = {str(args.file.name): args.file} if args.file else {}
    if not files:
        files = {ftype: random_target(args.shape, ftype, args.threads) for ftype in args.type}
    found = {}
    for name, path in files.items():
        common.progress(name)
        found[name] = measure(path, args)
    header = ["rows", "ggml", "ours", "ggml / ours", "ours / 1 row", "ours / reading", "largest difference", "as alone"]
    parts = [f"Milliseconds of a pass after {args.n_past} tokens, the fastest of {args.runs}, by turns."]
    for name, passes in found.items():
        kernels = ", ".join(f"{kernel} ({n})" for kernel, n in passes.kernels.items()) or "none"
        about = f"Kernels (weights): {kernels}. Reading the weights takes {passes.reading_ms:.1f} ms."
        parts += [f"### {name}", about, table(header, passes.rows())]
    variant = "passes" if not args.n_past else f"passes-{args.n_past}"
    section = common.Section(
        "passes",
        "Passes by rows",
        "\n\n".join(parts),
        {name: asdict(passes) | {"path": passes.path.name} for name, passes in found.items()},
        variant,
    )
    common.finish(args, section, [str(path) for path in files.values()])
    if args.publish:
        curves = {
            f"{name}, {side}": [(float(n), t / passes.reading_ms) for n, t in times.items()]
            for name, passes in found.items()
            for side, times in reversed(passes.times_ms.items())
        }
        plot_curves(
            common.HERE / "results" / f"{variant}.svg", curves, "rows of a pass", "time over reading the weights"
        )


if __name__ == "__main__":
    main()
