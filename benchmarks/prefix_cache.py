"""Measure the prefix cache's costs: a look-up, saving and loading, and six agents whose memory stays flat.

The look-up finds a text of 100,000 tokens among 1,000 entries. Texts of the target are saved and loaded, from a slot to
host memory, to a file and back. Six agents with one system prompt take turns, with host memory and a folder that are
too small for all of their conversations; each restarts its own when it is long enough. If `-m` names a model with
recurrent layers or sliding windows, they go back to states.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import common
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.engine import Sampling, StoredPrefix
from llama_cpp_eagle3.engine.prefix_nodes import Prefix, key_of
from llama_cpp_eagle3.engine.prefix_tree import PrefixTree
from llama_cpp_eagle3.engine.sequence import Saved
from llama_cpp_eagle3.files.prefix_file import read_head, read_prefix, write_prefix

_N_TOKENS, _N_ENTRIES = 100_000, 1_000
_N_AGENTS, _N_SYSTEM, _N_USER, _N_ANSWER, _N_LONGEST = 6, 400, 24, 12, 900
_MAX_GROWTH = 0.02
_N_SHOWN = 10
"""Number of shown sizes of the process, over all turns."""


def milliseconds(function: Callable[[], Any], n: int = 5) -> float:
    """Return the median time of a few calls."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def look_up() -> list[list[str]]:
    """Time a look-up among entries that share the text's first half, nothing, or all but its last tokens."""
    rows = []
    rng = random.Random(0)
    text = [rng.randrange(100_000) for _ in range(_N_TOKENS)]
    for what, n_common in (("nothing", 0), ("half", _N_TOKENS // 2), ("nearly all", _N_TOKENS - 200)):
        tree = PrefixTree(1 << 60, 32)
        for i in range(_N_ENTRIES):
            rest = [200_000 + i, *(rng.randrange(100_000) for _ in range(100))]
            tree.insert(Prefix(1, saved=Saved(b"", b"", 0, 0)), key_of(text[:n_common] + rest))
        tree.insert(Prefix(1, saved=Saved(b"", b"", 0, 0)), key_of(text))
        key = key_of([*text, 5])
        found = 1e3 * milliseconds(lambda tree=tree, key=key: next(tree.match(key).prefixes), 21)
        made = 1e3 * milliseconds(lambda: key_of(text), 21)
        rows.append([what, f"{found:.0f}", f"{made:.0f}"])
    return rows


def texts(llm: Eagle3Llama, seed: int, n: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, llm.n_vocab() - 300) for _ in range(n)]


def ask(llm: Eagle3Llama, prompts: Sequence[list[int]], ends: Sequence[list[int]], n: int) -> list[Any]:
    """Return answers of a few tokens, all generated at once."""
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    sequences = [
        llm.engine.add(prompt, sampling, max_tokens=n, boundaries=end)
        for prompt, end in zip(prompts, ends, strict=True)
    ]
    while not all(s.is_done for s in sequences):
        llm.engine.step()
    return sequences


def save_and_load(args: argparse.Namespace, target: str, folder: Path) -> list[list[str]]:
    """Return milliseconds of each part, by length."""
    rows = []
    with closing(common.engine(args, target, None)) as llm:
        memory, maker = llm.engine.memory, llm.loaded.maker
        for n in args.lengths:
            start = time.perf_counter()
            sequence = ask(llm, [texts(llm, n, n)], [[]], 1)[0]
            evaluated = 1e3 * (time.perf_counter() - start)
            saved = memory.state_of(0)
            stored = StoredPrefix(sequence.tokens[: saved.n_past], saved.target, saved.draft, [], 0)
            path = folder / f"{n}"
            parts = [
                milliseconds(lambda: memory.state_of(0)),
                milliseconds(lambda path=path, stored=stored: write_prefix(path, maker, stored)),
                milliseconds(lambda path=path: read_head(path)),
                milliseconds(lambda path=path: read_prefix(path)),
            ]
            llm.engine.clear()
            tokens = stored.tokens
            load = lambda saved=saved, tokens=tokens: (memory.reset(0), memory.load(0, saved, tokens))  # noqa: E731
            parts.append(milliseconds(load))
            memory.reset(0)
            size = saved.n_bytes / 2**20
            rows.append([f"{n:,}", f"{size:.1f}", *(f"{x:.1f}" for x in parts), f"{evaluated:,.0f}"])
    return rows


def rss() -> float:
    """Return the process's memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files; a thread writes and removes some meanwhile."""
    n_bytes = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            n_bytes += path.stat().st_size
    return n_bytes


def agents(args: argparse.Namespace, target: str, folder: Path) -> tuple[str, dict[str, Any], bool]:
    """Run six conversations in turns; return (the description, figures, whether memory stayed flat)."""
    options = {"n_parallel": 3, "kv_unified": True, "prefix_cache_bytes": args.ram << 20}
    options |= {"prefix_cache_dir": folder, "prefix_cache_disk_bytes": args.disk << 20}
    n_turns = n_prompt = n_cached = 0
    sizes: list[tuple[int, float]] = []
    start = time.monotonic()
    options |= {"n_ctx": 4096, "n_threads": args.threads, "swa_full": False, "draft_sources": (), "verbose": False}
    with closing(Eagle3Llama(target, **options)) as llm:
        system = texts(llm, 0, _N_SYSTEM)
        talks, ends = [list(system) for _ in range(_N_AGENTS)], [[_N_SYSTEM] for _ in range(_N_AGENTS)]
        while n_turns < args.turns and time.monotonic() - start < args.seconds:
            for i, talk in enumerate(talks):
                if len(talk) > _N_LONGEST:
                    talk[:], ends[i] = system, [_N_SYSTEM]
                talk += texts(llm, 1000 + n_turns + i, _N_USER)
                ends[i] = [*ends[i], len(talk) - 2]
            for i, sequence in enumerate(ask(llm, talks, ends, _N_ANSWER)):
                n_prompt += sequence.n_prompt
                n_cached += sequence.n_cached
                talks[i] = list(sequence.tokens)
            llm.engine.keep()
            n_turns += _N_AGENTS
            stats = llm.prefix_stats
            n_files = size_of(folder)
            assert stats.n_bytes <= stats.n_bytes_max
            assert n_files <= stats.n_file_bytes_max
            sizes.append((n_turns, round(rss(), 1)))
            common.progress(f"{n_turns} turns, {sizes[-1][1]} MiB")
        stats = llm.prefix_stats
    warm = [size for n, size in sizes if n >= n_turns // 2]
    is_flat = max(warm) - warm[0] <= _MAX_GROWTH * warm[0]
    reused = ", ".join(f"{tier} {n:,}" for tier, n in stats.reused_tokens.items())
    text = (
        f"{n_turns:,} turns of {_N_AGENTS} agents in {time.monotonic() - start:.0f} s, on 3 slots with {args.ram} MiB "
        f"of host memory and {args.disk} MiB of files: {n_prompt:,} prompt tokens, {n_prompt - n_cached:,} "
        f"evaluated ({_N_USER + _N_ANSWER} a turn are new); reused from {reused}. Evicted from host memory "
        f"{stats.n_evicted:,}, from the folder {stats.n_evicted_files:,}. Memory of the process: {sizes[0][1]:.1f} MiB "
        f"after the first round, {warm[0]:.1f} after half of them, {warm[-1]:.1f} at the end, {max(warm):.1f} at most."
    )
    shown = [sizes[(i * len(sizes) - 1) // _N_SHOWN if i else 0] for i in range(_N_SHOWN + 1)]
    text += f"\n\n{table(['turns', 'MiB'], [[f'{n:,}', f'{size:.1f}'] for n, size in shown])}"
    return text, {"sizes": sizes, "n_prompt": n_prompt, "n_cached": n_cached, "reused": stats.reused_tokens}, is_flat


def main() -> int:
    p = common.parser(__doc__, runs=1)
    p.set_defaults(ctx_size=16384)
    p.add_argument("--lengths", type=int, nargs="+", default=[1000, 4000, 16000], help="tokens that are saved")
    p.add_argument("--turns", type=int, default=2000, help="of all agents together")
    p.add_argument("--seconds", type=float, default=900.0, help="end the turns after so many")
    p.add_argument("--ram", type=int, default=32, help="MiB of host memory for the agents")
    p.add_argument("--disk", type=int, default=64, help="MiB of files for the agents")
    p.add_argument("--name", help="of the model, in results/")
    args = p.parse_args()
    target = args.model or common.pair(args)[0]
    texts_of: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = table(["in common", "look-up, us", "key, us"], look_up())
        texts_of.append(f"{found}\n\nThe key is the text's tokens as bytes, made once a request.")
        names = ["tokens", "MiB", "from a slot", "write", "index", "read", "to a slot", "evaluate"]
        texts_of.append(
            f"{table(names, save_and_load(args, target, folder))}\n\nMilliseconds; a thread writes and reads."
        )
        print("\n\n".join(texts_of), flush=True)
        (folder / "agents").mkdir()
        text, data, is_flat = agents(args, target, folder / "agents")
        texts_of.append(text)
    name = f"prefix_cache-{args.name}" if args.name else ""
    section = common.Section("prefix_cache", "The prefix cache", "\n\n".join(texts_of), data, name)
    common.finish(args, section, [target])
    if not is_flat:
        print("memory grows")
    return int(not is_flat)


if __name__ == "__main__":
    sys.exit(main())
