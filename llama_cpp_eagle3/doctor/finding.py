"""What was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is as it should be (ok), may be of interest (note), costs speed (warning) or fails (error)."""

    level: Level
    text: str
    advice: str = ""
    """What to do about it."""
