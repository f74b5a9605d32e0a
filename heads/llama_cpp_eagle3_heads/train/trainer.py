"""The training loop of `llama-cpp-eagle3 train`, which can be interrupted anywhere and resumed."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.whole_file import whole_file, write_whole

from .acceptance import Acceptance, simulate_acceptance
from .data import Text
from .eagle import Head
from .loss import Loss, Teacher, sample_anchors, ttt_loss
from .optimizer import Optimizer
from .ranks import Ranks
from .rows import Sample, Source
from .work_file import reading

STATE, BEST = "state.pt", "best.pt"
_STANDSTILL = 20
"""A step that takes so many times the median means that the process was suspended: the schedule leaves that out."""

_N_MEASURED = 16
"""Texts whose rows measure the size of the target's values."""


@dataclass(frozen=True)
class Settings:
    """The settings of a training; the defaults suit a head of ten million parameters."""

    minutes: float = 60.0
    """Minutes of training, evaluations included, which the schedule follows unless `steps` is given."""
    steps: int = 0
    lr: float | None = None
    """Learning rate; None = 0.6 / width: 1e-3 for a head 600 wide, 1.5e-4 for one of 4096 (others take 1e-4)."""
    device: str | None = None
    """The torch device that the head learns on; None = an accelerator if there is one."""
    dtype: str = "auto"
    """The type of matrix products: "bf16", "f32", or "auto": bf16 where that is native. Weights and norms are f32."""
    optimizer: str = "adamw"
    """AdamW ("adamw"), or "muon" for the layers' matrices."""
    warmup: int = 30
    batch: int = 4
    """Texts per step."""
    ttt_steps: int = 4
    anchors: int = 48
    """Rows of a text that later draft steps start from, at most."""
    clip: float = 0.5
    n_max: int = 4
    """Draft length of the acceptance figures."""
    eval_every: int = 100
    held_out_every: int = 32
    """One of so many texts is held out: it is never trained on."""
    n_held_out: int = 24
    patience: int = 0
    """Stop after so many evaluations without a better one; 0 = never."""
    save_every: float = 120.0
    """Seconds between two saves of the state."""
    seed: int = 1


class TrainingError(Eagle3Error):
    """The training cannot go on; the head of the step before is kept."""


def default_device(local_rank: int = 0) -> str:
    """Return the accelerator that torch has, or the CPU."""
    if torch.cuda.is_available():
        return f"cuda:{local_rank % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(name: str) -> None:
    """Refuse a device that torch does not have.

    Raises:
        ValueError: torch knows no such device, or this machine has none.
    """
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        why = str(e).partition("\n")[0]
        raise ValueError(f"--device: torch has no '{name}' here (cpu, cuda, cuda:1, mps, ...): {why}") from None


def native_bf16(device: str) -> bool:
    """Whether a device multiplies bf16 natively, without converting it to f32."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device)[0] >= 8
    # torch has no public name for it; with AVX-512 alone it would convert bf16 to f32, which is slower than f32
    return device == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def split(texts: Sequence[Text], every: int) -> tuple[list[Text], list[Text]]:
    """Return the texts to train on and those that are held out, one of `every`, and at least one.

    A text is on the same side whatever other texts there are: a head that goes on is judged by none that it has read.

    Raises:
        TrainingError: there are fewer than two texts.
    """
    held = [text for text in texts if text.id % every == 0]
    if len(held) in (0, len(texts)):
        held = list(texts[:1])
    numbers = {text.id for text in held}
    train = [text for text in texts if text.id not in numbers]
    if not train:
        raise TrainingError(f"{len(texts)} texts are too few: at least 2 are needed, some hundred are a start")
    return train, held


class Trainer:
    """The training of one head."""

    def __init__(
        self,
        head: Head,
        source: Source,
        texts: Sequence[Text],
        folder: Path,
        settings: Settings,
        ranks: Ranks | None = None,
    ) -> None:
        """Begin, or go on from the state in the folder. All ranks pass the same texts and the same head."""
        self.head, self.source, self.folder, self.settings = head, source, folder, settings
        self.ranks = ranks or Ranks()
        self.lr = 0.6 / head.cfg.n_embd if settings.lr is None else settings.lr
        device = settings.device or default_device(self.ranks.local_rank)
        head.to(device)
        self.uses_bf16 = settings.dtype == "bf16" or (settings.dtype == "auto" and native_bf16(device))
        self._autocast = partial(torch.autocast, device.partition(":")[0], torch.bfloat16, enabled=self.uses_bf16)
        self.learned, self.held_out = split(texts, settings.held_out_every)
        self.teacher = Teacher(head.d2t, head.cfg.n_vocab)
        self.optimizer = Optimizer(head.named_parameters(), self.lr, muon=settings.optimizer == "muon")
        self.step = self.epoch = self.at = self.n_rows = self.n_without_gain = 0
        self.elapsed = 0.0
        self.best_score = (math.inf, math.inf)
        self.log: list[dict[str, Any]] = []
        if not self._load():
            self._scale_rows()

    def _scale_rows(self) -> None:
        """Fit the head's scale of rows to the target's values, before the first step."""

        def scaled() -> dict[str, Any]:
            samples = self.source.stream(self.learned[:_N_MEASURED])
            rows = [sample.rows[sample.n_first :] for sample in samples]
            self.head.scale_rows(torch.from_numpy(np.concatenate(rows)).float().to(self.head.device))
            state = self.head.state_dict()
            return {name: state[name].cpu() for name in ("row_scale", "fc.weight", "mask_hidden") if name in state}

        self.head.load_state_dict(self.ranks.broadcast(scaled), strict=False)

    def describe(self) -> str:
        """Describe the device, the type of products and the optimizer, for the log."""
        device = self.head.device
        name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
        return (
            f"the head learns on {name}, products in {'bf16' if self.uses_bf16 else 'f32'}, {self.settings.optimizer}"
        )

    @property
    def progress(self) -> float:
        """The share of the steps or minutes that is done, from 0 to 1."""
        s = self.settings
        return self.step / s.steps if s.steps else self.elapsed / (60 * s.minutes)

    def learning_rate(self) -> float:
        """Return this step's learning rate: a linear warm-up, then a cosine down to a fiftieth."""
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress)))
        return self.lr * cosine * min(1.0, (self.step + 1) / max(1, self.settings.warmup))

    def run(self) -> None:
        """Train to the end.

        Raises:
            TrainingError: the loss or its gradient is not finite.
        """
        s = self.settings
        total = float(s.steps or 60 * s.minutes)
        bar = tqdm(
            disable=not self.ranks.is_first,
            total=total,
            initial=min(total, self.step if s.steps else self.elapsed),
            unit="step" if s.steps else "s",
            desc="training",
            mininterval=2.0,
            bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]",
        )
        begun = self.elapsed
        recent: deque[float] = deque(maxlen=16)  # seconds of the last steps
        saved = last = time.monotonic()
        try:
            while self.progress < 1.0 and not self._is_early_stop():
                for samples in self._batches():
                    figures = self.train_step(samples)
                    self.at += len(samples) * self.ranks.n_ranks
                    now = time.monotonic()
                    took, last = now - last, now
                    if len(recent) == recent.maxlen and took > _STANDSTILL * median(recent):
                        if self.ranks.is_first:
                            bar.write(
                                f"a step took {took:.0f} s: the process stood still, which does not count", sys.stderr
                            )
                        took = median(recent)
                    recent.append(took)
                    self.elapsed = self._time_of_first(self.elapsed + took)
                    bar.n = min(bar.total, self.step if s.steps else self.elapsed)
                    accuracy = figures.accuracy
                    speed = self.n_rows / max(1e-9, self.elapsed) if begun == 0 else 0
                    bar.set_postfix_str(
                        f"step {self.step} epoch {self.epoch} loss {figures.mean:.3f} "
                        f"right {accuracy[0]:.2f}..{accuracy[-1]:.2f}" + (f" {speed:.0f} rows/s" if speed else "")
                    )
                    if self.step % s.eval_every == 0:
                        self._log_evaluation(self.evaluate(), bar)
                        last = time.monotonic()  # an evaluation may take so long that its step would look suspended
                        self.elapsed = self._time_of_first(self.elapsed + last - now)
                    if now - saved > s.save_every:
                        self.save()
                        saved = now
                    if self.progress >= 1.0 or self._is_early_stop():
                        break
                else:
                    self.epoch, self.at = self.epoch + 1, 0
            if not self.log or self.log[-1]["step"] != self.step:
                self._log_evaluation(self.evaluate(), bar)
        finally:
            bar.close()
            self.save()

    def _time_of_first(self, elapsed: float) -> float:
        """Return rank 0's time in seconds, which the schedule of all ranks follows."""
        if self.ranks.n_ranks == 1:
            return elapsed
        time_of_first = torch.tensor(elapsed if self.ranks.is_first else 0.0, dtype=torch.float64)
        self.ranks.all_reduce([time_of_first])
        return float(time_of_first)

    def _log_evaluation(self, found: dict[str, Any], bar: Any) -> None:
        if self.ranks.is_first:
            bar.write(json.dumps(found), file=sys.stderr)

    def _is_early_stop(self) -> bool:
        return 0 < self.settings.patience <= self.n_without_gain

    def _batches(self) -> Iterator[list[Sample]]:
        """Yield this rank's samples of each step that is left in this epoch."""
        s = self.settings
        order = np.random.default_rng((s.seed, self.epoch)).permutation(len(self.learned))
        n_ranks = self.ranks.n_ranks
        n_own = min(s.batch, max(1, len(self.learned) // n_ranks))
        n_left = (len(order) - self.at) // (n_own * n_ranks) * n_own * n_ranks
        batch: list[Sample] = []
        ours = order[self.at : self.at + n_left].reshape(-1, n_own)[self.ranks.rank :: n_ranks]
        samples = self.source.stream(self.learned[i] for i in ours.flat)
        try:
            for sample in samples:
                batch.append(sample)
                if len(batch) == n_own:
                    yield batch
                    batch = []
        finally:
            samples.close()  # type: ignore[attr-defined]

    def train_step(self, samples: Sequence[Sample]) -> Loss:
        """Take one step and return its loss over all ranks.

        Raises:
            TrainingError: the loss or its gradient is not finite; the head is unchanged.
        """
        s, figures = self.settings, Loss()
        self.head.train()
        learned: list[Sample] = []
        anchors: list[Tensor] = []
        for sample in samples:
            rng = np.random.default_rng((s.seed, self.step, sample.id))
            if len(at := sample_anchors(sample, s.ttt_steps, s.anchors, rng)):
                learned.append(sample)
                anchors.append(at)
        if learned:
            with self._autocast():
                loss, figures = ttt_loss(self.head, self.teacher, learned, s.ttt_steps, anchors)
            loss.backward()
        self.ranks.average_gradients(self.head.parameters())
        figures = Loss.sum(self.ranks.all_gather(figures))
        norm = float(torch.nn.utils.clip_grad_norm_(self.head.parameters(), s.clip))
        if not (math.isfinite(figures.total) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"step {self.step}: the loss is {figures.mean}, its gradient {norm}. The head of the step before is "
                f"kept in '{self.folder}': go on with --resume and a lower --lr (now {self.lr:g})"
            )
        self.optimizer.step(self.learning_rate())
        self.step += 1
        self.n_rows += int(figures.n_rows)
        return figures

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Measure the loss and the simulated acceptance on held-out text; the head is kept if it is the best so far.

        The best head has the most tokens a step: of texts that are read often the loss grows long before these fall.
        """
        s, loss, acceptance = self.settings, Loss(), Acceptance()
        self.head.eval()
        held = self.held_out[: s.n_held_out]
        for sample in self.source.stream(held[self.ranks.rank :: self.ranks.n_ranks]):
            rng = np.random.default_rng(sample.id)
            anchors = sample_anchors(sample, s.ttt_steps, 48, rng)
            with self._autocast():
                if len(anchors):
                    loss.add(ttt_loss(self.head, self.teacher, [sample], s.ttt_steps, [anchors])[1])
                if sample.temperature == 0:
                    simulate_acceptance(self.head, sample, s.n_max, acceptance)
        loss, acceptance = Loss.sum(self.ranks.all_gather(loss)), Acceptance.sum(self.ranks.all_gather(acceptance))
        found = {
            "step": self.step,
            "epoch": self.epoch,
            "rows": self.n_rows,
            "texts": len(self.learned) + len(self.held_out),
            "seconds": round(self.elapsed),
            "loss": round(loss.mean, 4),
            "right": loss.accuracy,
            "length": round(acceptance.mean_length, 3) if acceptance.n_drafts else None,
            "accepted": acceptance.conditional,
        }
        if not acceptance.n_drafts:
            found["why_no_length"] = (
                f"of {len(held)} held-out texts none was generated at temperature 0 and has an answer of more than "
                f"{s.n_max + 1} tokens"
            )
        self.log.append(found)
        score = (-acceptance.mean_length if acceptance.n_drafts else 0.0, loss.mean)
        if score < self.best_score:
            self.best_score, self.n_without_gain = score, 0
            if self.ranks.is_first:
                with whole_file(self.folder / BEST) as part:
                    torch.save({"head": self.head.state_dict(), "log": found}, part)
        else:
            self.n_without_gain += 1
        return found

    def save(self) -> None:
        """Write the state that a resumed run needs; rank 0 writes it for all."""
        if not self.ranks.is_first:
            return
        state = {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{name: getattr(self, name) for name in _KEPT},
        }
        with whole_file(self.folder / STATE) as part:
            torch.save(state, part)
        write_whole(self.folder / "log.json", json.dumps(self.log, indent=1) + "\n")

    def _load(self) -> bool:
        """Load the state of an earlier run; False = there is none."""
        path = self.folder / STATE

        def read() -> Any:
            with reading(path):
                return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None

        state = self.ranks.broadcast(read)
        if state is None:
            return False
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in state.keys() & _KEPT:
            setattr(self, name, state[name])
        return True

    def load_best(self) -> dict[str, Any]:
        """Load the best head's weights, and return its evaluation; {} = no head was evaluated."""
        if (self.folder / BEST).exists():
            with reading(self.folder / BEST):
                state = torch.load(self.folder / BEST, map_location="cpu", weights_only=True)
            self.head.load_state_dict(state["head"])
            return dict(state["log"])
        return {}


_KEPT = {"step", "epoch", "at", "n_rows", "n_without_gain", "elapsed", "best_score", "log"}
