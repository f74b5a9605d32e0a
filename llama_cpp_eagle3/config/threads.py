"""How many threads of a CPU are used where nobody says it."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads() -> int:
    """Physical cores that we may use: more threads only wait for memory."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return max(1, (os.cpu_count() or 2) // 2)
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text() if path.exists() else str(cpu))
    return max(1, len(siblings))
