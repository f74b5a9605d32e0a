"""`batch --ray` on a cluster of its own, of which a worker, a node or nothing is killed.

python ray_batch.py worker|node|nothing RESULTS ARGUMENTS: a program, since Ray may end the process that drives it.
Prints how many results there were when one was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from llama_cpp_eagle3.cli import main


def workers() -> set[int]:
    """Return the ids of the processes that have an engine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::MapWorker"):
                found.add(int(path.parent.name))
        except OSError:
            pass  # the process has ended meanwhile
    return found


def run(killed: str, results: Path, arguments: list[str]) -> int:
    """Run the command on one node with two CPUs, or on a head without any and two nodes with one."""
    is_one, options = killed != "node", {"include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 if is_one else 0, **options})
    added = [] if is_one else [nodes.add_node(num_cpus=1, **options) for _ in range(2)]
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    n_done: list[int] = []

    def kill_one() -> None:
        while not n_done:
            if len(workers()) == 2 and results.is_file() and (n := results.read_bytes().count(b"\n")) > 0:
                n_done.append(n)
                if is_one:
                    os.kill(min(workers()), signal.SIGKILL)
                else:
                    nodes.remove_node(added[0], allow_graceful=False)
            time.sleep(0.01)

    if killed != "nothing":
        threading.Thread(target=kill_one, daemon=True).start()
    try:
        code = main(arguments)
        print("killed after", *n_done, "results", flush=True)
        return code
    finally:
        ray.shutdown()
        nodes.shutdown()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
