"""llama.cpp of the pinned llama-cpp-python: fetch its sources, and build with CMake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from debian import CannotBeHad

ROOT = Path(__file__).parent.parent
VERSION = (ROOT / "vendor" / "llama_cpp_python_version").read_text().strip()


def fetch(folder: Path, *options: str) -> Path:
    """Fetch the sources with pip, and return their folder.

    Raises:
        CannotBeHad: pip cannot fetch them.
    """
    command = [sys.executable, str(ROOT / "cmake" / "llama_sources.py"), VERSION, str(folder), *options]
    fetched = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if fetched.returncode:
        raise CannotBeHad("llama.cpp's sources cannot be fetched, see above")
    return Path(fetched.stdout.strip().splitlines()[-1])


def compile_target(what: str, sources: Path, folder: Path, options: dict[str, str], target: str) -> None:
    """Configure, and build a target; if that fails, end with the compiler's messages."""
    flags = [f"-D{option}={value}" for option, value in options.items()]
    for arguments in (
        ["-S", str(sources), "-B", str(folder), *flags],
        ["--build", str(folder), "--target", target, "--parallel", str(os.cpu_count() or 1)],
    ):
        command = [sys.executable, "-m", "cmake", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{what} cannot be compiled:\n{done.stdout[-4000:]}")
