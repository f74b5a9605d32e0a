"""Measure how many multiply-adds a second this processor does at the clock that it has now."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llama_cpp_eagle3.files.cache_dir import cache_dir

SOURCE = Path(__file__).with_suffix(".cpp")


@dataclass(frozen=True)
class Peaks:
    """Multiply-adds per second of all threads together."""

    ints: float
    """Of 8-bit integers (VNNI, or AVX2's products of pairs)."""
    floats: float


@cache
def _program() -> Path:
    """Compile the loops for this processor (`CXX` or c++)."""
    path = cache_dir() / "peaks"
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    options = ["-O2", "-march=native", "-std=c++17", "-pthread"]
    subprocess.run([*compiler, *options, "-o", str(path), str(SOURCE)], check=True)
    return path


def measure_peaks(n_threads: int, n_times: int = 3) -> Peaks:
    """Return the best of a few runs of loops that do nothing but multiply and add (x86 with AVX2 alone)."""
    command = [str(_program()), str(n_threads)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(n_times)]
    return Peaks(*(max(map(float, column)) for column in zip(*runs, strict=True)))
