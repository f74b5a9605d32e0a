"""Run tests with the compiled module under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tests/run_sanitized.py [pytest arguments]

It builds the module into build/sanitize and runs pytest in a process with the sanitizers' runtime. It fails if a test
fails, if the sanitizers find an error, or if memory leaks that was allocated below a function of ours. Memory that
Python, NumPy and pybind11 keep until the end of the process does not count.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from llama_cpp_eagle3 import _core

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "sanitize"

DEFAULT_TESTS = [
    "-m",
    "not rpc",
    "tests/drafters/test_drafter.py",
    "tests/drafters/test_drafter_files.py",
    "tests/drafters/test_drafter_batch.py",
    "tests/drafters/test_drafter_cache.py",
    "tests/drafters/test_drafter_copy.py",
    "tests/drafters/test_drafter_tree.py",
    "tests/drafters/test_drafter_unroll.py",
    "tests/drafters/test_drafter_variants.py",
    "tests/drafters/test_dflash_drafter.py",
    "tests/drafters/test_mtp_drafter.py",
    "tests/drafters/test_simple_drafter.py",
    "tests/kernels/test_kernel_attention.py",
    "tests/kernels/test_kernel_flash.py",
    "tests/kernels/test_kernel_products.py",
    "tests/kernels/test_kernels.py",
    "tests/kernels/test_kernels_k.py",
    "tests/kernels/test_kernels_legacy.py",
    "tests/draft/test_planner_pair.py",
    "tests/target/test_rollback.py",
    "tests/engine/test_sampling.py",
    "tests/target/test_tap.py",
    "tests/target/test_target.py",
    "tests/target/test_target_tree.py",
]

# the child runs this: the installed package is an editable one, whose finder would come first
CHILD = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path[:0] = sys.argv[1], "heads"
import llama_cpp_eagle3._core
assert llama_cpp_eagle3._core.__file__.startswith(sys.argv[1]), llama_cpp_eagle3._core.__file__
import pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys", *sys.argv[2:]]))
"""


def build() -> Path:
    """Build the package with sanitizers into a folder of its own."""
    site = BUILD / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command += ["--no-build-isolation", "--no-deps", "--target", str(site), str(ROOT)]
    command += ["-C", f"build-dir={BUILD / 'cmake'}", "-C", "cmake.define.EAGLE3_SANITIZE=ON"]
    has_vnni = any("avx512_vnni" in name for name in _core.cpu_kernel_names())
    command += ["-C", f"cmake.define.EAGLE3_EMULATE_VNNI={'OFF' if has_vnni else 'ON'}"]
    command += ["-C", "install.strip=false"]
    subprocess.run(command, check=True)
    # not built with sanitizers (CMakeLists.txt): the installed module is used
    chat = importlib.util.find_spec("llama_cpp_eagle3._chat")
    assert chat is not None
    assert chat.origin is not None
    shutil.copy(chat.origin, site / "llama_cpp_eagle3")
    return site


def runtime() -> str:
    """Return the shared libraries that must be loaded before all others."""
    compiler = os.environ.get("CXX", "c++")
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    commands = [[compiler, f"-print-file-name={name}"] for name in names]
    files = [subprocess.run(c, capture_output=True, text=True, check=True).stdout.strip() for c in commands]
    missing = [file for file in files if not Path(file).is_absolute()]
    if missing:
        raise SystemExit(f"{compiler} has no {', '.join(missing)}: install its sanitizer runtime")
    return " ".join(files)


def our_leaks(log: str) -> list[str]:
    """Return reports of leaked memory that was allocated below a function of ours, without module initialization."""
    reports = re.findall(r"(?m)^(?:Direct|Indirect) leak of .*\n(?:    #\d+ .*\n)+", log)
    return [r for r in reports if "/llama_cpp_eagle3/_core." in r and "PyInit_" not in r]


def main() -> int:
    """Build, run, and judge."""
    site = build()
    log = BUILD / "log"
    for old in BUILD.glob("log.*"):
        old.unlink()
    env = os.environ | {
        "LD_PRELOAD": runtime(),
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
        # Whether a leak counts is decided below. A small quarantine, since a test watches the resident memory
        "ASAN_OPTIONS": f"detect_leaks=1:exitcode=0:quarantine_size_mb=2:log_path={log}",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    tests = sys.argv[1:] or DEFAULT_TESTS
    status = subprocess.run([sys.executable, "-c", CHILD, str(site), *tests], env=env, cwd=ROOT).returncode

    text = "".join(file.read_text(errors="replace") for file in sorted(BUILD.glob("log.*")))
    leaks = our_leaks(text)
    errors = re.findall(r"(?m)^.*(?:ERROR: AddressSanitizer|runtime error:).*$", text)
    for report in errors + leaks:
        print(report, file=sys.stderr)
    print(f"sanitizers: tests ended with {status}, {len(errors)} errors, {len(leaks)} leaks of ours")
    return 1 if status or errors or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
