"""The machine and versions of a figure."""

from __future__ import annotations

import datetime
import os
import platform
import re

import llama_cpp

from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..machine import cpu_name


def describe(n_threads: int) -> dict[str, str]:
    """Machine, versions, date."""
    n_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "machine": f"{cpu_name()} ({platform.machine()}), {os.cpu_count()} cores, {n_gib:.0f} GiB, {platform.system()}",
        "features": ", ".join(re.findall(r"(\w+) = 1", llama_cpp.llama_print_system_info().decode())),
        "versions": f"llama-cpp-eagle3 {__version__}, llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}, "
        f"Python {platform.python_version()}",
        "threads": str(n_threads),
        "date": datetime.date.today().isoformat(),
    }


def line(about: dict[str, str]) -> str:
    """The result of `describe` as a line below a table."""
    return f"{about['machine']}, {about['threads']} threads; {about['versions']}; {about['date']}"
