"""Memory that programs can have."""

from __future__ import annotations

import re
from pathlib import Path


def free_memory() -> int | None:
    """Bytes that programs can have; None where the system does not report it."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
