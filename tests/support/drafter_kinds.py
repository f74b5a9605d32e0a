"""Every kind of drafter except heads, each mostly right about its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import assistants
import dflash
import mtp
from small import write_small_pair


@dataclass(frozen=True)
class Kind:
    """A drafter that is mostly right about its target."""

    source: str
    write: Callable[[Path], tuple[Any, Any]]
    """Writes target and drafter, which is None where the target's own file has it."""
    n_max: int = 4
    share: float = 0.4
    """The least part of a chain's tokens that is accepted."""
    tree_share: float = 0.15
    """The least part of a tree's nodes that is accepted: of siblings only one can be, and free rows give many nodes."""


def _mtp(row: str) -> Kind:
    return Kind("mtp", lambda folder: (mtp.write_able(folder, row), None))


def _dflash(row: str) -> Kind:
    def write(folder: Path) -> tuple[Path, Path]:
        pair = dflash.write_able(folder, row)
        return pair.target, pair.drafter

    return Kind("dflash", write, n_max=6)


def _simple(*rows: str) -> Kind:
    return Kind("simple", lambda folder: tuple(write_small_pair(folder, *rows)), share=0.15)  # type: ignore[arg-type,return-value]


KINDS = {
    **{f"assistant-{row}": Kind("assistant", lambda f, row=row: assistants.write_able(f, row)) for row in
       ("gemma4", "gemma4-a4b", "gemma4-shared")},
    **{f"dflash-{row}": _dflash(row) for row in ("llama", "gemma3", "qwen35")},
    **{row: _mtp(row) for row in ("glm4moe-mtp", "mimo2-mtp", "mimo2-mtp3", "qwen35-mtp")},
    **{f"simple-{'-'.join(rows)}": _simple(*rows) for rows in
       (("llama", "llama"), ("llama", "qwen3next"), ("qwen35", "gemma3"))},
}  # fmt: skip
"""Targets with windows, shared K/V, experts, recurrent states and M-RoPE; small models with attention or a state."""
