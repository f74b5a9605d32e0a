"""Try this package with another release of llama-cpp-python, and report the differences from the pinned one.

    python tools/upstream.py 0.3.35            build it (llama.cpp takes some minutes), probe, print the differences
    python tools/upstream.py 0.3.36 --record   for the pinned release, in this checkout: renew tools/upstream.json

Another release is tried in a folder of the cache, with a copy of this source whose pin is moved. Compared are Llama's
arguments and llama.h's parameters, the architectures with their taps and ways of taking back
(tests/target/test_targets.py, as in docs/targets.md), tests about facts of llama.cpp, and 300 spoilt files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tools" / "upstream.json"
PIN = ROOT / "vendor" / "llama_cpp_python_version"
_TEST_NEEDS = ("pytest>=8.0", "gguf>=0.19", "hypothesis>=6.100", "numpy")
PARTS = ("surface", "architectures", "tests", "spoilt files")
RECORDED_PARTS = ("surface", "spoilt files")
"""Parts that are recorded; the others are known: docs/targets.md, and tests that pass."""
TESTS = (
    *("tests/target/test_tap.py", "tests/target/test_tap_archs.py", "tests/target/test_target.py"),
    *("tests/target/test_target_tree.py", "tests/drafters/test_drafter.py", "tests/target/test_targets_refused.py"),
    *("tests/chat/test_templates.py", "tests/chat/test_parser.py", "tests/engine/test_grammar.py"),
    "tests/engine/test_sampling.py",
)
"""Tests that depend on llama.cpp's behaviour."""

_SURFACE = """
import inspect, json, llama_cpp
from llama_cpp import llama_cpp as lib
fields = lambda struct: [name for name, *_ in struct._fields_]
arguments = inspect.signature(llama_cpp.Llama.__init__).parameters
print(json.dumps({
    "Llama's arguments": {name: repr(p.default) for name, p in arguments.items()},
    "llama_model_params": fields(lib.llama_model_params),
    "llama_context_params": fields(lib.llama_context_params),
    "llama_batch": fields(lib.llama_batch),
}))
"""
_TABLE = re.compile(r"^\| (\S+) \| (.*) \|$", re.MULTILINE)


class Trial:
    """The trial of one release, in its folder."""

    def __init__(self, version: str, folder: Path, patch: Path | None = None):
        self.version, self.folder, self.patch = version, folder, patch
        self.is_pinned = version == PIN.read_text().strip()
        self.source = ROOT if self.is_pinned else folder / "source"
        self.python = self.source / ".venv" / "bin" / "python"
        self.stand_in = self.source / "llama_cpp_eagle3" / "_chat.py"  # in its place if the chat code does not compile

    def build(self) -> None:
        """Install the release and, against it, a copy of this source, as the Makefile does it.

        Raises:
            SystemExit: one of them cannot be built; the compiler's messages are in the log.
        """
        if not self.is_pinned:
            self._copy()
        if self.patch is not None and not self._run(
            "patch", ["patch", "-p1", "-d", str(self.source), "-i", str(self.patch)]
        ):
            raise SystemExit(f"'{self.patch}' does not fit this source")
        say(f"building llama-cpp-python {self.version}, unless pip has a wheel of it, and this package: some minutes")
        make = ["make", "-C", str(self.source), ".venv/stamps/cli"]
        if not self._run("build", make):
            say("once more without llama.cpp's chat code")
            self.stand_in.write_text('def __getattr__(name):\n    raise ImportError("built without _chat")\n')
            if not self._run("build-without-chat", make, "-DEAGLE3_CHAT=OFF"):
                raise SystemExit(f"llama-cpp-eagle3 cannot be built against llama-cpp-python {self.version}")
        self._run("tools", [str(self.python), "-m", "pip", "install", "--quiet", *_TEST_NEEDS])

    def _copy(self) -> None:
        """Copy this source with the pin moved; unchanged files stay, so that little is compiled again."""
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        pinned = PIN.read_text().strip()
        wanted = {name for name in names if name and (ROOT / name).is_file()}
        for name in wanted:
            data = (ROOT / name).read_bytes()
            if name in ("vendor/llama_cpp_python_version", "llama_cpp_eagle3/_version.py", "pyproject.toml"):
                data = data.replace(pinned.encode(), self.version.encode())
            path = self.source / name
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for path in [*self.source.rglob("*.py"), *self.source.glob("csrc/**/*.*")]:
            name = path.relative_to(self.source).as_posix()
            if name not in wanted and not name.startswith((".venv/", "build/")):
                path.unlink()

    def probe(self, part: str, n_cases: int) -> Any:
        """Return the release's results in one of `PARTS`."""
        say(part)
        if part == "surface":
            done = subprocess.run([self.python, "-c", _SURFACE], capture_output=True, text=True, check=True)
            return json.loads(done.stdout.splitlines()[-1])
        if part == "architectures":
            failed = self._pytest("tests/target/test_targets.py", write=True)
            return {"failed tests": failed, **architectures(self.source)}
        if part == "tests":
            return dict(self._tests())
        return self._fuzz(n_cases)

    def _tests(self) -> Iterator[tuple[str, list[str]]]:
        for test in TESTS:
            if self.stand_in.exists() and test.startswith("tests/chat/"):
                yield test, ["not run, for want of the chat code"]
                continue
            say(test)
            yield test, self._pytest(test)

    def _pytest(self, path: str, write: bool = False) -> list[str]:
        """Run a file of tests; return the failures."""
        report = self.folder / f"{Path(path).stem}.xml"
        report.unlink(missing_ok=True)
        environment = {**self._environment(), **({"EAGLE3_WRITE_DOCS": "1"} if write else {})}
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            "--no-showlocals",
            f"--junitxml={report}",
            path,
        ]
        command += ["-p", "no:cacheprovider", "-m", "not network and not gpu and not rpc"]
        with (self.folder / f"{Path(path).stem}.log").open("w") as log:
            status = subprocess.run(command, cwd=self.source, env=environment, stdout=log, stderr=log).returncode
        if not report.exists():
            return [f"no report: pytest ended with {status}"]
        failed = []
        for case in ET.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(str(case.get("name")))
        if status not in (0, 1):
            failed.append(f"pytest ended with {status}")
        return sorted(failed)

    def _fuzz(self, n_cases: int) -> dict[str, Any]:
        command = [
            str(self.python),
            "tools/fuzz_files.py",
            "--cases",
            str(n_cases),
            "--seed",
            "1",
            "--jobs",
            "1",
        ]
        done = subprocess.run(command, cwd=self.source, env=self._environment(), capture_output=True, text=True)
        if done.returncode not in (0, 1):
            return {"ended with": done.returncode}
        summary = json.loads(done.stdout)
        return {
            name: summary[name] for name in ("cases", "signals", "hangs", "unclean", "decoded", "refused", "outcomes")
        }

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LLAMA_CPP_EAGLE3_CACHE": str(self.folder / "cache"), "PYTHONPATH": ""}

    def _run(self, what: str, command: list[str], *options: str) -> bool:
        """Run a command, its output in a log; options: for CMake. If it fails, print the log's lines about errors."""
        log = self.folder / f"{what}.log"
        environment = {**os.environ, "CMAKE_ARGS": " ".join([os.environ.get("CMAKE_ARGS", ""), *options]).strip()}
        with log.open("w") as file:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment).returncode
        if status:
            lines = log.read_text(errors="replace").splitlines()
            at = [i for i, line in enumerate(lines) if re.search(r": error:|CMake Error", line)][:10]
            print("\n".join(line for i in at for line in lines[i : i + 4]), file=sys.stderr)
            print(f"{what} failed for {self.version}, see {log}", file=sys.stderr)
        return status == 0


def architectures(source: Path) -> dict[str, str]:
    """Return the rows of docs/targets.md."""
    rows = dict(_TABLE.findall((source / "docs" / "targets.md").read_text(encoding="utf-8")))
    return {name: row for name, row in rows.items() if name != "architecture" and "--" not in name}


def pinned_release() -> dict[str, Any]:
    """Return the pinned release's results: the record, docs/targets.md, and that all tests pass."""
    return {
        **json.loads(RECORDED.read_text()),
        "architectures": {"failed tests": [], **architectures(ROOT)},
        "tests": {test: [] for test in TESTS},
    }


def say(text: str) -> None:
    """Print the progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield one line for each difference of two results."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path}: {key}" if path else str(key)
            if key not in new:
                yield f"- {where}: {_short(old[key])}"
            elif key not in old:
                yield f"+ {where}: {_short(new[key])}"
            else:
                yield from differences(old[key], new[key], where)
    elif isinstance(old, list) and isinstance(new, list):
        yield from (f"- {path}: {item}" for item in old if item not in new)
        yield from (f"+ {path}: {item}" for item in new if item not in old)
        if sorted(map(str, old)) == sorted(map(str, new)) and old != new:
            yield f"  {path}: in another order"
    elif old != new:
        yield f"  {path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 200 else text[:197] + "..."


def main() -> int:
    """Run as a program; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="of llama-cpp-python")
    parser.add_argument("--cases", type=int, default=300, metavar="N", help="spoilt files (default: 300)")
    parser.add_argument("--folder", type=Path, help="(default: a folder of the version in the user's cache)")
    parser.add_argument("--patch", type=Path, help="what the source needs for that release, as a diff")
    parser.add_argument("--no-build", action="store_true", help="it is built; run the probes alone")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="look at this alone; the others as they were seen"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.relative_to(ROOT)}")
    args = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llama-cpp-eagle3"
    folder = (args.folder or cache / "upstream" / args.version).absolute()
    trial = Trial(args.version, folder, None if args.patch is None else args.patch.absolute())
    if args.record and not trial.is_pinned:
        parser.error("--record is for the pinned release: see docs/upgrading.md")
    trial.folder.mkdir(parents=True, exist_ok=True)
    if not args.no_build:
        trial.build()
    path = trial.folder / "result.json"
    if not args.part:
        path.unlink(missing_ok=True)
    for part in args.part or (RECORDED_PARTS if args.record else PARTS):
        found = trial.probe(part, args.cases)
        result = json.loads(path.read_text()) if path.exists() else {"version": args.version}
        result["chat code compiles"], result[part] = not trial.stand_in.exists(), found
        path.write_text(json.dumps(result, indent=1) + "\n")
    if args.record:
        kept = {name: result[name] for name in ("version", "chat code compiles", *RECORDED_PARTS)}
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    known = pinned_release()
    lines = list(differences({name: known[name] for name in known if name in result}, result))
    print("\n".join(lines) or "nothing differs")
    return int(any(not line.startswith("  version:") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
