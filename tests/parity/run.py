"""Run llama.cpp's own server tests against llama-server and against us, with the same local model.

    python tests/parity/run.py [--part] [-f FILES] [-k EXPRESSION]

Every test that llama-server passes must pass here, except those in exceptions.txt, with reasons. Many tests assert the
text of a model that is not at hand: those fail on both sides.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from llama_cpp_eagle3.models import bundled_pair

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from comparison.peer_tools import get_source, get_tools

FOLDER = Path(__file__).resolve().parent
FILES = (
    *("tokenize", "ignore_eos", "completion", "ctx_shift", "chat_completion", "template", "tool_call"),
    *("basic", "metrics", "security", "slot_save", "speculative", "compat_oai_responses", "compat_anthropic"),
    *("infill", "embedding"),
)
PART = ("tokenize", "ignore_eos", "metrics", "slot_save", "compat_oai_responses")
"""Tests for the continuous integration, which does not build llama-server: passed.txt lists those that it passes."""
PASSED = FOLDER / "passed.txt"


def run(files: list[str], server: str, tests: Path, expression: str) -> dict[str, tuple[str, str]]:
    """Return test -> (passed, failed or skipped; the reason)."""
    target, head = bundled_pair()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        report = Path(folder) / "report.xml"
        environment = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(FOLDER / "program.py"),
            "PARITY_SERVER": server,
            "PARITY_MODEL": str(target),
            "PARITY_HEAD": str(head),
            "PORT": str(port),
            "PYTHONPATH": f".{os.pathsep}{FOLDER}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--noconftest",
            "-p",
            "parity_plugin",
            "-p",
            "no:cacheprovider",
        ]
        command += ["-m", "not slow", "-k", expression, f"--junitxml={report}"]
        command += [f"unit/test_{name}.py" for name in files]
        subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.DEVNULL, check=False)
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            bad = next(
                (case.find(kind) for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None
            )
            state = "passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"
            name = f"{case.get('classname', '').removeprefix('unit.test_')}::{case.get('name')}"
            found[name] = (state, "" if bad is None else bad.get("message", "").replace("\n", " ")[:200])
        return found


def exceptions() -> dict[str, str]:
    """Return test, or its beginning up to a bracket -> why it cannot pass here."""
    lines = (FOLDER / "exceptions.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("  ", 1) for line in lines if line and not line.startswith("#"))
    return {name: reason.strip() for name, reason in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="store_true", help=f"{', '.join(PART)}, against what is recorded")
    parser.add_argument("--record", action="store_true", help="write down what llama-server passes, and nothing else")
    parser.add_argument("-f", "--files", nargs="*", default=[], choices=FILES, metavar="NAME")
    parser.add_argument("-k", "--keyword", default="", metavar="EXPRESSION")
    args = parser.parse_args()
    files = args.files or list(PART if args.part else FILES)
    tests = get_source() / "tools" / "server" / "tests"
    start = time.monotonic()
    if args.part:
        lines = PASSED.read_text(encoding="utf-8").splitlines()
        peer = {name: ("passed", "") for name in lines if name.split("::")[0] in files}
    else:
        peer = run(files, str(get_tools() / "llama-server"), tests, args.keyword)
    if args.record:
        names = sorted(name for name, (state, _) in peer.items() if state == "passed")
        PASSED.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return 0
    own = run(files, "", tests, args.keyword)
    excused = exceptions()
    wrong, used = [], set()
    for name, (state, _) in peer.items():
        reason = next((key for key in excused if name == key or name.split("[")[0] == key), None)
        own_state, why = own.get(name, ("missing", ""))
        if state != "passed" or own_state == "passed":
            continue
        if reason is None:
            wrong.append(f"{name}: {why}")
        else:
            used.add(reason)
    counts = {
        side: sum(state == "passed" for state, _ in found.values()) for side, found in (("peer", peer), ("own", own))
    }
    better = sum(peer[name][0] == "failed" and own[name][0] == "passed" for name in peer if name in own)
    print(
        f"{len(peer)} tests: llama-server passes {counts['peer']}, we pass {counts['own']} ({better} that it does not)"
    )
    print(f"{len(used)} exceptions, {time.monotonic() - start:.0f} s")
    for line in wrong:
        print(f"  {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
