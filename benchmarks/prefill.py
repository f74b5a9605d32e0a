"""Time the drafter's share of a prompt: random weights at the 1B shape.

Our engine evaluates the same tokens with and without the head in turn.
"""

from __future__ import annotations

import numpy as np

import common
import random_model
from comparison.figures import percent
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.files.cache_dir import cache_dir


def measure(args, model: str, draft: str) -> dict[str, Spread]:
    """Return the prompt's seconds without and with the head, and with it those in the target and in the drafter."""
    plain, drafted = common.engine(args, model, None), common.engine(args, model, draft)
    prompt = np.random.default_rng(1).integers(0, 256, args.n_prompt).tolist()
    found: dict[str, list[float]] = {"plain": [], "drafted": [], "target": [], "drafter": []}
    for i in range(args.runs + 1):
        common.progress(f"{model}: run {i} of {args.runs}")
        t_target, t_drafter = drafted.target.t_decode_us, drafted.drafters[0].t_process_us
        seconds = {}
        for name, llm in (("plain", plain), ("drafted", drafted)):
            llm.reset()
            before = llm.stats.prefill_seconds
            llm.eval(prompt)
            seconds[name] = llm.stats.prefill_seconds - before
        seconds["target"] = (drafted.target.t_decode_us - t_target) * 1e-6
        seconds["drafter"] = (drafted.drafters[0].t_process_us - t_drafter) * 1e-6
        if i > 0:  # the first run warms up
            for name, value in seconds.items():
                found[name].append(value)
    found["share"] = [d / t for d, t in zip(found["drafter"], found["target"], strict=True)]
    return {name: Spread.of(values) for name, values in found.items()}


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--shape", choices=random_model.SHAPES, default="1B")
    p.add_argument("--types", choices=random_model.TYPES, nargs="+", default=["Q4_0", "Q8_0", "F16"])
    p.add_argument("--head-type", choices=random_model.TYPES, default="Q8_0")
    p.add_argument("--n-prompt", type=int, default=512)
    args = p.parse_args()
    rows, files, data = [], [], {}
    for ftype in args.types:
        target, head = random_model.random_pair(cache_dir() / "random", args.shape, ftype, args.head_type)
        found = measure(args, str(target), str(head))
        ms = [found[name].text(0, 1e-3) for name in ("plain", "drafted", "target", "drafter")]
        rows.append([ftype, *ms, f"**{percent(found['share'].median)}**"])
        files += [str(target)]
        data[ftype] = {name: vars(spread) for name, spread in found.items()}
    head_row = ["target", "without head, ms", "with head, ms", "of it target", "of it drafter", "drafter / target"]
    text = (
        f"{table(head_row, rows)}\n\nA prompt of {args.n_prompt} tokens, {args.head_type} head; medians of {args.runs} "
        "interleaved runs (lowest - highest)."
    )
    title = f"The drafter's part of a prompt: random weights at the {args.shape} shape"
    common.finish(args, common.Section("prefill", title, text, data), [*files, str(head)])


if __name__ == "__main__":
    main()
