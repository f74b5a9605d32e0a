"""This machine's processor, and the memory that programs can have."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def free_memory() -> int | None:
    """Bytes that programs can have; None if the system does not report it."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


def cpu_name() -> str:
    """The processor's name, or its architecture."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
