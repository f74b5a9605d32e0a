"""Write each text in every way that our kernels keep it: with drafts, beside others, after a cached prefix, by threads.

    python tests/parity/drafted_texts.py [-n 1000] [--tokens 24] [-t 2] [--settings default "-fa off"]
        [--kernels off] [target [head]]

For each setting of the cache, texts are written alone first: without drafts, one at a time, from an empty context, by
one thread; every other one is sampled. Then again with chains of drafts, and once more with trees, eight at a time in
shared cells, by as many threads as are given, after prompts whose first half is in the cache. Tokens are compared. With
--kernels off some must differ, which proves that a difference is noticed. Without a target it is the bundled pair's in
Q4_0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from inflate import quantize_target

Texts = list[tuple[int, ...]]

N_ROWS_MAX = 64  # longer passes without flash attention are ggml's
N_SLOTS = 8
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
Q8_0 = {"type_k": "q8_0", "type_v": "q8_0"}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "-fa on": {"flash_attn": True},
    "-ctk q8_0 -ctv q8_0": Q8_0,
    "-fa on -ctk q8_0 -ctv q8_0": {"flash_attn": True, **Q8_0},
    "-fa off": {"flash_attn": False, "n_batch": N_ROWS_MAX, "n_ubatch": N_ROWS_MAX},
}
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "chains": {"draft_n_max": 4},
    "together": {"draft": "tree", "n_parallel": N_SLOTS, "kv_unified": True},
}


def prompts(llm: Eagle3Llama, n: int) -> list[list[int]]:
    """Return windows of the held-out texts, each followed by the same window with another end."""
    windows = (text[first : first + 200] for first in range(0, 600, 12) for text in heldout_prompts())
    tokens = [llm.tokenize(window.encode()) for _, window in zip(range((n + 1) // 2), windows, strict=False)]
    return [t for whole in tokens for t in (whole[: len(whole) // 2], whole)][:n]


def write(llm: Eagle3Llama, n: int, n_tokens: int, *, is_together: bool) -> Iterator[Texts]:
    """Yield the texts written in one way, some at a time."""
    asked = prompts(llm, n)
    options = [{**(SAMPLED if i % 4 > 1 else {"temperature": 0.0}), "seed": i} for i in range(n)]
    n_once = 4 * N_SLOTS if is_together else 1
    for i in range(0, n, n_once):
        if not is_together:
            llm.reset()
        results = llm.generate_batch(asked[i : i + n_once], options[i : i + n_once], max_tokens=n_tokens)
        assert not [result.error for result in results if result.error]
        yield [tuple(result.tokens) for result in results]


def load(args: argparse.Namespace, setting: str, way: str) -> Eagle3Llama:
    """Load the target for a way of writing, with a head if that drafts."""
    options: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    options |= {"cpu_kernels": args.kernels, **SETTINGS[setting], **WAYS[way]}
    if way == "together":
        options["n_ctx"] *= N_SLOTS
        options["n_threads"] = options["n_threads_batch"] = args.threads
    if way == "alone":
        return Eagle3Llama(args.target, draft_sources=(), **options)
    return Eagle3Llama(args.target, args.head, **options)


def compare(args: argparse.Namespace, setting: str) -> int:
    """Print by way the number of texts of a setting that differ; return that."""
    alone: Texts = []
    n_different = 0
    for way in WAYS:
        start, found = time.process_time(), list[tuple[int, ...]]()
        with closing(load(args, setting, way)) as llm:
            if way == "alone":
                print(f"{setting}: {llm.loaded.batch_invariance}", flush=True)
            for texts in write(llm, args.n, args.tokens, is_together=way == "together"):
                found += texts
            stats, n_reused = llm.stats, sum(llm.prefix_stats.reused_tokens.values())
        if way == "alone":
            alone = found
            print(f"  {len(found)} texts of {sum(map(len, found))} tokens alone", flush=True)
            continue
        differ = [i for i, (a, b) in enumerate(zip(alone, found, strict=True)) if a != b]
        n_different += len(differ)
        print(
            f"  {way}: {len(differ)} of {len(found)} texts differ; {stats.accepted} of {stats.drafted} drafted tokens "
            f"accepted, {n_reused} tokens of prompts reused; {time.process_time() - start:.0f} s of CPU time"
            + (f"; the first: {differ[0]}" if differ else ""),
            flush=True,
        )
        assert stats.accepted > 0
        assert way != "together" or n_reused > 0
    return n_different


def main() -> int:
    """Compare, and print how many texts differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("head", nargs="?", default=str(bundled_pair()[1]))
    parser.add_argument("-n", type=int, default=1000, help="texts of each setting and way")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("-t", "--threads", type=int, default=2, help="of texts that are written together")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--kernels", default="on", choices=["on", "auto", "off"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.target is None:
            args.target = f"{folder}/target-q4_0.gguf"
            quantize_target(bundled_pair()[0], args.target, "Q4_0", 2)
        n_different = sum(compare(args, setting) for setting in args.settings)
    print(f"{n_different} differ")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
