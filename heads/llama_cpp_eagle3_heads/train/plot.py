"""How a head learned, as a plot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.whole_file import whole_file


def plot_training(path: str | os.PathLike[str], log: Sequence[Mapping[str, Any]]) -> None:
    """Plot how a head learned: the loss on held-out text, and the mean acceptance length that it would have there.

    Args:
        path: The file to write; its suffix chooses the format.
        log: The evaluations: `rows`, `loss`, `length` (None: no text to simulate drafts on), and `right`, a share for
            each step.

    Raises:
        Eagle3Error: matplotlib is not installed.
    """
    with figure_file(path, 9, 3.5) as figure:
        loss, right, length = figure.subplots(1, 3)
        rows = [entry["rows"] for entry in log]
        loss.plot(rows, [entry["loss"] for entry in log], marker="o", ms=3)
        for i, shares in enumerate(zip(*(entry["right"] for entry in log), strict=True)):
            right.plot(rows, shares, marker="o", ms=3, label=f"step {i + 1}")
        known = [(entry["rows"], entry["length"]) for entry in log if entry["length"] is not None]
        length.plot([row for row, _ in known], [value for _, value in known], marker="o", ms=3)
        for panel, title in ((loss, "loss"), (right, "drafts right"), (length, "mean acceptance length")):
            panel.set_title(title, loc="left", fontsize=9)
            panel.set_xlabel("rows trained on")
        if log:
            right.legend(fontsize=8)
        right.set_ylim(0, 1)


@contextmanager
def figure_file(path: str | os.PathLike[str], width: float, height: float) -> Iterator[Any]:
    """Open a figure to draw on, and save it at the end: the same drawing gives the same file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as e:
        raise Eagle3Error("matplotlib is not installed: pip install matplotlib") from e
    with matplotlib.rc_context({"svg.hashsalt": "llama-cpp-eagle3", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        kind = Path(path).suffix[1:] or "png"
        with whole_file(Path(path)) as part:
            figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)
