"""Show that one wheel of this package serves several builds of llama-cpp-python.

    python tools/wheel_builds.py [--tests] dist/llama_cpp_eagle3-*.whl CPU.whl BLAS.whl ...

Each wheel of llama-cpp-python (`pip wheel`, with CMAKE_ARGS of its own) is installed with ours in a new virtual
environment. There, without the variables of this one, `llama-cpp-eagle3 doctor` must find nothing wrong, and the
bundled pair generates: the text must be that of plain llama_cpp on the same build, tokens must have been drafted, and
the only loaded libllama must be that build's. With --tests a part of the tests runs there too, from a copy beside which
there is no source of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/engine/test_engine.py",
    "tests/llama/test_llama.py",
    "tests/serve/test_completion.py",
)
TESTS_NEED = ("pytest>=9.0", "pytest-xdist>=3.6", "gguf>=0.19", "httpx>=0.27", "hypothesis>=6.100")
CHECK = """
import json, os, sys
import llama_cpp
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.models import bundled_pair

target, head = map(str, bundled_pair())
prompt = "import os\\n\\n\\ndef "
options = {"max_tokens": 64, "temperature": 0.0}
plain = llama_cpp.Llama(target, n_ctx=512, verbose=False)
expected = plain(prompt, **options)["choices"][0]["text"]
plain.close()
with Eagle3Llama(target, head, n_ctx=512, draft="chain", cpu_kernels="off", verbose=False) as llm:
    text = llm(prompt, **options)["choices"][0]["text"]
    stats = llm.last_stats
maps = {line.split()[-1] for line in open("/proc/self/maps")} if sys.platform == "linux" else set()
libraries = sorted(path for path in maps if os.path.basename(path).startswith(("libllama", "libggml")))
print(json.dumps({
    "same": text == expected,
    "drafted": stats.drafted,
    "accepted": stats.accepted,
    "system": llama_cpp.llama_print_system_info().decode(),
    "libraries": libraries,
    "core": _core.__file__,
}))
"""


def check(wheel: Path, llama: Path, folder: Path) -> dict[str, Any]:
    """Install both in a new environment, and generate there."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", llama, wheel], check=True)
    clean: dict[str, Any] = {"env": {"HOME": str(folder), "PATH": os.defpath}, "cwd": folder, "check": True}
    subprocess.run([folder / "bin" / "llama-cpp-eagle3", "doctor"], stdout=subprocess.DEVNULL, **clean)
    done = subprocess.run([python, "-c", CHECK], stdout=subprocess.PIPE, text=True, **clean)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_tests(wheel: Path, folder: Path) -> bool:
    """Run a part of the tests in an environment that has the wheel; return whether they pass."""
    python, copy = folder / "bin" / "python", folder / "copy"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"{wheel}[serve]", ROOT / "heads", *TESTS_NEED], check=True
    )
    for name in ("tests", "tools", "benchmarks"):  # where pytest looks for modules, but for the sources
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    return subprocess.run(command, cwd=copy, check=False).returncode == 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="run a part of the tests too")
    parser.add_argument("wheel", type=Path, help="of this package")
    parser.add_argument("llama", type=Path, nargs="+", help="wheels of llama-cpp-python")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for i, llama in enumerate(args.llama):
            folder = (Path(scratch) / f"build{i}").resolve()
            found = check(args.wheel.resolve(), llama.resolve(), folder)
            is_own = all(path.startswith(str(folder)) for path in (*found["libraries"], found["core"]))
            n_libllama = sum(Path(path).name.startswith("libllama.") for path in found["libraries"])
            is_right = found["same"] and found["drafted"] > 0 and is_own and n_libllama in (0, 1)  # 0: unknown
            if args.tests:
                is_right &= run_tests(args.wheel.resolve(), folder)
            failed |= not is_right
            print(f"{llama}: {'ok' if is_right else 'FAILED'}")
            print(f"  text as plain llama_cpp's: {found['same']}; accepted {found['accepted']}/{found['drafted']}")
            print(f"  libraries: {', '.join(Path(path).name for path in found['libraries'])}")
            print(f"  {found['system'].strip()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
