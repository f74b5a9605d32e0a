"""Cut a head's draft vocabulary: measure the time that a smaller lm_head saves, and the acceptance that it costs.

Kept are the most frequent tokens of the bundled target's answers to other prompts than the measured ones. Greedy, with
one draft length. Every prompt goes through all sizes in turn; then the next run begins.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import common
from comparison.figures import percent
from comparison.runs import Run, load, run_own, total
from llama_cpp_eagle3 import models
from llama_cpp_eagle3._core import read_head
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3_heads.convert import quantize


def count(args, texts: list[str]) -> Counter[int]:
    """Count the tokens of the bundled target's answers to these prompts; the inflated one would write the same."""
    target, head = map(str, models.bundled_pair())
    llm = load(target, head, args.threads, 0, args.ctx_size)
    counts: Counter[int] = Counter()
    for i, text in enumerate(texts):
        common.progress(f"counting, prompt {i + 1} of {len(texts)}")
        counts.update(run_own(llm, llm.tokenize(text.encode(), special=True), 128)[1])
    llm.close()
    return counts


def measure(args, model: str, heads: dict[int, Path], texts: list[str]) -> dict[int, list[Run]]:
    """Return the runs of each size."""
    engines = {n: common.engine(args, model, str(path)) for n, path in heads.items()}
    for llm in engines.values():
        llm.draft_n_max = args.draft_n_max
    runs: dict[int, list[Run]] = {n: [] for n in heads}
    for i in range(args.runs + 1):
        found: dict[int, list[Run]] = {n: [] for n in heads}
        for j, text in enumerate(texts):
            common.progress(f"run {i} of {args.runs}, prompt {j + 1} of {len(texts)}")
            for n, llm in engines.items():
                prompt = llm.tokenize(text.encode(), special=True)
                found[n].append(run_own(llm, prompt, args.n_predict)[0])
            if i == 0:
                break  # the first run warms up
        if i > 0:
            for n in heads:
                runs[n].append(total(found[n]))
    return runs


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.add_argument("--draft-n-max", type=int, default=3)
    p.add_argument("--draft-vocab", type=int, nargs="+", default=[1024, 512, 256])
    p.add_argument("--head-type", default="q4_0", help="type that all heads are written in")
    args = p.parse_args()
    model, draft = common.pair(args)
    texts = common.prompts(args)
    counts = count(args, [text for text in models.heldout_prompts() if text not in texts])
    n_all = read_head(draft).n_vocab_dft
    with tempfile.TemporaryDirectory() as folder:
        heads = {n_all: quantize(draft, Path(folder) / "all.gguf", args.head_type)}
        for n in args.draft_vocab:
            path = Path(folder) / f"{n}.gguf"
            heads[n] = quantize(draft, path, args.head_type, draft_vocab=n, counts=counts)
        sizes = {n: path.stat().st_size for n, path in heads.items()}
        runs = measure(args, model, heads, texts)

    rows = []
    for n, found in runs.items():
        drafter, first = Spread.of(run.t_draft_step for run in found), found[0]
        speed = Spread.of(run.tokens_per_second for run in found)
        before = Spread.of(run.tokens_per_second for run in runs[n_all])
        rows.append(
            [
                *(str(n), f"{sizes[n] / 1e6:.1f}", f"{drafter.median * 1e6:.0f}", f"{first.acceptance_length:.3f}"),
                *(percent(first.acceptance), speed.text(2), f"{speed.median / before.median:.3f}"),
            ]
        )
    head = ["draft tokens", "MB", "drafter µs per step", "mean acceptance length", "accepted", "tokens/s", "of all"]
    text = "\n".join(
        [
            table(head, rows),
            "",
            f"{len(texts)} prompts, {args.n_predict} tokens each, drafts of {args.draft_n_max}, head in "
            f"{args.head_type.upper()}, greedy; medians of {args.runs} interleaved runs (lowest - highest). "
            f"{len(counts)} different tokens were counted in {sum(counts.values())}.",
        ]
    )
    data = {str(n): [asdict(run) for run in found] for n, found in runs.items()}
    common.finish(args, common.Section("draft_vocab", "Fewer tokens to draft", text, data), [model, draft])


if __name__ == "__main__":
    main()
