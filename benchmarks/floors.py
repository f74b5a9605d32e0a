"""Compare passes with their floors: the bytes that they read and the multiply-adds that they need.

    python benchmarks/floors.py [-m MODEL] [--depths 256,6144] [--rows 1,2,4,8,512] [--kv f16] [-t 2] [--publish]

A pass reads all weights, and K and V of the tokens before it, once; it multiplies each row by all weights (by those of
the output only where logits are asked for: of prompts for the last row), and attends to the tokens before each row.
Weights of quantized types are multiplied as 8-bit integers, others and attention as floats. The floor is the greater of
the bytes at the speed at which as many threads read memory, and the multiply-adds at the speed of a loop that does
nothing else (`comparison/peaks.cpp`), each measured in turns with the passes, so at the clock of the same minute; the
share is floor / time. All figures are the best of their runs, since other programs only make them worse.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import gguf
import numpy as np

import common
from comparison.bandwidth import read_bandwidth, weights_read
from comparison.peaks import Peaks, measure_peaks
from comparison.report import plot_curves
from comparison.runs import n_cores
from depth import BYTES, DEFAULT_MODEL, Cell, Context, cell
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import table
from passes import numbers

N_OUTPUTS = 16
"""Passes of more rows have logits of the last one alone (`depth.Context.decode`)."""
_FLOATS = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16)


@dataclass(frozen=True)
class Work:
    """Weights that each row is multiplied by."""

    ints: int
    floats: int
    output: int
    """Those of the output among them."""


def work(path: str) -> Work:
    """Return the weights that a row of a dense model is multiplied by."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if any("_exps." in name for name in tensors):
        raise SystemExit(f"expected a model without experts, found '{path}'")
    if "output.weight" not in tensors:
        tensors["output.weight"] = tensors["token_embd.weight"]
    matrices = [t for name, t in tensors.items() if name != "token_embd.weight" and len(t.shape) > 1]
    floats = sum(int(t.n_elements) for t in matrices if t.tensor_type in _FLOATS)
    return Work(sum(int(t.n_elements) for t in matrices) - floats, floats, int(tensors["output.weight"].n_elements))


@dataclass
class Pass:
    """A pass over some rows after some tokens, in ms."""

    depth: int
    rows: int
    ms: float
    reading: float
    multiplying: float

    @property
    def share(self) -> float:
        """Of the floor in the time; 1: it could not be faster."""
        return max(self.reading, self.multiplying) / self.ms


def floors(of: Work, n_bytes: int, token: Cell, kv: str, bandwidth: float, peaks: Peaks, p: Pass) -> Pass:
    """Fill in a pass's floors."""
    n_kv = p.depth * (token.n_k + token.n_v) * BYTES[kv]
    n_left_out = of.output * max(0, p.rows - (p.rows if p.rows <= N_OUTPUTS else 1))
    of_ints = (of.ints * p.rows - n_left_out) / peaks.ints
    of_floats = p.rows * (of.floats + token.multiply_adds * (p.depth + (p.rows + 1) / 2)) / peaks.floats
    p.reading = 1e3 * (n_bytes + n_kv) / bandwidth
    p.multiplying = 1e3 * (of_ints + of_floats)
    return p


def measure(path: str, args: argparse.Namespace) -> tuple[list[Pass], float, Peaks]:
    """Return the passes with their floors, bytes per second, and the peaks."""
    llm = common.load_llama_cpp(path, n_ctx=64, n_threads=args.threads)
    context = Context(llm._model.model, max(args.depths) + max(args.rows), args.kv, True, args.threads)
    matrices = _core.model_matrices(int(llm._model.model))
    kernels = _core.CpuKernels(matrices, dict.fromkeys(_core.cpu_kernel_names(), 1 << 30))
    bandwidth, ints, floats = 0.0, 0.0, 0.0
    passes = []
    for depth in args.depths:
        context.fill(depth)
        found = {n: Pass(depth, n, np.inf, 0.0, 0.0) for n in args.rows}
        for run in range(args.runs):
            common.progress(f"after {depth}: run {run}")
            bandwidth = max(bandwidth, read_bandwidth(args.threads, n_mib=256, n_times=2))
            peaks = measure_peaks(args.threads, n_times=1)
            ints, floats = max(ints, peaks.ints), max(floats, peaks.floats)
            for n, p in found.items():
                if n <= N_OUTPUTS or run < args.runs_of_prompts:
                    p.ms = min(p.ms, 1e3 * context.decode(n))
        passes += found.values()
    of, n_bytes, token, peaks = work(path), weights_read(path), cell(llm), Peaks(ints, floats)
    kernels.close()
    context.close()
    llm.close()
    return [floors(of, n_bytes, token, args.kv, bandwidth, peaks, p) for p in passes], bandwidth, peaks


def main() -> None:
    """Print one table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", default=DEFAULT_MODEL, help="a file, or a name of `models`")
    p.add_argument("--depths", type=numbers, default=[256, 6144], metavar="N,N,...")
    p.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 512], metavar="N,N,...", help="at most 512")
    p.add_argument("--kv", choices=BYTES, default="f16")
    p.add_argument("-t", "--threads", type=int, default=n_cores())
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--runs-of-prompts", type=int, default=3, help=f"of passes over more than {N_OUTPUTS} rows")
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    args = p.parse_args()
    path = common.path_of(args.model)
    passes, bandwidth, peaks = measure(path, args)
    header = ["after", "rows", "ms", "tokens/s", "reading, ms", "multiplying, ms", "floor / time"]
    rows = [
        [p.depth, p.rows, f"{p.ms:.1f}", f"{1e3 * p.rows / p.ms:.0f}", f"{p.reading:.1f}", f"{p.multiplying:.1f}",
         f"{p.share:.2f}"]
        for p in passes
    ]  # fmt: skip
    text = (
        f"{args.threads} threads read {bandwidth / 1e9:.0f} GB/s, and multiply and add {peaks.ints / 1e9:.0f} G pairs "
        f"of 8-bit integers or {peaks.floats / 1e9:.0f} G of floats a second.\n\n{table(header, rows)}"
    )
    data = {"bandwidth": bandwidth, "peaks": asdict(peaks), "passes": [asdict(p) | {"share": p.share} for p in passes]}
    common.finish(args, common.Section("floors", "Passes and their floors", text, data), [path])
    if args.publish:
        curves = {
            f"after {depth} tokens": [(float(p.rows), p.share) for p in passes if p.depth == depth]
            for depth in args.depths
        }
        plot_curves(common.HERE / "results" / "floors.svg", curves, "rows of a pass", "floor / time")


if __name__ == "__main__":
    main()
