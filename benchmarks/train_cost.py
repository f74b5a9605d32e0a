"""Compute the cost of training a head: nothing of it is measured but the products, which torch counts.

    python benchmarks/train_cost.py --shape Llama-3.1-8B --tflops 66 --bandwidth 1008

A step of the trainer runs on tensors without data, and torch's FlopCounterMode counts its matrix products, backward
too. The speed of the machine is given: its real speed in products of 16 bits, and its memory's bandwidth.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from llama_cpp_eagle3_heads.train.eagle import Head
from llama_cpp_eagle3_heads.train.head_config import HeadConfig, Rotation
from llama_cpp_eagle3_heads.train.packing import PackedTexts
from llama_cpp_eagle3_heads.train.rows import cache_bytes
from random_model import SHAPES, Shape


@dataclass(frozen=True)
class Texts:
    """The training texts."""

    n_answer_tokens: int = 1_000_000
    n_prompt: int = 64
    n_answer: int = 320
    n_parallel: int = 16
    n_epochs: int = 3

    @property
    def n_texts(self) -> float:
        return self.n_answer_tokens / self.n_answer


def make_head(shape: Shape, n_draft: int, n_steps: int, n_ctx: int) -> Head:
    """Make a head of that shape, on no device."""
    n = shape.n_layer
    n_embd_head = shape.n_embd // shape.n_head
    cfg = HeadConfig(
        n_vocab=shape.n_vocab, n_layer_tgt=n, n_embd_tgt=shape.n_embd, n_ctx=n_ctx, n_embd=shape.n_embd,
        n_head=shape.n_head, n_head_kv=shape.n_head_kv, n_embd_head=n_embd_head, n_ff=shape.n_ff,
        boundaries=(2, n // 2, n - 3), rotation=Rotation(n_embd_head),
    )  # fmt: skip
    with torch.device("meta"):
        embedding = torch.empty(shape.n_vocab, shape.n_embd)
        return Head(cfg, embedding, torch.arange(n_draft), n_steps)


def flops_of_text(head: Head, texts: Texts, n_steps: int, n_anchors: int) -> int:
    """Return the operations of one text in training, forward and backward; a product and its sum are two."""
    n = texts.n_prompt + texts.n_answer
    with torch.device("meta"):
        tokens, rows = torch.zeros(n, dtype=torch.long), torch.empty(n, head.cfg.n_feat)
        anchors = torch.zeros(n_anchors, dtype=torch.long)
    packed = PackedTexts(tokens, rows, [n], [texts.n_prompt - 1], [anchors])
    counter = FlopCounterMode(display=False)
    with counter:
        loss = torch.zeros((), device="meta")
        for _, normed in head.steps(packed, n_steps):
            loss = loss + head.logits(normed).log_softmax(-1).mean()
        loss.backward()
    return int(counter.get_total_flops())


def n_parameters_of_target(shape: Shape) -> int:
    """Return the size of the matrices that a Llama multiplies each row by, lm_head included."""
    kv = shape.n_embd * shape.n_head_kv // shape.n_head
    layer = shape.n_embd * (2 * shape.n_embd + 2 * kv + 3 * shape.n_ff)
    return shape.n_layer * layer + shape.n_vocab * shape.n_embd


def table(args: argparse.Namespace, texts: Texts) -> str:
    """Return a Markdown table."""
    shape = SHAPES[args.shape]
    head = make_head(shape, args.draft_vocab, args.ttt_steps, 768)
    n_head = sum(p.numel() for p in head.parameters())
    per_text = flops_of_text(head, texts, args.ttt_steps, args.anchors)
    speed = args.tflops * 1e12
    n_target = n_parameters_of_target(shape)
    weights = n_target * args.bits / 8
    train = per_text * texts.n_texts / speed
    n_rows = texts.n_texts * (texts.n_prompt + texts.n_answer)
    features = 2 * n_target * n_rows / speed
    decode = max(weights / (args.bandwidth * 1e9), 2 * n_target * texts.n_parallel / speed)
    answers = texts.n_answer_tokens / texts.n_parallel * decode
    cache = cache_bytes(round(n_rows), head.cfg.n_feat)
    memory = 16 * n_head + 4 * shape.n_vocab * shape.n_embd
    answer_speed, row_speed = texts.n_answer_tokens / answers, n_rows / features
    per_token, us = per_text / texts.n_answer / 1e9, 1e6 * train / texts.n_answer_tokens
    streamed, cached = answers + texts.n_epochs * (features + train), answers + texts.n_epochs * train
    lines = [
        ("head: parameters that learn", f"{n_head / 1e6:.0f} million"),
        ("head, gradients and AdamW in f32, and the frozen embedding", f"{memory / 1e9:.1f} GB"),
        (f"target's weights at {args.bits:g} bits", f"{weights / 1e9:.1f} GB"),
        (f"answers, {texts.n_parallel} at once, at best", f"{answer_speed:.0f} tokens/s, {answers / 60:.0f} min"),
        ("features without a cache, each epoch", f"{row_speed:.0f} rows/s, {features / 60:.0f} min"),
        ("cache instead", f"{cache / 1e9:.0f} GB"),
        ("training, each epoch", f"{per_token:.1f} GFLOP and {us:.0f} us a token of answers, {train / 60:.0f} min"),
        (f"all, {texts.n_epochs} epochs, without a cache", f"{streamed / 60:.0f} min"),
        (f"all, {texts.n_epochs} epochs, with a cache", f"{cached / 60:.0f} min"),
    ]
    return "\n".join(["| computed | |", "|---|---|", *(f"| {what} | {value} |" for what, value in lines)])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", choices=[name for name, shape in SHAPES.items() if shape.arch == "llama"], default="Llama-3.1-8B"
    )
    parser.add_argument("--bits", type=float, default=4.9, help="of a weight of the target (Q4_K_M: 4.9)")
    parser.add_argument("--tflops", type=float, required=True, help="that the machine reaches")
    parser.add_argument("--bandwidth", type=float, required=True, help="of its memory, GB/s")
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--ttt-steps", type=int, default=5)
    parser.add_argument("--anchors", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of answers")
    args = parser.parse_args()
    print(table(args, Texts(n_answer_tokens=args.tokens)))


if __name__ == "__main__":
    main()
