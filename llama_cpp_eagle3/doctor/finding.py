"""Findings of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: ok, note, warning (costs speed) or error."""

    level: Level
    text: str
    advice: str = ""
    """What to do about it."""
