"""The costs of a loaded pair, and the machine that they are of."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp

from .._core import local_accelerators

GGML_TYPE_NARROW = llama_cpp.GGML_TYPE_Q4_0
"""The head is tried in this type too: the CPU has its fastest kernels for it, on other devices it reads the least."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured microseconds."""

    target: dict[int, float]
    """Of a pass of the target over n rows, logits and hidden states included."""
    draft_begin: dict[int, float]
    """Of the draft's first graph over n waiting rows. Empty without a head, as is `draft_step`."""
    draft_step: dict[int, float]
    """Of a later graph over n nodes."""
    draft_type: int | None = None
    """The ggml type that the head's matrices were converted to; None = as in the file."""


@cache
def machine() -> list[str | int]:
    """Processor, its features as ggml uses them, and accelerators."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1].strip() if found else platform.processor()
    devices = [f"{device.name}: {device.description}" for device in local_accelerators()]
    return [platform.machine(), name, os.cpu_count() or 0, llama_cpp.llama_print_system_info().decode(), *devices]
