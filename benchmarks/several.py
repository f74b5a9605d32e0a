"""Draft with a head and the target's own block together: against each alone, and beside a useless other one.

    python benchmarks/several.py

The target is the bundled one as MiMo2, enlarged to 1B parameters in Q4_0, with a trained block in its file (see
drafters.py), the head is the bundled one at that size, in Q8_0; a useless one is random. All times are processor times
of the process, as there.
"""

from __future__ import annotations

from contextlib import ExitStack

import common
from comparison.runs import load
from drafters import N_PROMPT, drafting, files_of, rows_of, take_turns
from inflate import inflated_pair
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.files.cache_dir import cache_dir


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.set_defaults(n_predict=96, n_prompts=3, threads=1, ctx_size=512)
    args = p.parse_args()
    folder = cache_dir() / "inflated"
    files = files_of("mtp", folder)
    head, useless_head = (inflated_pair(folder, random_head=random)[1] for random in (False, True))
    both = ("eagle3", "mtp")
    pairs = {
        "plain": (files.target, None, ()),
        "head": (files.target, head, ("eagle3",)),
        "block": (files.target, None, ("mtp",)),
        "both": (files.target, head, both),
        "head, useless block": (files.poor_target, head, both),
        "block, useless head": (files.target, useless_head, both),
    }
    with ExitStack() as stack:
        engines = {}
        for name, (target, draft, sources) in pairs.items():
            more = {"draft": "auto"} if sources else {}
            llm = load(
                str(target), draft and str(draft), args.threads, draft_sources=sources, n_ctx=args.ctx_size, **more
            )
            engines[name] = stack.enter_context(llm)
        prompts = [engines["plain"].tokenize(text.encode())[:N_PROMPT] for text in common.prompts(args)]
        sides = {name: drafting(llm, prompts, args.n_predict, "auto") for name, llm in engines.items()}
        found = take_turns(sides, args.runs, "several")
        asked = {
            name: " and ".join(map(str, llm.policy.stats()["asked"]))
            for name, llm in engines.items()
            if llm.policy is not None
        }
    rows = [[*row, asked.get(row[0], "-")] for row in rows_of(found)]
    text = (
        f"{table(['side', 'tokens/s', 'of plain', 'drafted', 'accepted', 'asked'], rows)}\n\n"
        f"Tokens per second of processor time; medians of {args.runs} runs in which the sides took turns, ratios "
        "within a run, after one that does not count. asked: how often each one was, head and block, in all runs. "
        f"{len(prompts)} prompts of up to {N_PROMPT} tokens, {args.n_predict} tokens each; n-grams do not draft."
    )
    data = {"runs": {name: [vars(x) for x in loads] for name, loads in found.items()}, "asked": asked}
    used = [str(files.target), str(head)]
    common.finish(args, common.Section("several", "A head and a block together", text, data), used)


if __name__ == "__main__":
    main()
