"""Batch invariance: whether a row of a pass has the same bits as alone; if not, why, and which setting changes that.

Our CPU kernels sum a row in one order, whatever other rows, threads and cells there are. ggml does not, so a text with
drafts, beside other sequences or after a cached prefix may differ from the same text alone where two tokens are nearly
as likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cpu_kernels import N_ROWS_MAX, KernelChoice

Sides = Mapping[tuple[str, str, str], int]
"""`Target.kernel_sides`."""

_FLASH = "flash_attn=True (-fa on)"
_ON = 'cpu_kernels="on" (--cpu-kernels on)'
_AUTO = 'cpu_kernels="auto" (--cpu-kernels auto)'
_ON_CPU = "n_gpu_layers=0 (-ngl 0)"
_NAMES = {"products": "products with weights", "attention": "attention", "recurrence": "recurrent layers"}


@dataclass(frozen=True, slots=True)
class Loss:
    """Operations that ggml computes, so that their rows depend on others."""

    what: str
    why: str
    remedy: str
    """A setting with which our kernels compute it; empty if there is none."""
    in_prompts: bool
    """Whether it concerns only passes of more rows than our kernels are used for."""

    def __str__(self) -> str:
        """The text for a line of the log."""
        return f"{self.what}, since {self.why}" + (f": use {self.remedy}" if self.remedy else "")


def losses(sides: Sides, choice: KernelChoice) -> list[Loss]:
    """The operations of a target that ggml computes."""
    found: dict[tuple[str, str, str, bool], list[str]] = {}
    lost = {(what, why) for what, why, _ in sides if why}
    for (what, why, type), n in sides.items():
        follows = what != "products" and why == "source" and ("products", "source") in lost
        if why and not follows:
            reason, remedy = _reason(what, why, type, choice)
            found.setdefault((what, reason, remedy, why == "rows"), []).append(f"{n} in {type.upper()}")
    return [
        Loss(f"{_NAMES[what]} ({', '.join(types)})", reason, remedy, in_prompts)
        for (what, reason, remedy, in_prompts), types in found.items()
    ]


def attends(sides: Sides) -> bool:
    """Whether our kernels compute the attention of passes of few rows."""
    reasons = {why for what, why, _ in sides if what == "attention"}
    return "" in reasons and reasons <= {"", "rows"}


def describe(sides: Sides, found: Sequence[Loss]) -> str:
    """One line; empty for a model that computes nothing."""
    if not sides:
        return ""
    if not found:
        return "batch invariant: a row's bits depend neither on other rows nor on threads"
    is_so_far = all(loss.in_prompts for loss in found)
    where = f"batch invariant up to {N_ROWS_MAX} rows" if is_so_far else "not batch invariant"
    parts = [("in longer passes " if loss.in_prompts else "") + str(loss) for loss in found]
    return f"{where}: ggml computes {'; '.join(parts)}"


def _reason(what: str, why: str, type: str, choice: KernelChoice) -> tuple[str, str]:
    """Why ggml computes something, and a setting that changes it."""
    if why == "device":
        return "they are on another device" if what == "products" else "the cache is on another device", _ON_CPU
    if why == "adapter":
        return "they are of a LoRA adapter", "a file that the adapter is merged into"
    if why == "type":
        return f"K in {type.upper()} is read by flash attention alone", _FLASH
    if why == "rows" and what == "products":
        return "it was measured to be faster with so many rows", _ON
    if why == "rows":
        return "there is no flash attention", _FLASH
    if why == "source" and choice.mode == "off":
        return "cpu_kernels is off", _AUTO
    if why == "source" and what == "products" and choice.refuses(type):
        return "it was measured to be faster", _ON
    if why == "source" and what == "products":
        return "no kernel for this processor reads them", ""
    if why == "source":
        return "it was not computed with weights that a kernel reads", ""
    return "no kernel computes its shape", ""
