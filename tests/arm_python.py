"""Run Python of 64-bit ARM under qemu, with llama_cpp and a wheel of ours in it (for run_arm.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import debian
from debian import CannotBeHad
from run_wheels import PYTHON, RELEASE

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "arm" / "python"
SYSTEM, SITE, PROGRAM = FOLDER / "system", FOLDER / "site", FOLDER / "python3"

PROCESSOR = "neoverse-n1"
DEBS = (
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *("libc6", "libcrypt1", "libgcc-s1", "libstdc++6"),
    *("libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libsqlite3-0", "libssl3", "libuuid1", "zlib1g"),
)
"""Packages of Python and of the libraries that its modules link."""

WHEELS = ("numpy", "diskcache", "jinja2", "typing-extensions")
"""Packages that llama_cpp imports."""
TEST_WHEELS = ("pytest>=9.0", "gguf>=0.19", "hypothesis>=6.100", "huggingface-hub>=0.23,<3", "safetensors>=0.4")
"""Further packages that the tests import."""


def prepare(qemu: str, wheel: Path, libraries: Path) -> None:
    """Put missing packages into build/arm/python, and the wheel anew.

    Args:
        qemu: the emulator.
        wheel: ours, for aarch64.
        libraries: folder of llama.cpp's libraries for aarch64.

    Raises:
        CannotBeHad: a package cannot be had.
    """
    if not (SYSTEM / "usr" / "bin" / f"python{PYTHON}").exists():
        apt = FOLDER / "apt"
        debian.download(apt, "deb", RELEASE, ["download", *DEBS], "arm64")
        for package in sorted(apt.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(SYSTEM)], check=True)
    wanted = "\n".join((*WHEELS, *TEST_WHEELS))
    stamp = FOLDER / "wheels.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        install_wheels([*WHEELS, *TEST_WHEELS])
        stamp.write_text(wanted)
    copy_llama_cpp(libraries)
    shutil.rmtree(SITE / "llama_cpp_eagle3", ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(SITE)
    # `sys.executable` starts child processes, so it is the emulator, which the kernel does not know
    (SITE / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(PROGRAM)!r}\n")
    command = [qemu, "-cpu", PROCESSOR, "-L", str(SYSTEM), str(SYSTEM / "usr" / "bin" / f"python{PYTHON}")]
    PROGRAM.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    PROGRAM.chmod(0o755)


def install_wheels(names: list[str]) -> None:
    """Let pip put wheels for aarch64 into the folder.

    Raises:
        CannotBeHad: pip cannot.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(SITE), "--upgrade"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON]
    for tag in ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"):
        command += ["--platform", tag]
    if subprocess.run([*command, *names], check=False).returncode:
        raise CannotBeHad(f"pip has no wheels of {', '.join(names)} for aarch64")


def copy_llama_cpp(libraries: Path) -> None:
    """Copy this environment's llama-cpp-python, which is Python code, with libraries for aarch64."""
    found = distribution("llama-cpp-python")
    for name in ("llama_cpp", f"llama_cpp_python-{found.version}.dist-info"):
        source = Path(str(found.locate_file(name)))
        shutil.rmtree(SITE / name, ignore_errors=True)
        shutil.copytree(source, SITE / name, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    (SITE / "llama_cpp" / "lib").mkdir()
    for library in libraries.glob("lib*.so*"):
        shutil.copy(library, SITE / "llama_cpp" / "lib", follow_symlinks=False)


def run(arguments: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run that Python in a folder, within a time limit."""
    environment = os.environ | {"PYTHONPATH": f"{SITE}:{ROOT / 'heads'}", "PYTHONNOUSERSITE": "1"}
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME"):
        environment.pop(name, None)
    command = [str(PROGRAM), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
