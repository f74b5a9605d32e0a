"""`batch --ray`: two workers, of which one is killed, or its node."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli import main

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # 30 s are too few for a busy machine
ray = pytest.importorskip("ray", reason="ray is not installed: 0.5 GiB, by `make .venv/stamps/ray`")

FLAGS = ["-np", "2", "-c", "512", "-t", "1", "--spec-draft-n-max", "3", "--temp", "0"]
N = 64


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Start one node with two CPUs, or a head without any and two nodes with one; yield a killer of worker or node."""
    from ray.cluster_utils import Cluster

    options = {"include_dashboard": False}
    is_one = getattr(request, "param", "worker") == "worker"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 if is_one else 0, **options})
        try:
            added = [] if is_one else [nodes.add_node(num_cpus=1, **options) for _ in range(2)]
            ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")

            def kill() -> None:
                if added:
                    nodes.remove_node(added[0], allow_graceful=False)
                else:
                    os.kill(min(workers()), signal.SIGKILL)

            yield kill
        finally:
            ray.shutdown()
            nodes.shutdown()


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cluster", ["worker", "node"], indirect=True)
def test_one_of_two_is_killed(cluster: Callable[[], None], pair: Any, tmp_path: Path) -> None:
    """All requests are answered, once, with the text that one machine gives."""
    source, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    bodies = [{"prompt": "the self" * (i % 3 + 1), "max_tokens": 100} for i in range(N)]
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)
    ]
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": 5}})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    n_done: list[int] = []

    def kill_one() -> None:
        while not n_done and threading.main_thread().is_alive():
            if len(workers()) == 2 and results.is_file() and (n := results.read_bytes().count(b"\n")) > 0:
                n_done.append(n)
                cluster()
            time.sleep(0.01)

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    flags = ["-m", str(pair[0].path), "-md", str(pair[1].path), *FLAGS]
    code = main(["batch", str(source), "-o", str(results), "--ray", "--ray-workers", "2", *flags])
    thread.join(30)
    assert 0 < n_done[0] < N  # some requests were left
    assert code == 1  # the bad request
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in found) == sorted(line["custom_id"] for line in lines)
    answers = {line["custom_id"]: line for line in found}
    assert answers.pop("bad")["error"]["code"] == "invalid_request_error"
    alone = tmp_path / "alone.jsonl"
    assert main(["batch", str(source), "-o", str(alone), "--limit", "3", *flags]) == 0
    for line in map(json.loads, alone.read_text().splitlines()):
        text = line["response"]["body"]["choices"][0]["text"]
        for i in range(int(line["custom_id"][1:]), N, 3):
            assert answers[f"r{i}"]["response"]["body"]["choices"][0]["text"] == text


@pytest.mark.filterwarnings("ignore")
def test_errors_are_one_line(cluster: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "prompts.txt"
    source.write_text("hello\n")
    options = ["-m", str(tmp_path / "none.gguf"), "-o", str(tmp_path / "out.jsonl"), "--ray"]
    assert main(["batch", str(source), *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("llama-cpp-eagle3: error: Ray gave up: ")
    assert "none.gguf" in error
