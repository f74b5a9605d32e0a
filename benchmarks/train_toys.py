"""Train small drafters of other kinds for the bundled target: an MTP block and a block drafter (DFlash).

They learn from the standard library's text, as the bundled pair did, with one thread, for `--minutes` of processor
time. Files of weights go to the cache folder; `drafters.py` makes GGUFs of them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import torch
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor, nn

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.files.cache_dir import cache_dir
from llama_cpp_eagle3_heads.convert.gguf_file import open_gguf
from llama_cpp_eagle3_heads.train import corpus
from llama_cpp_eagle3_heads.train.model import Config, Llama
from llama_cpp_eagle3_heads.train.trainer import native_bf16
from toys.files import LAYERS
from toys.modules import BlockDrafter, MtpBlock

N_STEPS = 4
BLOCK_SIZE = 8
MASK_TOKEN = corpus.EOS
STEP_WEIGHT = 0.8
N_TOP = 16
_NAMES = {
    "attn_norm": "attn_norm", "attn.q": "attn_q", "attn.k": "attn_k", "attn.v": "attn_v", "attn.o": "attn_output",
    "ffn_norm": "ffn_norm", "ffn.gate": "ffn_gate", "ffn.up": "ffn_up", "ffn.down": "ffn_down",
}  # fmt: skip


def halves(weight: NDArray[np.float32], n_head: int) -> NDArray[np.float32]:
    """Reorder the rows of q or k from llama.cpp's neighbouring pairs to halves."""
    n_out, n_in = weight.shape
    return weight.reshape(n_head, n_out // n_head // 2, 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)


def bundled_target() -> Llama:
    """Load the bundled target in PyTorch."""
    model = Llama(Config())
    tensors = {
        t.name: np.asarray(dequantize(t.data, t.tensor_type)) for t in open_gguf(models.bundled_pair()[0]).tensors
    }
    cfg, state = model.cfg, {}
    for name in model.state_dict():
        if name.startswith("blocks."):
            _, il, part = name.removesuffix(".weight").split(".", 2)
            values = tensors[f"blk.{il}.{_NAMES[part]}.weight"]
            if part in ("attn.q", "attn.k"):
                values = halves(values, cfg.n_head if part == "attn.q" else cfg.n_head_kv)
        else:
            values = tensors[{"tok_embd.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]]
        state[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


def text_of(folder: Path) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the library as tokens, and the held-out files."""
    paths = folder / "train.npy", folder / "held.npy"
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        model = llama_cpp.Llama(str(models.bundled_pair()[0]), vocab_only=True, verbose=False)
        for path, files in zip(paths, corpus.sources(), strict=True):
            ids: list[int] = []
            for file in files:
                ids += [corpus.BOS, *model.tokenize(file.text.encode(), add_bos=False), corpus.EOS]
            np.save(path, np.array(ids, dtype=np.uint16))
    train, held = (np.load(path) for path in paths)
    return train, held


def batches(ids: NDArray[np.uint16], n_batch: int, n_tokens: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield windows of a text, drawn anew for ever."""
    while True:
        at = rng.integers(0, len(ids) - n_tokens, n_batch)
        yield torch.from_numpy(np.stack([ids[i : i + n_tokens] for i in at]).astype(np.int64))


class Teacher:
    """The target's best tokens for each row, and their probabilities among themselves."""

    def __init__(self, logits: Tensor):
        top = logits.float().topk(N_TOP)
        self.p, self.ids = top.values.softmax(-1), top.indices

    def loss(self, logits: Tensor, at: Tensor) -> tuple[Tensor, float]:
        """Return (cross entropy, share of rows whose best token is the target's), against the target's rows `at`."""
        logits = logits.float()
        ids, p = self.ids[:, at], self.p[:, at]
        loss = logits.logsumexp(-1) - (p * logits.gather(-1, ids)).sum(-1)
        return loss.mean(), (logits.detach().argmax(-1) == ids[..., 0]).float().mean().item()


def mtp_loss(block: MtpBlock, tokens: Tensor, rows: Tensor, teacher: Teacher, n: int, rng: np.random.Generator):
    """Return the loss and shares of the steps of a block."""
    anchors = torch.from_numpy(np.sort(rng.choice(tokens.shape[1] - N_STEPS - 1, n, replace=False)))
    total, right = torch.zeros(()), []
    for i, (at, drafted) in enumerate(block.steps(tokens, rows, N_STEPS, anchors)):
        loss, share = teacher.loss(drafted, at)
        total, right = total + STEP_WEIGHT**i * loss, [*right, share]
    return total, right


def block_loss(drafter: BlockDrafter, tokens: Tensor, rows: Tensor, teacher: Teacher, n: int, rng: np.random.Generator):
    """Return the loss and shares of the rows of a block."""
    anchors = torch.from_numpy(np.sort(rng.choice(tokens.shape[1] - BLOCK_SIZE, n, replace=False) + 1))
    drafted = drafter(tokens, rows, anchors)
    total, right = torch.zeros(()), []
    for i in range(BLOCK_SIZE - 1):
        loss, share = teacher.loss(drafted[:, :, i], anchors + i)
        total, right = total + STEP_WEIGHT**i * loss, [*right, share]
    return total, right


class Learner:
    """A module and its optimizer, on a schedule."""

    def __init__(self, module: nn.Module, lr: float):
        self.module, self.lr = module, lr
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)

    def learn(self, loss: Tensor, step: int, progress: float) -> None:
        """Do one step: a linear warm-up, then a cosine."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 0.5)
        rate = self.lr * min(1.0, (step + 1) / 30) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, progress))))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def save(path: Path, module: nn.Module) -> None:
    """Save weights as NumPy's arrays."""
    np.savez(path, **{name: value.numpy() for name, value in module.state_dict().items()})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=10.0, help="of the processor")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--window", type=int, default=256, help="tokens")
    p.add_argument("--folder", type=Path, default=cache_dir() / "toys")
    p.add_argument("--toys", nargs="+", choices=["mtp", "dflash"], default=["mtp", "dflash"], help="which learn")
    p.add_argument("--resume", action="store_true", help="go on from the weights in the folder")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    train, held = text_of(args.folder)
    target = bundled_target()
    block = MtpBlock(target, n_steps=N_STEPS)
    drafter = BlockDrafter(target, boundaries=LAYERS, n_layer=2, block_size=BLOCK_SIZE, mask_token=MASK_TOKEN)
    modules = {"mtp": block, "dflash": drafter}
    learners = {name: Learner(modules[name], 2e-3) for name in args.toys}

    for name, learner in learners.items() if args.resume else ():
        weights = np.load(args.folder / f"{name}.npz")
        learner.module.load_state_dict({key: torch.from_numpy(values) for key, values in weights.items()})

    def losses(tokens: Tensor, n: int) -> Iterator[tuple[str, Tensor, list[float]]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=native_bf16("cpu")):
            with torch.no_grad():
                states = target.hidden(tokens)
                teacher = Teacher(target.head(states[-1]))
            if "mtp" in learners:
                yield "mtp", *mtp_loss(block, tokens, states[-1], teacher, n, rng)
            if "dflash" in learners:
                rows = torch.cat([states[b] for b in LAYERS], dim=-1)
                yield "dflash", *block_loss(drafter, tokens, rows, teacher, n, rng)

    begun, step, log = time.process_time(), 0, []
    source, held_out = batches(train, args.batch, args.window, rng), batches(held, 8, args.window, rng)
    while True:
        progress = (time.process_time() - begun) / 60 / args.minutes
        if step % 100 == 0 or progress >= 1.0:
            with torch.no_grad():
                found = {name: [round(x, 3) for x in right] for name, _, right in losses(next(held_out), 64)}
            log.append({"step": step, "seconds": round(time.process_time() - begun), **found})
            print(json.dumps(log[-1]), flush=True)
            for name, learner in learners.items():
                save(args.folder / f"{name}.npz", learner.module)
            (args.folder / f"log-{'-'.join(learners)}.json").write_text(json.dumps(log, indent=1) + "\n")
        if progress >= 1.0:
            break
        for name, loss, _ in losses(next(source), 48):
            learners[name].learn(loss, step, progress)
        step += 1


if __name__ == "__main__":
    main()
