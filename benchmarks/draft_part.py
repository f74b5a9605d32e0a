"""Draft only a part of a small model's vocabulary: measure the time that this saves, and the acceptance that it costs.

    python benchmarks/draft_part.py --draft-vocab 0 8192 16384 32768 -t 1

The model reads the recorded work of replay/tasks.jsonl.gz token by token, and drafts one token after each token of an
answer: with each size of the part in turns, 0 being all tokens. Requests follow each other as in a server: tokens of
one text are in the part for the next one. Times are the processor's, so that other programs disturb them little.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import common
from comparison.figures import percent
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3._core import SimpleDrafter
from llama_cpp_eagle3.bench.report import table

RECORDED = common.HERE / "replay" / "tasks.jsonl.gz"


@dataclass
class Found:
    """Figures of the tokens of the answers of one kind, by size."""

    n: int = 0
    outside: list[int] = field(default_factory=list)
    """Tokens that were outside the part."""
    accepted: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    """Computed logits."""
    seconds: list[float] = field(default_factory=list)

    def __add__(self, other: Found) -> Found:
        """Return the figures of both."""
        columns = zip(self._lists, other._lists, strict=True)
        sums = [[a + b for a, b in zip(x, y, strict=True)] if x else y for x, y in columns]
        return Found(self.n + other.n, *sums)

    @property
    def _lists(self) -> tuple[list[Any], ...]:
        return self.outside, self.accepted, self.computed, self.seconds


def draft(drafter: SimpleDrafter, token: int, following: int) -> tuple[bool, bool, int, float]:
    """Draft after a token; return whether `following` could be and was drafted, the computed logits, and seconds."""
    start = time.process_time()
    (drafted,) = common.draft_chain(drafter, token, 1)
    seconds = time.process_time() - start
    logits = drafter.draft_logits
    return bool(np.isneginf(logits[following])), drafted == following, int(np.isfinite(logits).sum()), seconds


def run(drafters: Sequence[SimpleDrafter], tokens: Sequence[int], n_prompt: int) -> Found:
    """Draft along one text."""
    drafted = []
    for i, drafter in enumerate(drafters):
        common.progress(f"reading {n_prompt} tokens, {i + 1} of {len(drafters)}")
        drafter.restart(0)
        drafter.process(None, tokens[: n_prompt - 1], 0)
    for at in range(n_prompt - 1, len(tokens) - 1):
        turn = []
        for k in range(len(drafters)):
            i = (at + k) % len(drafters)
            turn.append((i, *draft(drafters[i], tokens[at], tokens[at + 1])))
            drafters[i].process(None, [tokens[at]], at)
        drafted.append([entry[1:] for entry in sorted(turn)])
    sums = [[sum(entries) for entries in zip(*column, strict=True)] for column in zip(*drafted, strict=True)]
    return Found(len(drafted), *([own[k] for own in sums] for k in range(4)))


def report(found: dict[str, Found], sizes: Sequence[int]) -> str:
    """Return the tables."""
    head = ["", "tokens", *(f"not in {n}" for n in sizes if n), *(f"accepted of {n or 'all'}" for n in sizes)]
    rows = [
        [
            *(kind, str(f.n)),
            *(percent(f.outside[i] / f.n) for i, n in enumerate(sizes) if n),
            *(percent(a / f.n) for a in f.accepted),
        ]
        for kind, f in found.items()
    ]
    whole = found["all"]
    costs = [
        [
            *(str(n or "all"), f"{whole.computed[i] / whole.n:.0f}", f"{1e3 * whole.seconds[i] / whole.n:.2f}"),
            f"{whole.seconds[i] / whole.seconds[0]:.3f}",
        ]
        for i, n in enumerate(sizes)
    ]
    return f"{table(head, rows)}\n\n{table(['drafted', 'logits', 'CPU ms a token', 'of the first'], costs)}"


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__)
    p.add_argument("--draft-vocab", type=int, nargs="+", default=[0, 1 << 14, 1 << 15], help="0: all tokens")
    p.add_argument("--kinds", nargs="+", help="of recorded work (default: all)")
    p.set_defaults(ctx_size=8192)
    args = p.parse_args()
    path = args.model_draft or str(models.fetched("qwen2.5-coder-0.5b", common.progress))
    with gzip.open(RECORDED) as file:
        lines = [json.loads(line) for line in file]
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        options = {"n_ctx": args.ctx_size, "n_threads": args.threads, "n_threads_batch": args.threads, "verbose": False}
        llms = [
            stack.enter_context(closing(Eagle3Llama(path, path, draft="chain", draft_vocab=n, **options)))
            for n in args.draft_vocab
        ]
        where = llms[-1].loaded.where
        for line in lines:
            if not args.kinds or line["kind"] in args.kinds:
                drafters = [llm.drafters[0] for llm in llms]
                of_text = run(drafters, line["tokens"], line["n_prompt"])
                found[line["kind"]] = found.get(line["kind"], Found()) + of_text
    found["all"] = sum(found.values(), Found())
    text = f"{report(found, args.draft_vocab)}\n\nLoaded: {where}."
    data: dict[str, object] = {kind: asdict(f) for kind, f in found.items()}
    common.finish(args, common.Section("draft_part", "A part of the vocabulary is drafted", text, data), [path])


if __name__ == "__main__":
    main()
