"""Run the same files, prompts and settings in our engine and in llama.cpp's own llama-speculative-simple.

Greedy. Both get every prompt in turn; llama.cpp's tool is started anew for each, and its loading time does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import common
from comparison import peer_tools
from comparison.figures import percent
from comparison.runs import Peer, Run, run_own, run_peer, total
from llama_cpp_eagle3.bench.report import Spread, table


def measure(args, model: str, draft: str, texts: list[str], n_max: int) -> tuple[list[Run], list[Run]]:
    """Return our runs, and llama.cpp's."""
    rival = Peer(
        peer_tools.get_tools(args.tools),
        peer_tools.get_clock(),
        model,
        draft,
        args.threads,
        args.gpu_layers,
        args.ctx_size,
    )
    llm = common.engine(args, model, draft)
    llm.draft_n_max = n_max
    prompts = [llm.tokenize(text.encode(), special=True) for text in texts]
    run_own(llm, prompts[0], args.n_predict)  # warm up
    ours, theirs = [], []
    for i in range(args.runs):
        found_ours, found_theirs = [], []
        for j, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            common.progress(f"run {i + 1} of {args.runs}, prompt {j + 1} of {len(prompts)}")
            found_ours.append(run_own(llm, prompt, args.n_predict)[0])
            run, _ = run_peer(rival, text, args.n_predict, n_max)
            found_theirs.append(run)
        ours.append(total(found_ours))
        theirs.append(total(found_theirs))
    return ours, theirs


def compare(ours: list[Run], theirs: list[Run]) -> str:
    """Return the table."""

    def times(figure: str, get: Callable[[Run], float], unit: float, digits: int = 1) -> list[str]:
        a, b = Spread.of(map(get, ours)), Spread.of(map(get, theirs))
        return [figure, a.text(digits, unit), b.text(digits, unit), f"{a.median / b.median:.2f}" if b.median else ""]

    def rates(run: Run) -> str:
        return " ".join(f"{100 * rate:.1f}" for rate in run.rates)

    a, b = ours[0], theirs[0]
    rows = [
        [
            "accepted",
            percent(a.acceptance, 2),
            percent(b.acceptance, 2),
            f"{100 * (a.acceptance - b.acceptance):+.2f} points",
        ],
        ["accepted per position, %", rates(a), rates(b), ""],
        ["mean acceptance length", f"{a.acceptance_length:.3f}", f"{b.acceptance_length:.3f}", ""],
        times("drafter, µs per step", lambda run: run.t_draft_step, 1e-6, 0),
        times("of it drafting", lambda run: run.t_propose / run.steps, 1e-6, 0),
        times("of it taking rows in", lambda run: run.t_process / run.steps, 1e-6, 0),
        times("tokens/s", lambda run: run.tokens_per_second, 1.0, 1),
    ]
    return table(["", "ours", "llama.cpp", "ours / llama.cpp"], rows)


def main() -> None:
    p = common.parser(__doc__)
    common.add_shape(p)
    p.add_argument("--draft-n-max", type=int, default=4)
    p.add_argument("--random", action="store_true", help="random weights at --shape instead of the bundled pair")
    args = p.parse_args()
    model, draft = common.random_pair(args) if args.random else common.pair(args)
    texts = common.prompts(args)
    ours, theirs = measure(args, model, draft, texts, args.draft_n_max)
    text = [
        compare(ours, theirs),
        "",
        f"{len(texts)} prompts, {args.n_predict} tokens each, greedy, draft_n_max {args.draft_n_max}; medians of "
        f"{args.runs} interleaved runs (lowest - highest). llama.cpp's drafter time is what its statistics print for "
        "begin, draft and accept, and process() by a preloaded clock (peer_clock.cpp); ours is everything between two "
        "passes of the target but sampling, Python included.",
    ]
    name, title = "peer", "Against llama.cpp's draft-eagle3: the bundled pair"
    if args.random:
        name, title = (
            f"peer-{args.shape}",
            f"Against llama.cpp's draft-eagle3: random weights at the {args.shape} shape",
        )
    data = {"ours": [asdict(run) for run in ours], "llama.cpp": [asdict(run) for run in theirs]}
    common.finish(args, common.Section("peer", title, "\n".join(text), data, name), [model, draft])


if __name__ == "__main__":
    main()
