"""Time a step on a target with a recurrent state, by the two ways of taking rejected tokens back.

The target has the shape of Qwen3.5-4B (three layers of gated delta net, then one of attention) cut to 8 layers, with
random weights. Steps verify the last token and `--draft-n-max` drafted ones; full, half or no acceptance is decided by
how many of them are kept. Nothing is drafted: these are the target's own costs.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._logger import set_verbose

import common
import random_model
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.files.cache_dir import cache_dir

SHAPE = replace(random_model.SHAPES["Qwen3.5-4B"], n_layer=8)
N_PROMPT = 128


class Context:
    """A context of its own on the one model."""

    def __init__(self, model: Any, n_rs_seq: int, n_threads: int, cb_eval: Any = None):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 2048, 512, 512
        params.n_threads = params.n_threads_batch = n_threads
        params.n_rs_seq = n_rs_seq
        if cb_eval is not None:
            params.cb_eval = cb_eval
        self.ctx = llama_cpp.llama_init_from_model(model, params)
        self.target = _core.Target(self.ctx, model, None)
        self.rng = np.random.default_rng(1)

    def tokens(self, n: int) -> list[int]:
        return self.rng.integers(0, SHAPE.n_vocab, n).tolist()

    def start(self) -> None:
        """Clear the context and evaluate a prompt."""
        self.target.decode(self.tokens(N_PROMPT), 0, logits_all=False)

    def decode(self, n: int) -> None:
        """Run one pass whose tokens all stay."""
        self.target.decode(self.tokens(n), self.target.n_past())

    def round(self, n: int, n_accepted: int) -> None:
        """Run one pass, and keep its first tokens."""
        tokens, n_past = self.tokens(n), self.target.n_past()
        self.target.decode_parts([_core.BatchPart(0, n_past, tokens[:1], tokens[1:])])
        if n > 1:
            self.target.accept(0, list(range(n_accepted)))

    def close(self) -> None:
        self.target.close()
        llama_cpp.llama_free(self.ctx)


class PassCounter:
    """Counts the target's passes: each computes one tensor of the given name."""

    def __init__(self) -> None:
        self.n = 0
        files = Path(llama_cpp.llama_cpp._lib._name).parent.glob("*ggml-base.*")
        (file,) = (f for f in files if f.suffix in (".so", ".dylib", ".dll"))
        name_of = ctypes.CDLL(str(file)).ggml_get_name
        name_of.restype = ctypes.c_char_p

        @llama_cpp.ggml_backend_sched_eval_callback
        def watch(tensor: int, ask: bool, _: int) -> bool:
            if ask and name_of(ctypes.c_void_p(tensor)) == b"result_output":
                self.n += 1
            return not ask

        self.cb_eval = watch


def count_passes(model: Any, n_rs_seq: int, n_threads: int, n: int, kept: dict[str, int], n_steps: int = 8) -> Any:
    """Return passes of the target per step, by acceptance."""
    counter = PassCounter()
    context = Context(model, n_rs_seq, n_threads, counter.cb_eval)
    found = {}
    for name, n_accepted in kept.items():
        context.start()
        counter.n = 0
        for _ in range(n_steps):
            context.round(n, n_accepted)
        found[name] = counter.n / n_steps
    context.close()
    return found


def milliseconds(context: Context, step: Callable[[], None], n_steps: int) -> float:
    """Return milliseconds of one step, after a prompt and two steps that do not count."""
    context.start()
    for _ in range(2):
        step()
    start = perf_counter_ns()
    for _ in range(n_steps):
        step()
    return (perf_counter_ns() - start) / n_steps / 1e6


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--type", choices=random_model.TYPES, default="Q4_0", help="of the target")
    p.add_argument("--draft-n-max", type=int, default=4)
    p.add_argument("--steps", type=int, default=20, help="per run and setting")
    args = p.parse_args()
    set_verbose(False)
    text, data, path = measure(args)
    title = "Steps on a hybrid target: Qwen3.5-4B cut to 8 layers"
    common.finish(args, common.Section("hybrid", title, text, data), [str(path)])


def get_target(args: argparse.Namespace) -> Path:
    """Return the file in the cache folder, written on first use."""
    path: Path = cache_dir() / "random" / f"random-Qwen3.5-4B-{SHAPE.n_layer}-layers-{args.type}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".tmp")
        random_model.write_target(part, SHAPE, args.type)
        part.rename(path)
    return path


def measure(args: argparse.Namespace) -> tuple[str, dict[str, object], Path]:
    path = get_target(args)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = args.gpu_layers
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    n_max, n = args.draft_n_max, args.draft_n_max + 1
    kept = {"full": n, "half": n_max // 2 + 1, "no": 1}
    passes = {
        kind: count_passes(model, n_rs_seq, args.threads, n, kept)
        for kind, n_rs_seq in (("snapshots", n_max), ("checkpoint", 0))
    }

    contexts = {"snapshots": Context(model, n_max, args.threads), "checkpoint": Context(model, 0, args.threads)}
    assert all(context.target.rollback_kind == kind for kind, context in contexts.items())
    with_snapshots, without = contexts["snapshots"], contexts["checkpoint"]
    settings: dict[str, tuple[Context, Callable[[], None]]] = {
        "plain": (without, lambda: without.decode(1)),
        "pass without snapshots": (without, lambda: without.decode(n)),
        "pass with snapshots": (with_snapshots, lambda: with_snapshots.decode(n)),
    }
    for kind, context in contexts.items():
        for name, n_accepted in kept.items():
            settings[f"{kind} {name}"] = (context, lambda c=context, k=n_accepted: c.round(n, k))  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in settings}
    for i in range(args.runs):
        for name, (context, step) in settings.items():
            common.progress(f"run {i + 1} of {args.runs}: {name}")
            times[name].append(milliseconds(context, step, args.steps))
    n_state_bytes = without.target.n_state_bytes()
    for context in contexts.values():
        context.close()
    llama_cpp.llama_model_free(model)
    data: dict[str, object] = {"ms": times, "passes": passes, "n_state_bytes": n_state_bytes}
    return describe(args, times, passes, kept, n_state_bytes), data, path


def describe(
    args: argparse.Namespace,
    times: dict[str, list[float]],
    passes: dict[str, dict[str, float]],
    kept: dict[str, int],
    n_state_bytes: int,
) -> str:
    """Return the tables."""
    spread = {name: Spread.of(values) for name, values in times.items()}
    plain = spread["plain"].median
    n = args.draft_n_max + 1
    rows = [["plain decoding", "1", spread["plain"].text(1), "1", f"{plain:.1f}", "1.00"]]
    for kind, by_name in passes.items():
        for name, n_accepted in kept.items():
            found = spread[f"{kind} {name}"]
            per_token = found.median / n_accepted
            cost = [found.text(1), f"{by_name[name]:g}", f"{per_token:.1f}", f"{plain / per_token:.2f}"]
            rows.append([f"{kind}, {name} acceptance", str(n_accepted), *cost])
    without, with_them = times["pass without snapshots"], times["pass with snapshots"]
    ratio = Spread.of(b / a for a, b in zip(without, with_them, strict=True))  # ratios of runs next to each other
    return "\n".join(
        [
            table(["", "tokens kept", "ms per step", "passes per step", "ms per token", "against plain"], rows),
            "",
            f"A pass over {n} rows takes {spread['pass without snapshots'].median:.1f} ms without snapshots and "
            f"{spread['pass with snapshots'].median:.1f} ms with them: {ratio.text(2)} times as long. "
            f"A saved state is {n_state_bytes / 2**20:.1f} MiB. "
            f"{args.type} target, {n} rows per step after {N_PROMPT} tokens of prompt, medians of {args.runs} "
            f"interleaved runs (lowest - highest) of {args.steps} steps. Drafting is not in these figures.",
        ]
    )


if __name__ == "__main__":
    main()
