"""The first start on a machine measures, and leaves no threads that would slow the engine's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

N_THREADS = 9
PROGRAM = """
import os, sys, time
import numpy
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.cli import serve
from llama_cpp_eagle3.cli.load_server import load_server
from llama_cpp_eagle3.cli.server_options import serve_options

def n_threads():
    return len(os.listdir("/proc/self/task"))

parser = Parser()
serve.add_arguments(parser)
args = parser.parse_args(sys.argv[1:])
before = n_threads()
server = load_server(args, serve_options(args))
def settled():  # they end by themselves, once their thread has
    end, counts = time.monotonic() + 60, []
    while time.monotonic() < end and (len(set(counts[-30:])) != 1 or len(counts) < 30):
        counts.append(n_threads())
        time.sleep(0.02)
    return counts[-1]

loaded = settled()
server.engine.add([1, 2, 3], max_tokens=2)
while server.engine.has_work:
    server.engine.step()
print("threads", loaded - before, n_threads() - loaded)
server.stop()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not list threads")
def test_no_pool_of_threads_is_left(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """libgomp counts the pools of all threads, and with more threads than processors none spins while waiting."""
    flags = ["-m", pair[0].path, "-md", pair[1].path, "-t", str(N_THREADS), "-c", "64", "-np", "1"]
    env = {**os.environ, "LLAMA_CPP_EAGLE3_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *flags], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list((tmp_path / "costs").iterdir())
    loaded, stepped = map(int, done.stdout.split("threads")[-1].split())
    assert stepped >= N_THREADS - 1  # the pool of the thread that steps
    assert loaded < N_THREADS - 1
