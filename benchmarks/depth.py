"""Time passes after a long context: by depth, rows, type of K/V, flash attention and side, beside lower bounds.

    python benchmarks/depth.py [-m MODEL] [--depths 256,6144] [--rows 1,8,512] [--kv f16 q8_0] [--flash on off]
    python benchmarks/depth.py --shape sinks latent Qwen3.5-0.8B --depths 256,6144 --kv f16 --flash on
    python benchmarks/depth.py [-m MODEL] --prompts 6144,16384 [--kv f16] [--passes 5]

Both sides take turns in one process on one loaded model; a figure is the fastest of several passes. The context is
filled with copies of its first 512 tokens, moved to the positions after them, since a pass's time does not depend on
the cached values; evaluating a long prompt for each setting would take minutes. Recurrent states cannot be moved, and
windows lack the first tokens: both are evaluated, and passes over states stay in the context. Without flash attention
llama.cpp quantizes K alone. --shape: random weights of random_model, in Q4_0.

`growth` is the extra time of a pass over that after the first depth. Its floor is the greater of two: reading K and V
of the tokens between once, and their multiply-adds at the speed of NumPy's float32 matrix products with as many
threads. Only layers that attend to all tokens count, as windows and recurrent states do not grow.

--prompts: seconds of whole prompts. Of their passes of 512 rows some are timed, after contexts from nothing to the last
pass's, and those between are interpolated, as attention's time grows with the depth. Ours have flash attention; ggml's
are timed with and without, and the faster one counts.
"""

from __future__ import annotations

import argparse
import ctypes
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import llama_cpp
import llama_cpp.llama_cpp as lib
import numpy as np

import common
import random_model
from comparison.bandwidth import read_bandwidth
from comparison.report import plot_curves
from comparison.runs import n_cores
from llama_cpp_eagle3 import _core, models
from llama_cpp_eagle3.bench.report import table
from passes import numbers, random_target

N_BATCH = 512
DEFAULT_MODEL = "qwen2.5-coder-1.5b"
TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0, "q4_0": llama_cpp.GGML_TYPE_Q4_0}
BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of a value in the cache."""
SIDES = ("ggml", "ours")


class Context:
    """A context of llama.cpp whose sequence 0 is filled; sequences 1 and 2 are used meanwhile."""

    def __init__(self, model: object, n_ctx: int, kv: str, flash: bool, n_threads: int):
        """kv: the type of K, one of TYPES; with flash attention of V too."""
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, N_BATCH, N_BATCH, 3
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified, params.flash_attn_type = True, int(flash)
        params.type_k = TYPES[kv]
        params.type_v = TYPES[kv] if flash else TYPES["f16"]
        self.ctx = lib.llama_init_from_model(model, params)
        self.memory = lib.llama_get_memory(self.ctx)
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.batch = lib.llama_batch_init(N_BATCH, 0, 1)
        self.is_recurrent = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
        self.has_window = lib.llama_model_n_swa(model) > 0
        self.n = 0

    def decode(self, n: int, keep: bool = False) -> float:
        """Return the seconds of a pass over n more tokens, which are removed again unless `keep`."""
        batch = self.batch
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i] = i * 7919 % self.n_vocab, self.n + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, n <= 16 or i == n - 1
        start = perf_counter()
        if lib.llama_decode(self.ctx, batch):
            raise SystemExit(f"llama_decode failed after {self.n} tokens")
        lib.llama_synchronize(self.ctx)
        seconds = perf_counter() - start
        if keep or not lib.llama_memory_seq_rm(self.memory, 0, self.n, -1):
            self.n += n
        return seconds

    def fill(self, depth: int) -> None:
        """Add tokens until there are `depth`."""
        while self.n < depth:
            if self.n < N_BATCH or self.is_recurrent or self.has_window:
                self.decode(min(N_BATCH, depth - self.n), keep=True)
                continue
            n = min(self.n, depth - self.n)
            lib.llama_memory_seq_cp(self.memory, 0, 2, 0, n)
            size = lib.llama_state_seq_get_size(self.ctx, 2)
            data = (ctypes.c_uint8 * size)()
            lib.llama_state_seq_get_data(self.ctx, data, size, 2)
            if not lib.llama_state_seq_set_data(self.ctx, data, size, 1):
                raise SystemExit(f"no room for {n} more tokens after {self.n}")
            lib.llama_memory_seq_rm(self.memory, 2, -1, -1)
            lib.llama_memory_seq_add(self.memory, 1, 0, -1, self.n)
            lib.llama_memory_seq_cp(self.memory, 1, 0, -1, -1)
            lib.llama_memory_seq_rm(self.memory, 1, -1, -1)
            self.n += n
            self.decode(1)  # the next pass moves K

    def close(self) -> None:
        """Free the context."""
        lib.llama_batch_free(self.batch)
        lib.llama_free(self.ctx)


def multiply_adds_per_second() -> float:
    """Return the multiply-adds per second of NumPy's float32 matrix products, the best of some runs."""
    a, b = (np.random.default_rng(i).standard_normal((1536, 1536), dtype=np.float32) for i in range(2))
    best = 0.0
    for _ in range(8):
        start = perf_counter()
        a @ b
        best = max(best, len(a) ** 3 / (perf_counter() - start))
    return best


def measure(
    llm: llama_cpp.Llama, args: argparse.Namespace, kv: str, flash: bool
) -> dict[tuple[int, int], dict[str, float]]:
    """Return milliseconds [depth, rows][side]."""
    n_ctx = max(args.depths) + max(args.rows) + N_BATCH
    context = Context(llm._model.model, n_ctx, kv, flash, args.threads)
    matrices = _core.model_matrices(int(llm._model.model))
    limits = dict.fromkeys(_core.cpu_kernel_names(), 1 << 30)
    best: dict[tuple[int, int], dict[str, float]] = {}
    for depth in args.depths:
        context.fill(depth)
        for run in range(args.runs):
            common.progress(f"{kv}, flash attention {flash}, after {depth}: run {run}")
            for side in SIDES:
                kernels = _core.CpuKernels(matrices, limits) if side == "ours" else None
                for n in args.rows:
                    if n > 64 and run >= args.runs_of_prompts:
                        continue
                    found = best.setdefault((depth, n), {})
                    found[side] = min(found.get(side, np.inf), 1e3 * context.decode(n))
                if kernels is not None:
                    kernels.close()
    context.close()
    return best


def measure_prompts(llm: llama_cpp.Llama, args: argparse.Namespace, kv: str) -> dict[int, dict[str, float]]:
    """Return seconds [tokens][side], ggml's with and without flash attention."""
    matrices = _core.model_matrices(int(llm._model.model))
    limits = dict.fromkeys(_core.cpu_kernel_names(), 1 << 30)
    found: dict[int, dict[str, float]] = {n: {} for n in args.prompts}
    times: dict[str, dict[int, float]] = {}
    for flash in (True, False):
        context = Context(llm._model.model, max(args.prompts) + N_BATCH, kv, flash, args.threads)
        context.decode(N_BATCH)  # so that the weights are read from the disk before
        last = {n: n - N_BATCH for n in args.prompts}
        depths = {int(d) for n in args.prompts for d in np.linspace(0, last[n], args.passes)}
        for depth in sorted(depths):
            context.fill(depth)
            for side in ("ours", "ggml") if flash else ("ggml",):
                common.progress(f"{kv}, flash attention {flash}, a pass after {depth}: {side}")
                kernels = _core.CpuKernels(matrices, limits) if side == "ours" else None
                name = side if side == "ours" else f"ggml, flash attention {'on' if flash else 'off'}"
                times.setdefault(name, {})[depth] = context.decode(N_BATCH)
                if kernels is not None:
                    kernels.close()
        context.close()
    for n in args.prompts:
        for name, of_depth in times.items():
            found[n][name] = float(np.interp(range(0, n, N_BATCH), list(of_depth), list(of_depth.values())).sum())
    return found


def tell_prompts(llm: llama_cpp.Llama, args: argparse.Namespace, path: str) -> None:
    """Print a table of whole prompts."""
    rows: list[list[object]] = []
    data: dict[str, object] = {}
    for kv in args.kv:
        for n, seconds in measure_prompts(llm, args, kv).items():
            ours = seconds.pop("ours")
            best = min(seconds, key=lambda name: seconds[name])
            rows.append(
                [kv, n, *(f"{value:.1f}" for value in seconds.values()), f"{ours:.1f}", f"{seconds[best] / ours:.2f}"]
            )
            data[f"{kv}, a prompt of {n}"] = {"ours": ours, **seconds}
    header = ["K/V", "prompt", "ggml with flash attention, s", "without", "ours, s", "the better one / ours"]
    text = (
        f"Seconds of a prompt in passes of {N_BATCH} rows, from {args.passes} that were timed once each.\n\n"
        f"{table(header, rows)}"
    )
    common.finish(args, common.Section("depth", "Prompts by length", text, data, "depth-prompts"), [path])


@dataclass(frozen=True)
class Cell:
    """The costs that one more token in the context adds to a pass, in all layers that attend to it."""

    multiply_adds: int
    """Multiply-adds for each row of the pass."""
    n_k: int
    n_v: int
    """Values of K and V, each read once."""


N_BETWEEN = {"gemma3": 6, "gpt-oss": 2}
"""One of so many layers attends to all tokens, the others to a window; by architecture, llama.cpp's own numbers."""


def cell(llm: llama_cpp.Llama) -> Cell:
    """Return a token's costs by the file's metadata."""
    model, arch = llm._model.model, llm.metadata["general.architecture"]
    n_head, n_kv = lib.llama_model_n_head(model), lib.llama_model_n_head_kv(model)

    def key(name: str, default: int) -> int:
        return int(llm.metadata.get(f"{arch}.{name}", default))

    n_layer = lib.llama_model_n_layer(model) // key("full_attention_interval", N_BETWEEN.get(arch, 1))
    n_dims = key("attention.key_length", lib.llama_model_n_embd(model) // n_head)
    n_dims_v = key("attention.value_length", n_dims)
    is_latent = key("attention.kv_lora_rank", 0) > 0  # V is a part of K then
    return Cell(
        n_layer * n_head * (n_dims + n_dims_v), n_layer * n_kv * n_dims, n_layer * n_kv * n_dims_v * (not is_latent)
    )


def tell_passes(llm: llama_cpp.Llama, args: argparse.Namespace, path: str, variant: str) -> None:
    """Print a table of passes, and draw their growth."""
    bandwidth, rate = read_bandwidth(args.threads, n_mib=256, n_times=3), multiply_adds_per_second()
    of_cell = cell(llm)
    first = min(args.depths)
    rows: list[list[object]] = []
    data: dict[str, object] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for kv in args.kv:
        for flash in args.flash:
            for (depth, n), times in (found := measure(llm, args, kv, flash == "on")).items():
                n_bytes = of_cell.n_k * BYTES[kv] + of_cell.n_v * BYTES[kv if flash == "on" else "f16"]
                floor = 1e3 * (depth - first) * max(n_bytes / bandwidth, n * of_cell.multiply_adds / rate)
                growth = {side: times[side] - found[first, n][side] for side in SIDES}
                grown = ["" if depth == first else f"{value:.1f}" for value in (*growth.values(), floor)]
                rows.append(
                    [kv, flash, depth, n, f"{times['ggml']:.1f}", f"{times['ours']:.1f}",
                     f"{times['ggml'] / times['ours']:.2f}", *grown]
                )  # fmt: skip
                data[f"{kv}, flash attention {flash}, after {depth}, {n} rows"] = times | {"floor_of_growth": floor}
                for side in reversed(SIDES) if depth > first else ():
                    name = f"{n} rows {kv} flash {flash}, {side}"
                    curves.setdefault(name, []).append((depth, growth[side] / floor))
    header = ["K/V", "flash attention", "depth", "rows", "ggml, ms", "ours, ms", "ggml / ours",
              "growth: ggml", "ours", "floor"]  # fmt: skip
    text = (
        f"Milliseconds of a pass, the fastest of {args.runs} ({args.runs_of_prompts} of more than 64 rows), by turns. "
        f"Memory gives {bandwidth / 1e9:.0f} GB/s, NumPy {rate / 1e9:.0f} G multiply-adds/s.\n\n{table(header, rows)}"
    )
    common.finish(args, common.Section("depth", "Passes by depth", text, data, variant), [path])
    if args.publish:
        drawn = common.HERE / "results" / f"{variant}.svg"
        plot_curves(drawn, curves, "tokens before the pass", f"growth after {first} tokens, over its floor")


def main() -> None:
    """Print one table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", default=DEFAULT_MODEL, help="a file, or a name of `models`")
    p.add_argument("--shape", nargs="+", choices=random_model.SHAPES, default=[], help="random weights instead")
    p.add_argument("--depths", type=numbers, default=[256, 6144, 16384], metavar="N,N,...")
    p.add_argument("--rows", type=numbers, default=[1, 8, N_BATCH], metavar="N,N,...", help=f"at most {N_BATCH}")
    p.add_argument("--kv", nargs="+", choices=TYPES, default=["f16", "q8_0"])
    p.add_argument("--flash", nargs="+", choices=["on", "off"], default=["off", "on"])
    p.add_argument("-t", "--threads", type=int, default=n_cores())
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--runs-of-prompts", type=int, default=2, help="of passes over more than 64 rows")
    p.add_argument("--prompts", type=numbers, metavar="N,N,...", help="time whole prompts of so many tokens instead")
    p.add_argument("--passes", type=int, default=5, help="of each prompt that are timed")
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    args = p.parse_args()
    paths = {f"depth-{name}": str(random_target(name, "Q4_0", args.threads)) for name in args.shape}
    if not paths:
        exists = Path(args.model).exists()
        variant = "depth" if args.model == DEFAULT_MODEL else f"depth-{Path(args.model).stem}"
        paths[variant] = args.model if exists else str(models.fetched(args.model, common.progress))
    for variant, path in paths.items():
        llm = common.load_llama_cpp(path, n_ctx=64, n_threads=args.threads)
        if args.prompts:
            tell_prompts(llm, args, path)
        else:
            tell_passes(llm, args, path, variant)
        llm.close()


if __name__ == "__main__":
    main()
