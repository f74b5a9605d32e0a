"""Two processes on this machine train one head."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.cli import main
from tiny import write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import trainer  # noqa: E402

_FLAGS = (
    *("--tokens", "300", "-n", "24", "-c", "160", "-np", "4", "--draft-vocab", "64", "-t", "1", "--outtype", "f32"),
    *("--steps", "4", "--ttt-steps", "2", "--eval-every", "2", "--dtype", "f32"),
)


def _torchrun(*command: str | Path) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launch, *map(str, command)], capture_output=True, text=True, timeout=300, env=env)


SCRIPT = """
import sys
from pathlib import Path

import torch
from llama_cpp_eagle3_heads.train.ranks import process_group

with process_group() as ranks:
    assert ranks.n_ranks == 2 and ranks.all_gather(ranks.rank) == [0, 1]
    assert ranks.broadcast(lambda: f"made by {ranks.rank}") == "made by 0"
    tensors = [torch.full((2, 3), 1.0 + ranks.rank), torch.tensor(10.0 * ranks.rank)]
    ranks.all_reduce(tensors)
    assert tensors[0].eq(3).all() and tensors[1] == 10
    head = torch.nn.Linear(2, 2, bias=False)
    frozen = torch.zeros(1)
    head.weight.grad = torch.full((2, 2), 4.0) if ranks.is_first else None
    ranks.average_gradients([head.weight, frozen])
    assert head.weight.grad.eq(2).all() and frozen.grad is None
    Path(sys.argv[1], f"rank {ranks.rank} is right").touch()
"""


def test_what_ranks_share(tmp_path: Path) -> None:
    """Ranks share values, sums and means of gradients, one of which is missing."""
    (tmp_path / "script.py").write_text(SCRIPT)
    found = _torchrun(tmp_path / "script.py", tmp_path)
    assert found.returncode == 0, found.stderr
    assert sorted(path.name for path in tmp_path.glob("rank*")) == ["rank 0 is right", "rank 1 is right"]


def test_two_ranks_are_one(tmp_path: Path) -> None:
    """Each takes half of every step's texts: together they learn what one learns from all, and one writes the head."""
    target = write_target(tmp_path / "target.gguf", n_layer=7)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"what is {i} and {i * i % 17}?\n" for i in range(30)))
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    command = ["train", "-m", target.path, "-f", str(prompts), *_FLAGS]
    assert main([*command, "-o", str(one), "--batch", "4"]) == 0
    works = [tmp_path / f"{name}.gguf.work" for name in ("one", "two")]
    shutil.copytree(works[0] / "rows", works[1] / "rows")
    for name in ("settings.json", "plan.json", "prompts.jsonl", "texts.jsonl", "d2t.npy"):
        shutil.copy(works[0] / name, works[1])
    found = _torchrun("-m", "llama_cpp_eagle3", *command, "-o", two, "--batch", "2", "--resume")
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("wrote") == found.stderr.count("best on held-out text") == 1
    logs = [json.loads((work / "log.json").read_text()) for work in works]
    for a, b in zip(*logs, strict=True):
        assert {name: a[name] for name in ("step", "epoch", "rows", "texts")} == {
            name: b[name] for name in ("step", "epoch", "rows", "texts")
        }
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
    states = [torch.load(work / trainer.STATE, weights_only=True)["head"] for work in works]
    for name, values in states[0].items():
        # AdamW also makes a step of gradients that are only rounding
        close = np.isclose(values.float().numpy(), states[1][name].float().numpy(), atol=1e-4)
        assert close.mean() > 0.99, name
    with Eagle3Llama(target.path, two, draft="chain", n_threads=1, verbose=False) as llm:
        llm("what is", max_tokens=20, temperature=0)
        assert llm.last_stats.drafts > 0
