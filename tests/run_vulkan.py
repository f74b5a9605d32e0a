"""Run the tests for devices on Mesa's Vulkan driver in software (llvmpipe), which runs on any CPU.

    python tests/run_vulkan.py [--part] [--if-built] [pytest arguments]

It installs missing packages by apt, compiles ggml with Vulkan into build/vulkan (once; some minutes), and runs `pytest
-m gpu` with it under the installed llama-cpp-python, whose libllama is the same, as our module is. --part runs a few
files within eight minutes. --if-built does nothing if there is no build. If Debian's packages cannot be had it says so
and ends with 0.

The driver is slow, and compiles shaders when they are first used: it keeps them in build/vulkan/shaders. F16 is off,
since tests compare with float64 to 1e-4.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
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
PART = ("tests/core/test_drafter.py", "tests/core/test_drafter_tree.py", "tests/core/test_target.py")
PART_SECONDS = 480
SKIPPED = {
    "tests/core/test_drafter.py::test_long_contexts_cross_the_padding": "Mesa 22.3 crashes in a thread of its own "
    "(libvulkan_lvp.so)",
}
"""Tests that are left out on this driver -> the reason."""


def main(arguments: list[str]) -> int:
    """Prepare, test, and return pytest's status; 0 if nothing can be prepared."""
    is_part, needs_build = "--part" in arguments, "--if-built" in arguments
    arguments = [a for a in arguments if a not in ("--part", "--if-built")]
    if needs_build and not is_built():
        print("no build with Vulkan in build/vulkan: `make vulkan` makes one. Its tests are left out")
        return 0
    try:
        prepare()
    except CannotBeHad as e:
        print(f"The tests on Vulkan are left out: {e}")
        return 0
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


def run_tests(arguments: list[str], is_part: bool) -> int:
    """Run tests marked `gpu` on the first device, which is the driver in software if there is no other."""
    environment = os.environ | {
        "PYTHONPATH": str(SITE),
        "GGML_VK_VISIBLE_DEVICES": "0",  # else devices of type CPU are left out
        "GGML_VK_DISABLE_F16": "1",
        "GGML_VK_DISABLE_ASYNC": "1",  # Mesa 22.3 uses a destroyed buffer in trees
        "MESA_SHADER_CACHE_DIR": str(BUILD / "shaders"),
    }
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *arguments]
    for test, why in SKIPPED.items():
        print(f"left out: {test}: {why}", flush=True)
        command += ["--deselect", test]
    if not is_part:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    end = monotonic() + PART_SECONDS
    for file in PART:  # one file after the other, so that a file that is too slow is named
        try:
            subprocess.run([*command, "-x", file], cwd=ROOT, env=environment, timeout=end - monotonic(), check=True)
        except subprocess.CalledProcessError as e:
            return e.returncode
        except subprocess.TimeoutExpired:
            print(f"{file} was not done in the {PART_SECONDS} seconds of the part, nor what comes after it")
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
