"""Write the licences of the code that is compiled in, called by CMakeLists.txt: licenses.py LLAMA_CPP_SOURCES FOLDER.

Each is as its project ships it, so that text and code are always of the same version.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def of_miniaudio(sources: Path) -> str:
    """The header's last comment."""
    header = sources / "vendor/miniaudio/miniaudio.h"
    _, begin, end = header.read_text(encoding="utf-8").rpartition("This software is available as a choice of")
    text, close, rest = (begin + end).partition("*/")
    if not begin or not close or rest.strip() or "MIT No Attribution" not in text:
        raise SystemExit(f"'{header}': expected the licence as the last comment")
    return text


def of_pybind11() -> str:
    """As its package has it."""
    try:
        found = [file for file in files("pybind11") or () if file.name == "LICENSE"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise SystemExit("pybind11 is not installed as a Python package with its licence: pip install pybind11")
    return found[0].read_text(encoding="utf-8")


if __name__ == "__main__":
    sources, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("llama.cpp", (sources / "LICENSE").read_text(encoding="utf-8")),
        ("nlohmann-json", (sources / "licenses/LICENSE-jsonhpp").read_text(encoding="utf-8")),
        ("miniaudio", of_miniaudio(sources)),
        ("pybind11", of_pybind11()),
    ):
        (out / f"LICENSE-{name}").write_text(text, encoding="utf-8")
