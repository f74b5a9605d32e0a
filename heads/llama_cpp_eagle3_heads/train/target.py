"""Train the bundled target: ``python -m llama_cpp_eagle3_heads.train.target --out DIR --minutes 40``.

It leaves target.gguf there, and prompts.jsonl, from which ``train -f`` trains its head.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from llama_cpp_eagle3.files.whole_file import whole_file, write_whole

from . import corpus, export, prompts
from .model import Config, Llama
from .optimizer import Optimizer
from .trainer import native_bf16

CHECKPOINT = "target.pt"


def autocast() -> torch.autocast:
    """Have matrix products in bfloat16 where that is native; norms, softmax and the weights stay float32."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=native_bf16("cpu"))


def windows(stream: np.ndarray, n_ctx: int, rng: np.random.Generator) -> np.ndarray:
    """Cut one epoch: windows of ``n_ctx + 1`` tokens from a random offset, shuffled, each begun with BOS.

    A BOS before the middle of a file teaches the model to continue any prompt.
    """
    start = int(rng.integers(n_ctx))
    n = (len(stream) - start) // n_ctx
    out = np.empty((n, n_ctx + 1), dtype=np.int64)
    out[:, 0] = corpus.BOS
    out[:, 1:] = stream[start : start + n * n_ctx].reshape(n, n_ctx)
    return out[rng.permutation(n)]


def learning_rate(progress: float, step: int, warmup: int) -> float:
    """Return the factor of the learning rate: a linear warm-up over steps times a cosine from 1 to 0.02 over progress.

    progress: from 0 to 1.
    """
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def loss_of(model: Llama, batch: Tensor) -> Tensor:
    """Return the mean cross entropy of the next token."""
    with autocast():
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: Llama, stream: np.ndarray, n_windows: int = 48) -> dict[str, float]:
    """Return the loss and the next-token accuracy on evenly spaced held-out windows."""
    data = windows(stream, model.cfg.n_ctx, np.random.default_rng(0))[:n_windows]
    loss = right = total = 0.0
    for part in np.array_split(data, max(1, len(data) // 8)):
        batch = torch.from_numpy(part)
        with autocast():
            logits = model(batch[:, :-1]).float()
        loss += float(F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"))
        right += float((logits.argmax(-1) == batch[:, 1:]).sum())
        total += batch[:, 1:].numel()
    return {"loss": loss / total, "accuracy": right / total}


def progress_bar(steps: int, minutes: float, step: int, elapsed: float) -> Any:
    """Make a progress bar over steps if their number is given, else over seconds."""
    form = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"
    start, total, unit = (step, float(steps), "steps") if steps else (elapsed, minutes * 60, "s")
    return tqdm(total=total, initial=min(start, total), unit=unit, bar_format=form, mininterval=1.0)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train until the steps or minutes are over, and return the figures for PROVENANCE.md."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    corpus.prepare(args.out)
    stream = np.load(args.out / "train.npy")
    held = np.load(args.out / "heldout.npy")

    model = Llama(Config())
    optimizer = Optimizer(model.named_parameters(), args.lr, muon=True, weight_decay=0.0, weight_decay_muon=0.1)
    step, epoch, elapsed = 0, 0, 0.0
    log: list[dict[str, float]] = []
    path = args.out / CHECKPOINT
    if path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch, elapsed, log = state["step"], state["epoch"], state["elapsed"], state["log"]
    run = torch.compile(model) if args.compile else model

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": vars(model.cfg)}
        with whole_file(path) as part:
            torch.save(state | {"step": step, "epoch": epoch, "elapsed": elapsed, "log": log}, part)

    def progress() -> float:
        return step / args.steps if args.steps else elapsed / (args.minutes * 60)

    bar = progress_bar(args.steps, args.minutes, step, elapsed)
    loss = torch.zeros(())  # for a run that was complete already
    last = time.monotonic()
    saved = last
    while progress() < 1.0:
        # a resumed run starts its epoch afresh, with another shuffle than the interrupted one
        for part in np.split(
            *batches(windows(stream, model.cfg.n_ctx, np.random.default_rng((args.seed, epoch, step))), args.batch)
        ):
            loss = loss_of(run, torch.from_numpy(part))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(args.lr * learning_rate(progress(), step, args.warmup))
            step += 1
            now = time.monotonic()
            elapsed += now - last
            last = now
            bar.n = min(bar.total, step if args.steps else elapsed)
            bar.set_postfix_str(f"step {step} epoch {epoch} loss {loss.item():.3f}")
            if step % args.eval_every == 0:
                log.append({"step": step, "train_loss": loss.item(), **evaluate(model, held)})
                bar.write(json.dumps(log[-1] | {"elapsed": round(elapsed)}))
            if now - saved > args.save_every:
                save()
                saved = now
            if progress() >= 1.0:
                break
        epoch += 1
    log.append({"step": step, "train_loss": loss.item(), **evaluate(model, held, 200)})
    save()
    report = {
        "steps": step,
        "tokens": step * args.batch * model.cfg.n_ctx,
        "minutes": round(elapsed / 60, 1),
        "log": log,
    }
    report |= {
        "epochs": round(report["tokens"] / len(stream), 2),
        "torch": torch.__version__,
        "lr": args.lr,
        "batch": args.batch,
    }
    report |= {"n_params": sum(p.numel() for p in model.parameters()), "config": vars(model.cfg), "seed": args.seed}
    write_whole(args.out / "target.json", json.dumps(report, indent=2) + "\n")
    export.write_target(model, args.out / "tokenizer.json", args.out / "target.gguf")
    prompts.write_beginnings(corpus.load_tokenizer(args.out / "tokenizer.json"), args.out / "prompts.jsonl")
    bar.write(json.dumps(log[-1]))
    return report


def batches(data: np.ndarray, n_batch: int) -> tuple[np.ndarray, int]:
    """Return the arguments of ``np.split`` that split data into whole batches, without the rest."""
    n = max(1, len(data) // n_batch)
    return data[: n * n_batch], n


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/train"), help="work folder: corpus, checkpoints, report"
    )
    parser.add_argument("--minutes", type=float, default=50.0, help="training time; the schedule follows it")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead of for a time (repeatable)")
    parser.add_argument("--batch", type=int, default=8, help="windows of 512 tokens per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--eval-every", type=int, default=250, help="steps")
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
