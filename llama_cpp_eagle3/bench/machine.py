"""The machine and versions of a figure."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path

import llama_cpp

from llama_cpp_eagle3 import LLAMA_CPP_PYTHON_VERSION, __version__


def describe(n_threads: int) -> dict[str, str]:
    """Machine, versions, date."""
    features = llama_cpp.llama_print_system_info().decode()
    return {
        "machine": f"{cpu_name()} ({platform.machine()}), {os.cpu_count()} cores, {n_memory_gib():.0f} GiB, "
        f"{platform.system()}",
        "features": ", ".join(re.findall(r"(\w+) = 1", features)),
        "versions": f"llama-cpp-eagle3 {__version__}, llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}, "
        f"Python {platform.python_version()}",
        "threads": str(n_threads),
        "date": datetime.date.today().isoformat(),
    }


def line(about: dict[str, str]) -> str:
    """What `describe` gave, for below a table."""
    return f"{about['machine']}, {about['threads']} threads; {about['versions']}; {about['date']}"


def cpu_name() -> str:
    """The processor's name, empty if the system does not report it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def n_memory_gib() -> float:
    """Physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
