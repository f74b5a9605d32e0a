"""Measure the memory of a first and a second Eagle3Llama on the same files; on Linux only (/proc/self/smaps_rollup)."""

from __future__ import annotations

import re
from pathlib import Path

import common
from comparison.runs import run_own
from llama_cpp_eagle3.bench.report import table

FIELDS = {"Pss": "PSS", "Pss_File": "of it files", "Pss_Anon": "of it own memory", "Rss": "RSS"}


def read() -> dict[str, float]:
    """Return this process's memory in MiB. PSS counts a page that is mapped twice once, RSS counts it twice."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return {name: int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) / 1024 for name in FIELDS}


def main() -> None:
    p = common.parser(__doc__)
    common.add_shape(p)
    p.add_argument("--random", action="store_true", help="random weights at --shape instead of the bundled pair")
    args = p.parse_args()
    model, draft = common.random_pair(args) if args.random else common.pair(args)
    before, llms, rows = read(), [], []
    for name in ("the first one", "a second one"):
        llm = common.engine(args, model, draft)
        prompt = llm.tokenize(common.prompts(args)[0].encode(), special=True)
        run_own(llm, prompt, 16)  # touch every page that is used
        llms.append(llm)
        after = read()
        rows.append([name, *(f"{after[field] - before[field]:.1f}" for field in FIELDS)])
        before = after
    drafter = llms[0].drafters[0]
    n_mib = {name: getattr(drafter, name) / 2**20 for name in ("n_bytes_own", "n_bytes_shared", "n_bytes_cache")}
    text = (
        f"{table(['MiB added by', *FIELDS.values()], rows)}\n\nThe drafter holds {n_mib['n_bytes_own']:.1f} MiB of "
        f"tensors of its own (mapped from its file), {n_mib['n_bytes_cache']:.1f} MiB of K/V cache, and uses "
        f"{n_mib['n_bytes_shared']:.1f} MiB of the target's tensors in place."
    )
    name, title = "memory", "Memory: the bundled pair"
    if args.random:
        name, title = f"memory-{args.shape}", f"Memory: random weights at the {args.shape} shape"
    data = {"rows": rows, **n_mib}
    common.finish(args, common.Section("memory", title, text, data, name), [model, draft])


if __name__ == "__main__":
    main()
