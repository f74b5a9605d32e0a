"""Measure servers on real work with real models.

    python benchmarks/tasks.py --tasks edits coding --sides plain auto auto-ngram llama-server:ngram-mod --runs 2

The requests lie in tasks/, in the model's own chat template: coding questions, short questions of many kinds from which
nothing learned and to which nothing was tuned, edits of a file, holes in a file at 40 places (/infill, as llama.vim
sends it; and typed, where each character cancels the last request), questions about a document, quotes, JSON by schema,
an agent's conversation with tools, and its turns that call, where a call is required. All sides are open at once and
take turns, request by request, since a machine's speed changes meanwhile; the rounds differ in a word at the beginning
of the prompt, so that no cache has the prompt of an earlier round. Times are the client's. With --add a call adds to
the figures that earlier calls have published under the same name.

Sides are `plain`, `auto` (all that can draft), `auto-ngram` and `auto-draft` (one drafter alone), `auto-spm` (n-grams,
and /infill with the suffix first), `chain-3` (fixed chains of -md); `auto=FILE` and the like have another -md,
`auto=FILE+FILE` two; `llama-server` and `llama-server:TYPES` (its --spec-type: `ngram-mod`, `ngram-mod@16` with drafts
of at most 16, `ngram-mod@16+draft@3` with those of -md after them), `ik-server` and `ik-server:TYPE` (ik_llama.cpp's,
repacked, with its --spec-type as it is: `ngram-mod:n_max=16,n_min=1`, `draft:n_max=4`), and `llama_cpp` and
`llama_cpp:lookup` (llama-cpp-python in this process, plain and with its prompt lookup). The first table has, task by
task, the side of llama-server whose answers took the least time. The default is Qwen2.5-Coder-1.5B-Instruct with the
0.5B as -md.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import common
from comparison.figures import percent
from llama_cpp_eagle3.bench.report import Spread, table
from task_requests import TASKS, Json, requests_of
from task_sides import SIDES, Answer, open_side, run_group

_N_CTX = {"documents": 12288}
"""Positions of a client, where 4096 are too few."""


@dataclass
class Turn:
    """A side's answers before the next side had its turn."""

    i_round: int
    i_group: int
    seconds: float
    answer: Answer

    @property
    def key(self) -> tuple[int, int]:
        """The round and group of requests, equal for all sides."""
        return self.i_round, self.i_group


Found = dict[str, dict[str, list[Turn]]]
"""Turns by task and side."""


def measure(args: Any, model: str, draft: str, found: Found, i_first: int) -> int:
    """Add rounds to the figures.

    Returns:
        The number of texts in which our sides differ. Prompts of several clients are evaluated in passes that depend on
        their times of arrival; passes of more than 64 rows round otherwise (docs/targets.md).

    Raises:
        SystemExit: a drafter changed the text of one client.
    """
    n_parted = 0
    with ExitStack() as stack:
        opened = {side: stack.enter_context(open_side(side, model, draft, args)) for side in args.sides}
        for i in range(i_first, i_first + args.runs):
            for task in args.tasks:
                for k, requests in enumerate(requests_of(task, i, args)):
                    texts = {}
                    n = (i + k) % len(args.sides)
                    for side in [*args.sides[n:], *args.sides[:n]]:
                        common.progress(f"{task}, round {i + 1 - i_first} of {args.runs}: {side}")
                        answer, t_all, texts[side] = run_group(opened[side], requests, args.clients)
                        found[task][side].append(Turn(i, k, t_all, answer))
                    wrong = different(texts)
                    if wrong and args.clients == 1:
                        sys.exit(f"{task}, request {k + 1}: a drafter changed the text: {', '.join(wrong)}")
                    n_parted += sum(wrong.values())
    return n_parted


def is_ours(side: str) -> bool:
    """Whether a side is our server."""
    return not side.startswith(("llama_cpp", "llama-server", "ik-server"))


def different(texts: dict[str, list[str]]) -> dict[str, int]:
    """Return how many texts of each of our sides differ from those of the first of them."""
    ours = [side for side in texts if is_ours(side) and side != "auto-spm"]  # its prompts are different
    n_parted = {side: sum(a != b for a, b in zip(texts[side], texts[ours[0]], strict=True)) for side in ours}
    return {side: n for side, n in n_parted.items() if n}


def seconds_of(turns: list[Turn]) -> float:
    """Return the seconds of whole answers to the requests that all sides got."""
    return sum(turn.answer.t_whole for turn in turns) / max(1, sum(turn.answer.n for turn in turns))


def best_of(sides: dict[str, list[Turn]]) -> str | None:
    """Return llama-server's side with the least time for its answers, if there is one."""
    theirs = [side for side in sides if side.startswith("llama-server")]
    return min(theirs, key=lambda side: seconds_of(sides[side]), default=None)


def summary(found: Found) -> str:
    """Return the seconds of whole answers by task: our sides, llama-cpp-python, and llama-server's best."""
    sides = [side for side in next(iter(found.values())) if not side.startswith("llama-server")]
    ours = [side for side in sides if is_ours(side) and side != "plain"]
    rows = []
    for task, of_task in found.items():
        row: list[object] = [task, sum(turn.answer.n for turn in of_task[sides[0]]) if sides else ""]
        row += [f"{seconds_of(of_task[side]):.2f}" for side in sides]
        if best := best_of(of_task):
            t_best = seconds_of(of_task[best])
            row += [f"{t_best:.2f} ({best.removeprefix('llama-server').lstrip(':') or 'plain'})"]
            row += [f"{t_best / seconds_of(of_task[side]):.2f}" for side in ours]
        rows.append(row)
    head = ["whole answers, s", "answers", *sides]
    if best_of(next(iter(found.values()))):
        head += ["llama-server's best", *(f"its time, times that of {side}" for side in ours)]
    return table(head, rows)


def report(task: str, sides: dict[str, list[Turn]]) -> str:
    """Return a task's table."""
    first = {turn.key: turn.seconds for turn in next(iter(sides.values()))}
    rows = []
    for side, turns in sides.items():
        rounds = [sum((t.answer for t in turns if t.i_round == i), Answer(n=0)) for i in {t.i_round for t in turns}]
        n = rounds[0].n
        is_known = not side.startswith("llama_cpp")  # llama-cpp-python's streams have neither
        rows.append([
            side,
            Spread.of(a.rate for a in rounds).text(1),
            Spread.of(a.t_first / n for a in rounds).text(2),
            Spread.of(a.t_whole / n for a in rounds).text(2),
            Spread.of(first[turn.key] / turn.seconds for turn in turns).text(2),
            f"{statistics.median(a.tokens_a_step for a in rounds):.2f}" if is_known else "",
            percent(rounds[0].n_cached / rounds[0].n_prompt, 0) if is_known else "",
            f"{statistics.median(a.tokens / n for a in rounds):.0f}",
        ])  # fmt: skip
    head = [f"{task}, {n} answers, {len(rounds)} rounds", "tokens/s after the first", "first token, s"]
    head += ["whole answer, s", "speed, whole answers", "tokens a step", "prompt reused", "tokens"]
    return table(head, rows)


def earlier(name: str, tasks: Sequence[str], sides: Sequence[str]) -> Found:
    """Return the figures that earlier calls have published.

    Raises:
        SystemExit: they are of other tasks or sides.
    """
    path = common.HERE / "results" / f"{name}.json"
    if not path.exists():
        return {task: {side: [] for side in sides} for task in tasks}
    figures = json.loads(path.read_text(encoding="utf-8"))["turns"]
    if list(figures) != list(tasks) or any(list(of_task) != list(sides) for of_task in figures.values()):
        sys.exit(f"--add: '{path}' has other tasks or sides")

    def turns(found: list[Json]) -> list[Turn]:
        return [Turn(**{**turn, "answer": Answer(**turn["answer"])}) for turn in found]

    return {task: {side: turns(found) for side, found in of_task.items()} for task, of_task in figures.items()}


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__, runs=2)
    p.add_argument("--tasks", nargs="+", choices=TASKS, default=tuple(TASKS))
    p.add_argument("--sides", nargs="+", default=SIDES)
    p.add_argument("--first", type=int, help="of each task only the first ones")
    p.add_argument("--temp", type=float, default=0.0)
    p.add_argument("--clients", type=int, default=1, help="at once; they share the requests of a task")
    p.add_argument("--add", action="store_true", help="rounds to those that are published")
    p.add_argument("--name", help="of the results that --publish writes")
    p.set_defaults(ctx_size=None, n_predict=384)
    args = p.parse_args()
    args.ctx_size = args.ctx_size or max(_N_CTX.get(task, 4096) for task in args.tasks)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the servers end too
    if args.clients > 1 and any(side.startswith("llama_cpp") for side in args.sides):
        p.error("llama_cpp answers one client")
    pair = args.model or "qwen2.5-coder-1.5b", args.model_draft or "qwen2.5-coder-0.5b"
    model, draft = map(common.path_of, pair)
    name = args.name or f"tasks-{'-'.join(args.tasks)}"
    new = {task: {side: [] for side in args.sides} for task in args.tasks}
    found: Found = earlier(name, args.tasks, args.sides) if args.add else new
    rounds = [turn.i_round for sides in found.values() for turns in sides.values() for turn in turns]
    n_parted = measure(args, model, draft, found, max(rounds, default=-1) + 1)
    same = f"parted from that of the first {n_parted} times" if n_parted else "was the same"
    text = "\n\n".join([summary(found), *(report(task, sides) for task, sides in found.items())])
    text += (
        f"\n\n{args.clients} client{'s' * (args.clients > 1)}, temperature {args.temp:g}, at most {args.n_predict} "
        "tokens an answer; medians of the rounds (lowest - highest). Speed is that of whole answers beside the first "
        f"side's in the same turn. The text of our sides {same}."
    )
    data = {task: {side: [asdict(turn) for turn in turns] for side, turns in s.items()} for task, s in found.items()}
    section = common.Section("tasks", f"Tasks: {', '.join(args.tasks)}", text, {"turns": data}, name)
    common.finish(args, section, [model, draft])


if __name__ == "__main__":
    main()
