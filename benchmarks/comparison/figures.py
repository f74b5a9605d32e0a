"""Format figures as text."""

from __future__ import annotations


def percent(part: float, digits: int = 1) -> str:
    """Format a part as a percentage: 0.123 is 12.3 %."""
    return f"{100 * part:.{digits}f} %"
