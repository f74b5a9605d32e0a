"""`batch --ray`: two workers, of which one is killed, or its node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli import main

pytest.importorskip("ray", reason="ray is not installed: 0.5 GiB, by `make .venv/stamps/ray`")

SUPPORT = Path(__file__).resolve().parents[1] / "support"
PATIENCE = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_health_check_timeout_ms": "60000",
}
"""On a busy machine Ray takes for dead what is only late."""
FLAGS = ["-np", "2", "-c", "512", "-t", "1", "--spec-draft-n-max", "3", "--temp", "0"]
N = 64


def run_ray(killed: str, results: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `batch --ray` on a cluster of its own. killed: worker, node or nothing."""
    environment = {**os.environ, **PATIENCE, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-X", "faulthandler", str(SUPPORT / "ray_batch.py"), killed, str(results), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("killed", ["worker", "node"])
def test_one_of_two_is_killed(killed: str, pair: Any, tmp_path: Path) -> None:
    """All requests are answered, once, with the text that one machine gives."""
    source, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    bodies = [{"prompt": "the self" * (i % 3 + 1), "max_tokens": 100} for i in range(N)]
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)
    ]
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": 5}})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["-m", str(pair[0].path), "-md", str(pair[1].path), *FLAGS]
    done = run_ray(killed, results, ["batch", str(source), "-o", str(results), "--ray", "--ray-workers", "2", *flags])
    assert done.returncode == 1, done.stderr  # the bad request
    (n_done,) = re.findall(r"killed after (\d+) results", done.stdout)  # Ray writes there too
    assert 0 < int(n_done) < N  # some requests were left
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


def test_errors_are_one_line(tmp_path: Path) -> None:
    source, results = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    source.write_text("hello\n")
    options = ["-m", str(tmp_path / "none.gguf"), "-o", str(results), "--ray"]
    done = run_ray("nothing", results, ["batch", str(source), *options])
    assert done.returncode == 2
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("llama-cpp-eagle3: error: Ray gave up: ")
    assert "none.gguf" in error
