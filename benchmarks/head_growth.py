"""Draw how SmolLM2's head grows with its training data: results/head_growth.svg from results/head_growth.json.

    python benchmarks/head_growth.py
    python benchmarks/head_growth.py --add "9,000 tokens more" --work WORK --chat 2.2 --raw 2.1 --questions 1.6

The figures come from runs that took hours; docs/training-notes.md says how they were made. --add adds a run from a work
folder of ``llama-cpp-eagle3 train --init HEAD`` whose head is that of the last run, with figures of head_quality.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"


KINDS = {"chat": "humaneval_chat", "raw": "humaneval_raw", "questions": "questions"}


def continued(last: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return a run that continued the last one's head, as an entry of the file."""
    log = json.loads((args.work / "log.json").read_text(encoding="utf-8"))
    texts = [json.loads(line) for line in (args.work / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    n_tokens = sum(len(text["tokens"]) - text["n_prompt"] for text in texts) - args.known_tokens
    n_rows = last["log"][-1]["rows"]
    return {
        "name": args.add,
        "answer_tokens": last["answer_tokens"] + n_tokens,
        "length": {name: value for key, name in KINDS.items() if (value := getattr(args, key)) is not None},
        "log": [
            {"rows": n_rows + entry["rows"], **{key: entry[key] for key in ("step", "loss", "length")}} for entry in log
        ],
    }


def main() -> None:
    """Draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", metavar="NAME", help="a run that went on from the last one's head")
    parser.add_argument("--work", type=Path, help="its work folder")
    parser.add_argument("--known-tokens", type=int, default=0, help="tokens of its answers that the last run had too")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=float, help="its mean acceptance length")
    args = parser.parse_args()
    path = RESULTS / "head_growth.json"
    figures = json.loads(path.read_text(encoding="utf-8"))
    runs = figures["runs"]
    if args.add is not None:
        runs.append(continued(runs[-1], args))
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "llama-cpp-eagle3", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        by_tokens, by_rows = figure.subplots(1, 2)
        for kind, style in (("humaneval_chat", "o-"), ("humaneval_raw", "s--"), ("questions", "^:")):
            known = [(run["answer_tokens"] / 1e3, run["length"][kind]) for run in runs if kind in run["length"]]
            by_tokens.plot(*zip(*known, strict=True), style, ms=4, label=kind.replace("_", ", "))
        by_tokens.axhline(2.6, color="0.6", lw=0.8)
        by_tokens.text(runs[0]["answer_tokens"] / 1e3, 2.58, "wanted on HumanEval", va="top", fontsize=8, color="0.4")
        by_tokens.set_xscale("log")
        by_tokens.set_ylim(1, 3)
        by_tokens.set_xlabel("thousand tokens of answers")
        by_tokens.set_title("mean acceptance length, chains of 4, greedy", loc="left", fontsize=9)
        for run in runs:
            points = [(entry["rows"] / 1e3, entry["loss"]) for entry in run["log"]]
            by_rows.plot(*zip(*points, strict=True), marker="o", ms=3, label=run["name"])
        by_rows.set_xlabel("thousand rows trained on")
        by_rows.set_title("loss on held-out text", loc="left", fontsize=9)
        for panel in (by_tokens, by_rows):
            panel.legend(fontsize=8)
        figure.savefig(RESULTS / "head_growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
