"""The machine and versions of a figure."""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import os
import platform
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llama_cpp
import numpy as np

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


def read_bandwidth(n_threads: int, n_mib: int = 512, n_times: int = 5) -> float:
    """Bytes per second that these threads read from memory together: the best of a few sweeps over `n_mib` each.

    libc's memchr for a byte that is not there reads everything and computes next to nothing.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.restype, memchr.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    n = n_mib * 2**20
    parts = [np.full(n, 1, dtype=np.uint8) for _ in range(n_threads)]
    best = 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(n_times):
            start = time.perf_counter()
            list(pool.map(lambda part: memchr(part.ctypes.data, 2, n), parts))
            best = max(best, n * n_threads / (time.perf_counter() - start))
    return best


def file_line(path: str | os.PathLike[str]) -> str:
    """Name, size and hash of a model file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
    return f"`{Path(path).name}` ({os.path.getsize(path) / 2**20:.1f} MiB, sha256 {digest.hexdigest()[:12]})"
