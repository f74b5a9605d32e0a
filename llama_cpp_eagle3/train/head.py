"""Train the head of the bundled target: ``python -m llama_cpp_eagle3.train.head --work DIR --minutes 30``.

Needs what :mod:`target` left in DIR, and the package itself: the rows come from its tap on the GGUF target.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llama_cpp_eagle3.whole_file import whole_file

from . import corpus, export, generate, prompts, target
from .eagle import Head
from .model import Config, Llama

N_STEPS = 6
CHECKPOINT = "head.pt"


def corpus_windows(
    stream: NDArray[np.uint16], n_windows: int, n_ctx: int, rng: np.random.Generator
) -> NDArray[np.uint16]:
    """Windows of the training text, each opened by BOS, as the target was trained."""
    data = target.windows(stream, n_ctx, rng)[:n_windows, :n_ctx]
    return data.astype(np.uint16)


def draft_vocabulary(windows: NDArray[np.uint16], n_vocab: int, n_draft: int) -> tuple[NDArray[np.int64], float]:
    """The most frequent ``n_draft`` tokens, ascending, and the share of ``windows`` that they cover."""
    counts = np.bincount(windows[:, 1:].ravel(), minlength=n_vocab)
    d2t = np.sort(np.argsort(-counts, kind="stable")[:n_draft])
    return d2t.astype(np.int64), float(counts[d2t].sum() / counts.sum())


class Teacher:
    """The target's output side: probabilities over the draft vocabulary from rows at the last boundary."""

    def __init__(self, model: Llama, d2t: Tensor) -> None:
        self.model = model
        self.d2t = d2t
        self.inside = torch.zeros(model.cfg.n_vocab, dtype=torch.bool)
        self.inside[d2t] = True

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(probabilities over V_d, the target's argmax over V, whether that lies in V_d) of rows (..., n_embd)."""
        with target.autocast():
            logits = self.model.head(rows).float()
        best = logits.argmax(-1)
        return logits[..., self.d2t].softmax(-1), best, self.inside[best]


def ttt_loss(
    head: Head, teacher: Teacher, tokens: Tensor, rows: Tensor, n_steps: int, anchors: Tensor
) -> tuple[Tensor, list[float]]:
    """Sum over steps of 0.8^i times the masked soft cross entropy; and the share of rows right at each step."""
    n_in = rows.shape[2] - 1
    inputs = rows[:, :, :n_in].flatten(2).float()
    p, best, inside = teacher(rows[:, :, n_in].float())
    total = torch.zeros(())
    right: list[float] = []
    with target.autocast():
        for i, (at, logits) in enumerate(head.steps(tokens, inputs, n_steps, anchors)):
            log_q = logits.float().log_softmax(-1)
            mask = inside[:, at].float()
            total = total - 0.8**i * ((p[:, at] * log_q).sum(-1) * mask).mean()
            right.append(float((head.d2t[log_q.detach().argmax(-1)] == best[:, at]).float().mean()))
    return total, right


@torch.no_grad()
def acceptance(head: Head, teacher: Teacher, tokens: Tensor, rows: Tensor, first: Tensor, n_max: int) -> dict[str, Any]:
    """Draft ``n_max`` tokens from every row of text the target wrote greedily, and play the rounds.

    ``first`` is each window's prompt length. A chain is accepted as far as it equals the text, so the text's own tokens
    stand for the draft's at every step that counts.
    """
    n = tokens.shape[1]
    inputs = rows[:, :, : rows.shape[2] - 1].flatten(2).float()
    anchors = torch.arange(0, n - n_max - 1)
    hits = []
    for at, logits in head.steps(tokens, inputs, n_max, anchors):
        hits.append((head.d2t[logits.argmax(-1)] == torch.roll(tokens, -1, 1)[:, at])[:, : len(anchors)])
    hit = torch.stack(hits, -1)  # (n_batch, anchor, step): is the draft for position anchor + 2 + step right?
    accepted = hit.long().cumprod(-1).sum(-1)
    n_rounds, n_accepted = 0, 0
    per_position = np.zeros((n_max, 2))
    for b in range(len(tokens)):
        row = int(first[b]) - 1
        while row < len(anchors):
            a = int(accepted[b, row])
            n_rounds, n_accepted = n_rounds + 1, n_accepted + a
            for i in range(min(a + 1, n_max)):
                per_position[i] += (1, i < a)
            row += a + 1
    return {
        "mean_acceptance_length": round(1 + n_accepted / max(1, n_rounds), 3),
        "conditional": [round(float(right / max(1, seen)), 3) for seen, right in per_position],
    }


class Data:
    """Windows with their rows, from one or several memory-mapped arrays."""

    def __init__(self, parts: list[tuple[NDArray[np.uint16], NDArray[np.float16]]]) -> None:
        self.parts = parts
        self.index = [(i, j) for i, (windows, _) in enumerate(parts) for j in range(len(windows))]

    def batches(self, n_batch: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of shuffled (tokens, rows)."""
        order = rng.permutation(len(self.index))
        for first in range(0, len(order) - n_batch + 1, n_batch):
            picked = [self.index[k] for k in order[first : first + n_batch]]
            tokens = np.stack([self.parts[i][0][j] for i, j in picked]).astype(np.int64)
            rows = np.stack([self.parts[i][1][j] for i, j in picked])
            yield torch.from_numpy(tokens), torch.from_numpy(rows)


def prepare(
    args: argparse.Namespace, model: Llama
) -> tuple[Data, dict[str, tuple[Any, Any, Any]], NDArray[np.int64], dict[str, Any]]:
    """Windows, rows and draft vocabulary; what lies in the work folder is kept."""
    from . import features

    cfg, work = model.cfg, args.work
    stream = np.load(work / "train.npy")
    tokenizer = corpus.load_tokenizer(work / "tokenizer.json")
    rng = np.random.default_rng(args.seed)

    def cached(name: str, make: Any) -> NDArray[np.uint16]:
        path = work / f"{name}.npy"
        if not path.exists():
            np.save(path, make())
        return np.load(path)

    windows = {
        "head_own": cached("head_own", lambda: generate.continuations(model, stream, args.own, rng)),
        "head_corpus": cached("head_corpus", lambda: corpus_windows(stream, args.corpus, cfg.n_ctx, rng)),
    }

    def held_out() -> NDArray[np.uint16]:
        # one length for all, so that one batch does: the prompts' last 128 tokens
        ids = [[corpus.BOS, *tokenizer.encode(p["text"]).ids[-127:]] for p in prompts.cut(tokenizer, 160)]
        return generate.Generator(model)(torch.tensor([i for i in ids if len(i) == 128]), 136).numpy().astype(np.uint16)

    held = np.load(work / "heldout.npy")
    windows["eval_own"] = cached("eval_own", held_out)
    windows["eval_corpus"] = cached(
        "eval_corpus", lambda: corpus_windows(held, 16, cfg.n_ctx, np.random.default_rng(0))
    )

    def rows(name: str) -> NDArray[np.float16]:
        path = work / f"{name}_rows.npy"
        if path.exists():
            return np.load(path, mmap_mode="r")
        return features.extract(work / "target.gguf", cfg, windows[name], path, args.threads)

    data = Data([(windows[name], rows(name)) for name in ("head_own", "head_corpus")])
    n_draft = args.draft_vocab
    seen = np.concatenate(
        (windows["head_own"], windows["head_own"], windows["head_corpus"])
    )  # its own text counts double
    d2t, _ = draft_vocabulary(seen, cfg.n_vocab, n_draft)
    evals: dict[str, tuple[Any, Any, Any]] = {}
    coverage: dict[str, float] = {}
    for name in ("eval_own", "eval_corpus"):
        first = np.full(len(windows[name]), 128 if name == "eval_own" else 1)
        evals[name] = (windows[name].astype(np.int64), rows(name), first)
        coverage[name] = round(float(np.isin(windows[name], d2t).mean()), 4)
    info = {
        "own_windows": len(windows["head_own"]),
        "corpus_windows": len(windows["head_corpus"]),
        "coverage": coverage,
    }
    return data, evals, d2t, info


def evaluate(head: Head, teacher: Teacher, evals: dict[str, tuple[Any, Any, Any]], n_max: int) -> dict[str, Any]:
    """Acceptance on the target's greedy continuations of held-out prompts, and per-step accuracy on held-out text."""
    tokens, rows, first = evals["eval_own"]
    report = acceptance(head, teacher, torch.from_numpy(tokens), torch.from_numpy(rows), torch.from_numpy(first), n_max)
    tokens, rows, _ = evals["eval_corpus"]
    with torch.no_grad():
        anchors = torch.arange(0, tokens.shape[1] - N_STEPS - 1)
        loss, right = ttt_loss(head, teacher, torch.from_numpy(tokens), torch.from_numpy(rows), N_STEPS, anchors)
    return report | {"text_loss": round(float(loss), 4), "text_accuracy": [round(r, 3) for r in right]}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Prepare data, train, export; returns what provenance records."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = target.load(args.work / target.CHECKPOINT)
    if not (args.work / "target.gguf").exists():
        export.write_target(model, args.work / "tokenizer.json", args.work / "target.gguf")
    data, evals, d2t, info = prepare(args, model)
    head = Head(model.cfg, model.tok_embd.weight, torch.from_numpy(d2t), args.n_ff, N_STEPS, norm=model.norm.weight)
    teacher = Teacher(model, head.d2t)
    optimizer = target.Optimizer(head, args.lr, 0.02)
    step, epoch, elapsed, log = 0, 0, 0.0, []
    path = args.work / CHECKPOINT
    if path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch, elapsed, log = state["step"], state["epoch"], state["elapsed"], state["log"]

    def save() -> None:
        state = {"head": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch}
        with whole_file(path) as part:
            torch.save(state | {"elapsed": elapsed, "log": log}, part)
        export.write_head(head, d2t, args.work / "tokenizer.json", args.work / "draft.gguf")

    def progress() -> float:
        return step / args.steps if args.steps else elapsed / (args.minutes * 60)

    bar = target.progress_bar(args.steps, args.minutes, step, elapsed)
    bar.write(json.dumps(info | {"draft_vocab": len(d2t), "n_params": sum(p.numel() for p in head.parameters())}))
    last = saved = time.monotonic()
    while progress() < 1.0:
        rng = np.random.default_rng((args.seed, epoch, step))
        for tokens, rows in data.batches(args.batch, rng):
            n = tokens.shape[1] - N_STEPS - 1
            anchors = torch.from_numpy(np.sort(rng.choice(n, size=min(n, args.anchors), replace=False)))
            loss, right = ttt_loss(head, teacher, tokens, rows, N_STEPS, anchors)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step(args.lr * target.rate(progress(), step, args.warmup))
            step += 1
            now = time.monotonic()
            elapsed, last = elapsed + now - last, now
            bar.n = min(bar.total, step if args.steps else elapsed)
            bar.set_postfix_str(
                f"step {step} epoch {epoch} loss {loss.item():.3f} right {right[0]:.2f}..{right[-1]:.2f}"
            )
            if step % args.eval_every == 0:
                log.append(
                    {"step": step, "train_loss": round(loss.item(), 4), **evaluate(head, teacher, evals, args.n_max)}
                )
                bar.write(json.dumps(log[-1] | {"elapsed": round(elapsed)}))
            if now - saved > args.save_every:
                save()
                saved = now
            if progress() >= 1.0:
                break
        epoch += 1
    log.append({"step": step, **evaluate(head, teacher, evals, args.n_max)})
    save()
    bar.write(json.dumps(log[-1]))
    report = info | {"steps": step, "windows": step * args.batch, "minutes": round(elapsed / 60, 1), "log": log}
    report |= {"lr": args.lr, "batch": args.batch, "anchors": args.anchors, "ttt_steps": N_STEPS, "seed": args.seed}
    report |= {"draft_vocab": len(d2t), "n_ff": args.n_ff, "n_params": sum(p.numel() for p in head.parameters())}
    (args.work / "head.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/train"), help="work folder of the target's training")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time; the schedule follows it")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead of for a time (repeatable)")
    parser.add_argument("--own", type=int, default=1440, help="windows with text that the target writes")
    parser.add_argument("--corpus", type=int, default=2400, help="windows of the corpus")
    parser.add_argument("--draft-vocab", type=int, default=3072)
    parser.add_argument("--n-ff", type=int, default=Config.n_ff)
    parser.add_argument("--anchors", type=int, default=96, help="rows per window that later draft steps start from")
    parser.add_argument("--batch", type=int, default=8, help="windows of 512 tokens per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--eval-every", type=int, default=250, help="steps")
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds")
    parser.add_argument("--n-max", type=int, default=4, help="draft length of the acceptance figures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
