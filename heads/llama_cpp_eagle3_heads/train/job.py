"""What `llama-cpp-eagle3 train` is to do, and the work folder in which it does it."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from llama_cpp_eagle3._core import read_head, read_target
from llama_cpp_eagle3.files.fingerprint import fingerprint
from llama_cpp_eagle3.files.whole_file import write_whole

from ..convert import convert
from .measure import Side
from .plan import MINUTES, Budget, Plan
from .trainer import STATE, Settings, default_device, native_bf16
from .work_file import reading

_SETTINGS = "settings.json"
_VERSION = 4
"""The version of the work folder's files: 3 ignored --draft-vocab with --init, 2 had another state of the optimizer, 1
had other names of the head's weights."""
_MUON_WIDTH_MAX = 1024
"""The widest head that Muon suits: beyond it Muon's own products, in bf16, cost more than a third of the training's
(docs/training.md)."""
_BATCH = {"adamw": 4, "muon": 8}


@dataclass(frozen=True)
class Job:
    """The arguments of `llama-cpp-eagle3 train`."""

    target: Path
    output: Path
    files: Sequence[Path] = ()
    init: Path | None = None
    work: Path | None = None
    resume: bool = False
    cache: Path | None = None
    """The folder that rows are kept in; None: the work folder, if they take less than half of the disk's free room."""
    keeps_rows: bool = True
    export: Path | None = None
    export_form: str = "eagle"
    budget: Budget = field(default_factory=Budget)
    """If empty: 60 minutes, or the budget of the run that goes on."""
    max_tokens: int = 320
    """Tokens of an answer, at most."""
    n_ctx: int = 768
    n_parallel: int = 16
    layers: tuple[int, ...] = ()
    n_ff: int | None = None
    """Width of a fresh head's feed-forward layer; None: the target's."""
    draft_vocab: int | None = None
    """Tokens that the head can draft; None: 8192, or as many as --init."""
    keeps_vocab: bool = False
    """Whether the head of --init keeps its tokens, whatever the answers have."""
    eagle31: bool = False
    """A fresh head with EAGLE-3.1's norms."""
    outtype: str = "q8_0"
    n_threads: int | None = None
    n_gpu_layers: int = 0
    n_measured: int = 16
    """Held-out prompts for the figures at the end, at most."""
    n_evaluated: int = 128
    """Tokens of each of their answers, at most."""
    optimizer: str | None = None
    """The optimizer, "adamw" or "muon"; None: the one that suits the width of the head."""
    batch: int | None = None
    """Texts per step; None: as many as suit the optimizer."""
    ttt_steps: int | None = None
    """Draft steps of the loss; None: 4, or those that the run was begun with."""
    eval_every: int | None = None
    """Steps between evaluations; None: an eighth of the expected steps, within 25 and 100."""
    training: Settings = field(default_factory=Settings)
    """The trainer's settings; :func:`decided` fills in those that an argument above is about."""

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `Eagle3Llama` that every load of the target has."""
        n_threads = self.n_threads or torch.get_num_threads()
        return {"n_threads": n_threads, "n_threads_batch": n_threads, "n_gpu_layers": self.n_gpu_layers}

    @property
    def answer_device(self) -> str:
        """The torch device that finds an answer's most probable tokens: the CUDA GPU that generates it, or the CPU.

        MPS's topk is of few values alone, so that a Mac sorts on the CPU.
        """
        device = self.training.device or default_device()
        return device if self.n_gpu_layers and device.startswith("cuda") else "cpu"

    @property
    def folder(self) -> Path:
        """The work folder, with all files that the run needs to go on."""
        return self.work or self.output.with_name(self.output.name + ".work")

    @property
    def n_prompt_max(self) -> int:
        """Tokens of the longest prompt that leaves room for an answer."""
        return self.n_ctx - min(self.max_tokens, self.n_ctx // 2)

    @property
    def d2t_path(self) -> Path:
        """The file of the draft vocabulary, once that is chosen."""
        return self.folder / "d2t.npy"

    @property
    def rows(self) -> Path:
        """The folder of rows, if they are kept."""
        return self.cache or self.folder / "rows"

    @property
    def n_steps(self) -> int:
        """The most draft steps that the head runs, in the loss or in an evaluation."""
        return max(self.training.ttt_steps, self.training.n_max)

    @property
    def sides(self) -> dict[str, Side]:
        """The ways of generation that are compared at the end: the target alone first, the new head last, and chains
        before "auto".
        """
        heads = {} if self.init is None else {"the head of --init": self.init_gguf()}
        sides = {"without a head": Side()}
        for name, head in {**heads, "the new head": self.output}.items():
            sides[f"with {name}, chains of {self.training.n_max}"] = Side(head)
            sides[f"with {name}, draft='auto'"] = Side(head, "auto")
        return sides

    def init_gguf(self) -> Path:
        """Return the path of --init's GGUF; a checkpoint is converted first, into the work folder."""
        assert self.init is not None
        if not self.init.is_dir():
            return self.init
        path = self.folder / "init.gguf"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            convert(self.init, self.target, path, outtype="f32")
        return path


def decided(job: Job) -> Job:
    """Fill in the budget, the optimizer and the batch: those that the run was begun with, else those that suit."""
    settings = read_settings(job) if job.resume else {}
    width = read_target(str(job.target)).n_embd if job.init is None else read_head(str(job.init_gguf())).n_embd
    has_bf16 = native_bf16(job.training.device or default_device())
    suited = "muon" if width <= _MUON_WIDTH_MAX and has_bf16 else "adamw"
    optimizer = job.optimizer or settings.get("optimizer") or suited
    if optimizer == "muon" and not has_bf16:
        log("--optimizer muon: this device converts bf16 to f32 to multiply it: its steps take many times as long")
    training = replace(
        job.training,
        optimizer=optimizer,
        batch=job.batch or settings.get("batch") or _BATCH[optimizer],
        ttt_steps=job.ttt_steps or settings.get("ttt_steps") or job.training.ttt_steps,
    )
    budget = job.budget
    if budget == Budget():
        plan = Plan.load(job.folder) if job.resume else None
        budget = Budget(MINUTES) if plan is None else plan.budget
    return replace(job, budget=budget, training=training)


def check_folder(job: Job) -> None:
    """Refuse the work folder of another run, and write this run's settings into it.

    Raises:
        ValueError: the folder holds a training and --resume was not given, or it has other settings.
    """
    path = job.folder / _SETTINGS
    job.folder.mkdir(parents=True, exist_ok=True)
    ours = {
        "version": _VERSION,
        "target": fingerprint(str(job.target)),
        "files": [str(f) for f in job.files],
        "init": None if job.init is None else str(job.init),
        **{name: getattr(job, name) for name in ("n_ctx", "max_tokens", "n_ff", "draft_vocab")},
        "layers": list(job.layers),
        "norms": dict.fromkeys(("fc_norm", "norm_output"), job.eagle31),
        "seed": job.training.seed,
        "optimizer": job.training.optimizer,
        "ttt_steps": job.training.ttt_steps,
    }
    settings = {**ours, "batch": job.training.batch}
    if is_begun(job.folder):
        if not job.resume:
            raise ValueError(
                f"'{job.folder}' holds a training that was begun: use --resume to go on with it, or another --work"
            )
        theirs = read_settings(job)
        different = [name for name in ours if theirs.get(name) != ours[name]]
        if different:
            raise ValueError(
                f"'{job.folder}' was begun with other settings: "
                + ", ".join(f"{name} {theirs.get(name)!r} instead of {ours[name]!r}" for name in different)
            )
    elif job.resume:
        raise ValueError(f"--resume: '{job.folder}' holds no training that was begun")
    write_whole(path, json.dumps(settings, indent=1) + "\n")


def is_begun(folder: Path) -> bool:
    """Whether a work folder holds a run to go on with."""
    return (folder / _SETTINGS).exists() and any(
        (folder / name).exists() for name in (STATE, "prompts.jsonl", "d2t.npy")
    )


def read_settings(job: Job) -> dict[str, Any]:
    """Return the settings that the run was begun with; empty = it was not begun."""
    path = job.folder / _SETTINGS
    with reading(path):
        return dict(json.loads(path.read_text())) if path.exists() else {}


def log(text: str) -> None:
    """Print a line for the user on standard error."""
    print(text, file=sys.stderr, flush=True)
