"""Run the tests for devices on Mesa's Vulkan driver in software (llvmpipe), which runs on any CPU.

    python tests/run_vulkan.py [--part] [--if-built] [--rounding] [pytest arguments]

It installs missing packages by apt, compiles ggml with Vulkan into build/vulkan (once; some minutes), and runs `pytest
-m gpu` with it under the installed llama-cpp-python, whose libllama is the same, as our module is. --part runs a few
files within eight minutes. --if-built does nothing if there is no build. --rounding runs vulkan/rounding.py instead. If
Debian's packages cannot be had it says so and ends with 0.

The driver is slow, and compiles shaders when they are first used: it keeps them in build/vulkan/shaders. F16 is off,
since tests compare with float64 to 1e-4. Each file has a process; at the end a table says how many tests passed,
failed, were skipped and were not run, and what ended a process. A process that crashed is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from signal import SIGINT, SIGKILL
from threading import Timer
from time import monotonic

import debian
import llama_build
from debian import CannotBeHad

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "vulkan"
SITE = BUILD / "site"
HEADERS = BUILD / "headers"

PACKAGES = ("glslc", "spirv-headers", "libvulkan-dev", "mesa-vulkan-drivers")
_CORE_H = "vulkan/vulkan_core.h"
_HEADER_MIN = (3, 275)  # VK_EXT_layer_settings in the C++ headers, which ggml uses
_NEWER = "trixie"  # Debian's release whose headers are used if the installed ones are too old
PART = ("tests/target/test_target.py", "tests/drafters/test_drafter_tree.py", "tests/drafters/test_drafter.py")
PART_SECONDS, ALL_SECONDS = 480, 9000
TOO_LONG = (
    "tests/drafters/test_drafter_cache.py::test_sequences_grow_side_by_side",
    "tests/drafters/test_drafter.py::test_a_second_thread_is_kept_out",
    "tests/target/test_target.py::test_sliding_window_cannot_go_far_back",
    "tests/target/test_target.py::test_two_threads",
)
"""Tests that read thousands of tokens, which takes a driver in software many minutes."""
NO_TIME = "no time was left"
PROBES = Path(__file__).parent / "vulkan"
CXX = ("c++", "-std=c++17", "-O1")


def main(arguments: list[str]) -> int:
    """Prepare, test, and return pytest's status; 0 if nothing can be prepared."""
    is_part, needs_build = "--part" in arguments, "--if-built" in arguments
    shows_rounding = "--rounding" in arguments
    arguments = [a for a in arguments if a not in ("--part", "--if-built", "--rounding")]
    if needs_build and not is_built():
        print("no build with Vulkan in build/vulkan: `make vulkan` makes one. Its tests are left out")
        return 0
    try:
        prepare()
    except CannotBeHad as e:
        print(f"The tests on Vulkan are left out: {e}")
        return 0
    if shows_rounding:
        return subprocess.run([sys.executable, str(PROBES / "rounding.py")], env=environment(), check=False).returncode
    return run_tests(arguments, is_part)


def prepare() -> None:
    """Install packages, headers, and llama-cpp-python on a ggml with Vulkan.

    Raises:
        CannotBeHad: a package cannot be had.
    """
    missing = missing_packages()
    if missing:
        debian.install(missing)
    if is_built():
        return
    include = newer_headers() if header_version(Path("/usr/include")) < _HEADER_MIN else None
    print("Compiling ggml with Vulkan: about ten minutes", flush=True)
    libraries = BUILD / "ggml" / "bin"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "ON",
        "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",  # the libraries are moved
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(libraries),
        "GGML_VULKAN": "ON",
        "GGML_RPC": "ON",
        "LLAMA_OPENSSL": "OFF",
        **{f"LLAMA_BUILD_{part}": "OFF" for part in ("APP", "COMMON", "EXAMPLES", "SERVER", "TESTS", "TOOLS")},
    } | ({"Vulkan_INCLUDE_DIR": str(include)} if include else {})
    sources = llama_build.fetch(BUILD / "llama.cpp", "--all")
    llama_build.compile_target("ggml with Vulkan", sources, BUILD / "ggml", options, "ggml")
    shutil.rmtree(SITE, ignore_errors=True)
    installed = distribution("llama-cpp-python")
    for name in ("llama_cpp", f"llama_cpp_python-{installed.version}.dist-info"):
        shutil.copytree(str(installed.locate_file(name)), SITE / name, symlinks=True)
    for library in libraries.glob("lib*.so*"):
        (SITE / "llama_cpp" / "lib" / library.name).unlink(missing_ok=True)
        shutil.copy(library, SITE / "llama_cpp" / "lib", follow_symlinks=False)
    (BUILD / "version").write_text(llama_build.VERSION)


def is_built() -> bool:
    """Whether the build exists, is complete, and has the pinned version."""
    stamp = BUILD / "version"  # it is written at the end
    return (SITE / "llama_cpp").is_dir() and stamp.is_file() and stamp.read_text() == llama_build.VERSION


def missing_packages() -> list[str]:
    """Return the required packages that are not installed.

    Raises:
        CannotBeHad: this system has no dpkg to ask, and lacks glslc or new headers.
    """
    if shutil.which("dpkg-query") is None:
        if shutil.which("glslc") and header_version(Path("/usr/include")) >= _HEADER_MIN:
            return []
        raise CannotBeHad("glslc and Vulkan's headers are not here, and this system has no apt to install them")
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *PACKAGES]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in found.splitlines() if line.endswith(" installed")}
    return [name for name in PACKAGES if name not in installed]


def header_version(folder: Path) -> tuple[int, int]:
    """Return minor version and revision of Vulkan's headers in a folder; zeros if there are none."""
    try:
        text = (folder / _CORE_H).read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    revision = re.search(r"define VK_HEADER_VERSION (\d+)", text)
    minor = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, 1, (\d+),", text)
    return (int(minor[1]), int(revision[1])) if minor and revision else (0, 0)


def newer_headers() -> Path:
    """Return the headers of a later Debian release, unpacked into a folder, as they are only text.

    Raises:
        CannotBeHad: the release cannot be reached.
    """
    include = HEADERS / "usr" / "include"
    if header_version(include) >= _HEADER_MIN:
        return include
    apt = BUILD / "apt"
    debian.download(apt, "deb", _NEWER, ["download", "libvulkan-dev"])
    (package,) = apt.glob("libvulkan-dev_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(HEADERS)], check=True)
    return include


def environment() -> dict[str, str]:
    """Return the environment of the tests: the first device, which is the driver in software if there is no other."""
    return os.environ | {
        "PYTHONPATH": str(SITE),
        "GGML_VK_VISIBLE_DEVICES": "0",  # else devices of type CPU are left out
        "GGML_VK_DISABLE_F16": "1",
        "MESA_SHADER_CACHE_DIR": str(BUILD / "shaders"),
        "PYTHONUNBUFFERED": "1",
        **driver_environment(),
    }


def driver_environment() -> dict[str, str]:
    """Return what loads vulkan/software_driver.cpp, and has it keep buffers if the driver needs that."""
    library, probe = BUILD / "libsoftware_driver.so", BUILD / "unused_descriptor"
    make(["glslc", "-o", f"{probe}.spv", str(PROBES / "unused_descriptor.comp")])
    make([*CXX, "-o", str(probe), str(PROBES / "unused_descriptor.cpp"), "-lvulkan"])
    make([*CXX, "-shared", "-fPIC", "-o", str(library), str(PROBES / "software_driver.cpp"), "-ldl"])
    between = {"LD_PRELOAD": str(library)}
    for variables in (between, between | {"KEEP_BUFFERS": "1"}):
        command = [str(probe), f"{probe}.spv"]
        found = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            print(f"Vulkan's device: {found.stdout}{'buffers are kept' if len(variables) > 1 else ''}", flush=True)
            return variables
        print(f"the driver uses a destroyed buffer that no shader uses (it ended with {found.returncode})", flush=True)
    raise SystemExit("and cannot be kept from it")


def make(command: list[str]) -> None:
    """Run a compiler if its output is missing, or older than its source."""
    output, source = Path(command[command.index("-o") + 1]), Path(command[command.index("-o") + 2])
    if not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(command, check=True)


@dataclass
class Outcomes:
    """The outcomes of the tests of a file."""

    file: str
    n_tests: int
    counts: Counter[str] = field(default_factory=Counter)
    ended: str = ""
    """What ended the process before all tests were run."""

    @property
    def n_failed(self) -> int:
        return self.counts["FAILED"] + self.counts["ERROR"]

    def __str__(self) -> str:
        n_passed, n_run = self.counts["PASSED"], self.counts.total()
        numbers = (n_passed, self.n_failed, n_run - n_passed - self.n_failed, self.n_tests - n_run)
        return f"| {self.file} | {' | '.join(map(str, numbers))} | {self.ended} |"


def run_tests(arguments: list[str], is_part: bool) -> int:
    """Run what is marked `gpu`, a process for each file, and print what became of each file's tests.

    Returns 0 if some passed, none failed and no process crashed, even if the time was too short for the others.
    """
    variables = environment()
    print("left out, since they take many minutes:", *TOO_LONG)
    end = monotonic() + (PART_SECONDS if is_part else ALL_SECONDS)
    paths = [a for a in arguments if (ROOT / a.split("::")[0]).exists()] or (list(PART) if is_part else [])
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *(f"--deselect={test}" for test in TOO_LONG)]
    command += [a for a in arguments if a not in paths]
    listing = subprocess.run(
        [*command, "-qq", "--collect-only", *paths],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    files = [Outcomes(m[1], int(m[2])) for m in re.finditer(r"^(tests/\S+): (\d+)$", listing.stdout, re.MULTILINE)]
    if not files:
        print(f"no tests are selected:\n{listing.stdout}")
        return 1
    for file in files:
        chosen = [p for p in paths if p.startswith(f"{file.file}::")] or [file.file]
        run_file([*command, "-v", *chosen], variables, file, end)
    print("\n| file | passed | failed | skipped | not run | |\n|---|---|---|---|---|---|", *files, sep="\n")
    if any(file.n_failed or file.ended not in ("", NO_TIME) for file in files):
        return 1
    return 0 if any(file.counts["PASSED"] for file in files) else 1


def run_file(command: list[str], variables: dict[str, str], outcomes: Outcomes, end: float) -> None:
    """Run a file's tests until all is done or the time is over, and count their outcomes as they come."""
    if monotonic() >= end:
        outcomes.ended = NO_TIME
        return
    running = ""
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as process:
        left = end - monotonic()
        timers = [Timer(left, process.send_signal, [SIGINT]), Timer(left + 20, process.kill)]
        for timer in timers:
            timer.start()
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if test := re.match(r"(tests/\S+?::.*?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b|$)", line):
                running = "" if test[2] else test[1]
                outcomes.counts.update([test[2]] if test[2] else [])
        status = process.wait()
        for timer in timers:
            timer.cancel()
    if monotonic() >= end and status in (2, -SIGINT, -SIGKILL):
        outcomes.ended = NO_TIME
    elif status not in (0, 1):
        outcomes.ended = f"ended with {status} in {running.strip()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
