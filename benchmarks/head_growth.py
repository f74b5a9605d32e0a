"""How SmolLM2's head grows with what it learns from: draws results/head_growth.svg from results/head_growth.json.

    python benchmarks/head_growth.py

The figures are of runs that took hours; docs/training.md says how they were made.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Draw it."""
    runs = json.loads((RESULTS / "head_growth.json").read_text(encoding="utf-8"))["runs"]
    with matplotlib.rc_context({"svg.hashsalt": "llama-cpp-eagle3", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        by_tokens, by_rows = figure.subplots(1, 2)
        for kind, style in (("humaneval_chat", "o-"), ("humaneval_raw", "s--"), ("questions", "^:")):
            known = [(run["answer_tokens"] / 1e3, run["length"][kind]) for run in runs if kind in run["length"]]
            by_tokens.plot(*zip(*known, strict=True), style, ms=4, label=kind.replace("_", ", "))
        by_tokens.axhline(2.6, color="0.6", lw=0.8)
        by_tokens.text(runs[0]["answer_tokens"] / 1e3, 2.58, "wanted on HumanEval", va="top", fontsize=8, color="0.4")
        by_tokens.set_xscale("log")
        by_tokens.set_ylim(1, 2.7)
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
