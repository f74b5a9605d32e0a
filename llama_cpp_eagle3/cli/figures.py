"""The figures of one generation: measured, shown, written as JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import llama_cpp

from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..engine.stats import Stats
from ..llama import Eagle3Llama


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one generation. `stats` is of that generation alone."""

    stats: Stats
    text: str
    n_prompt: int
    finish_reason: str  # "stop", "length" or "interrupted"
    load_seconds: float
    n_bytes_read: int
    """Weights that were read while decoding: the target's once per pass, the head's once per drafted token."""
    draft: str
    device: str

    @property
    def decode_seconds(self) -> float:
        """Time for everything after the prompt."""
        return self.stats.total_seconds - self.stats.prefill_seconds

    @property
    def bandwidth(self) -> float:
        """Weights read per second of decoding, in GB/s, to compare with the machine's memory bandwidth."""
        return self.n_bytes_read / self.decode_seconds / 1e9 if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "n_prompt": self.n_prompt,
            "finish_reason": self.finish_reason,
            **self.stats.as_dict(),
            "decode_seconds": self.decode_seconds,
            "load_seconds": self.load_seconds,
            "gb_per_second": self.bandwidth,
            "draft": self.draft,
            "draft_device": self.device,
            "text": self.text,
        }


def bytes_read(llm: Eagle3Llama, stats: Stats, n_draft_steps: int) -> int:
    """Weights that one generation read."""
    n_target = int(llama_cpp.llama_model_size(llm.model)) * stats.steps
    return n_target + (llm.drafters[0].n_bytes_read * n_draft_steps if llm.drafters else 0)


def show(figures: Figures, baseline: Figures | None = None) -> None:
    """Print the block that llama.cpp's speculative-simple prints, and more figures."""
    stats = figures.stats

    def line(text: str = "") -> None:
        print(text, file=sys.stderr)

    line()
    if stats.calibrate_seconds >= 0.01:
        line(f"measured for {stats.calibrate_seconds:.3f} seconds what passes cost on this machine")
    for what, n, seconds in (
        ("encoded", figures.n_prompt, stats.prefill_seconds),
        ("decoded", stats.tokens, figures.decode_seconds),
    ):
        speed = f"{n / seconds:8.3f} t/s" if n and seconds > 0 else "n/a"
        line(f"{what} {n:4d} tokens in {seconds:8.3f} seconds, speed: {speed}")
    line()
    line(f"n_draft   = {figures.draft}")
    line(f"n_predict = {stats.tokens}")
    line(f"n_drafted = {stats.drafted}" + (f" ({stats.why_not_drafted})" if stats.why_not_drafted else ""))
    line(f"n_accept  = {stats.accepted}")
    line(f"accept    = {100 * stats.draft_acceptance_rate:.3f}%")
    line()
    line(f"mean acceptance length = {stats.mean_acceptance_length:.3f} tokens a step, {stats.steps} steps")
    if stats.accepted_per_position:
        rates = "  ".join(f"{100 * rate:.1f}%" for rate in stats.acceptance_rate_per_position)
        line(f"accepted per position  = {rates}")
    line()
    for what, seconds in (
        ("draft", stats.draft_seconds),
        ("verify", stats.verify_seconds),
        ("sample", stats.sample_seconds),
        ("other", stats.other_seconds),
    ):
        share = 100 * seconds / figures.decode_seconds if figures.decode_seconds > 0 else 0.0
        per_step = 1e3 * seconds / stats.steps if stats.steps else 0.0
        line(f"{what:6} = {seconds:8.3f} s {share:5.1f}%  {per_step:8.3f} ms a step")
    line(f"weights read at {figures.bandwidth:.1f} GB/s")
    if baseline is not None:
        line()
        ratio = speedup(figures, baseline)
        times = "" if ratio is None else f", {ratio:.2f} times as fast"
        line(f"without drafts: {_speed(baseline.stats)}, {baseline.bandwidth:.1f} GB/s")
        line(f"with drafts:    {_speed(stats)}{times}")


def _speed(stats: Stats) -> str:
    return "n/a" if stats.tokens_per_second is None else f"{stats.tokens_per_second:.3f} t/s"


def speedup(figures: Figures, baseline: Figures) -> float | None:
    """How many times as fast as the baseline; None if one of them generated nothing."""
    fast, slow = figures.stats.tokens_per_second, baseline.stats.tokens_per_second
    return fast / slow if fast and slow else None


def report(figures: Figures, settings: dict[str, Any], baseline: Figures | None) -> dict[str, Any]:
    """The JSON document."""
    document = {
        "version": __version__,
        "llama_cpp_python": LLAMA_CPP_PYTHON_VERSION,
        "settings": settings,
        **figures.as_dict(),
    }
    if baseline is not None:
        document["baseline"] = baseline.as_dict()
        document["speedup"] = speedup(figures, baseline)
        document["same_text"] = figures.text == baseline.text
    return document
