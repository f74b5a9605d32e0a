"""Fill holes in a file while typing: count answers equal to the removed line, and tokens evaluated at each keystroke.

    python benchmarks/infill.py --sides auto-ngram auto-spm llama-server llama-server-spm

At each of the 40 places of tasks/fim.jsonl three characters are typed as in `tasks.py --tasks typing`; each cancels the
request of the one before. The last answer, to the end of its line, is compared with the rest of the removed line. The
evaluated tokens of the prompt are a keystroke's cost, on a busy machine too. Sides are those of tasks.py and take their
turns one after the other, each with all places; `-spm` has the suffix before the prefix.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from dataclasses import dataclass, replace

import common
from comparison.figures import percent
from llama_cpp_eagle3.bench.report import table
from task_requests import FOLDER, requests_of
from task_sides import Answer, open_side, run_group

SIDES = ("auto-ngram", "auto-spm", "llama-server", "llama-server-spm")


@dataclass(frozen=True)
class Filled:
    """A hole in a file, and a side's answer to it."""

    file: str
    line: int
    removed: str
    answer: str
    n_prompt: int
    n_evaluated: int
    """Tokens that were evaluated at the last keystroke."""
    tokens: int

    @property
    def is_right(self) -> bool:
        """Whether the answer is the removed line."""
        return self.answer.rstrip() == self.removed.rstrip()


def removed_lines() -> list[tuple[str, int, str]]:
    """Return the file, the number of the line, and its rest after the cursor."""
    found = []
    for line in (FOLDER / "fim.jsonl").read_text(encoding="utf-8").splitlines():
        place = json.loads(line)
        lines = (FOLDER / place["file"]).read_text(encoding="utf-8").splitlines()
        found.append((place["file"], place["line"], lines[place["line"] - 1][place["column"] :]))
    return found


def fill(side: str, model: str, draft: str, args: Namespace) -> list[Filled]:
    """Return the answers of a side at the first holes."""
    found = []
    with open_side(side, model, draft, args) as opened:
        places = removed_lines()[: args.first]
        groups = requests_of("typing", 0, Namespace(first=None, temp=0.0, n_predict=32, clients=1))
        for i, ((file, line, removed), group) in enumerate(zip(places, groups, strict=False)):
            common.progress(f"{side}: {i + 1} of {len(places)}")
            asked = [replace(one, body={**one.body, "stop": ["\n"]}) for one in group]
            answer, _, texts = run_group(opened, asked, 1)
            found.append(_filled(file, line, removed, answer, texts[-1]))
    return found


def _filled(file: str, line: int, removed: str, answer: Answer, text: str) -> Filled:
    return Filled(file, line, removed, text, answer.n_prompt, answer.n_prompt - answer.n_cached, answer.tokens)


def report(found: dict[str, list[Filled]]) -> str:
    """Return the table."""
    rows = []
    for side, filled in found.items():
        n_right = sum(place.is_right for place in filled)
        reused = 1 - sum(place.n_evaluated for place in filled) / sum(place.n_prompt for place in filled)
        rows.append([
            side,
            f"{n_right} of {len(filled)}",
            round(statistics.median(place.n_prompt for place in filled)),
            round(statistics.median(place.n_evaluated for place in filled)),
            max(place.n_evaluated for place in filled),
            percent(reused, 1),
            round(statistics.median(place.tokens for place in filled)),
        ])  # fmt: skip
    head = ["side", "the line that was removed", "tokens of the prompt", "evaluated at a keystroke", "at most"]
    return table([*head, "prompt reused", "tokens of the answer"], rows)


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__, runs=1)
    p.add_argument("--sides", nargs="+", default=SIDES)
    p.add_argument("--first", type=int, help="only the first places")
    p.set_defaults(ctx_size=4096)
    args = p.parse_args()
    args.clients = 1
    pair = args.model or "qwen2.5-coder-1.5b", args.model_draft or "qwen2.5-coder-0.5b"
    model, draft = map(common.path_of, pair)
    found = {}
    for side in args.sides:
        found[side] = fill(side, model, draft, args)
        print(report({side: found[side]}).splitlines()[-1], file=sys.stderr, flush=True)
    data = {side: [{**vars(place), "is_right": place.is_right} for place in filled] for side, filled in found.items()}
    text = (
        report(found) + "\n\nMedians of all places, the last of three keystrokes; greedy, answers to the end of a line."
    )
    common.finish(args, common.Section("infill", "Holes in a file, typed", text, {"places": data}), [model])


if __name__ == "__main__":
    main()
