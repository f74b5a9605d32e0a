"""A fresh head for a target's GGUF, or one that goes on from another head."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from .._core import read_head, read_target
from ..convert.draft_vocab import draft_ids
from ..convert.gguf_file import key_values, open_gguf
from ..errors import IncompatibleDraftError, ModelFileError
from .eagle import Head, Norms
from .model import Config


def boundaries_of(path: Path, layers: Sequence[int]) -> tuple[int, ...]:
    """The target's states that a head reads: those that were said, or the usual three.

    Raises:
        ValueError: the target does not offer one.
    """
    info = read_target(str(path))
    if info.why_no_target:
        raise ValueError(f"'{path}' ({info.arch}) cannot be the target of a draft: {info.why_no_target}")
    chosen = tuple(layers) or (2, info.n_layer // 2, info.n_layer - 3)
    if any(b not in info.boundaries for b in chosen) or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"'{path}' has {info.n_layer} layers, found boundaries {list(chosen)}: say --layers with different numbers "
            f"from {info.boundaries[0]} to {info.n_layer}"
        )
    return chosen


def target_config(path: Path, n_ctx: int, layers: Sequence[int]) -> Config:
    """Sizes that a fresh head takes over from its target.

    Raises:
        ValueError: the target does not offer a boundary.
    """
    info = read_target(str(path))
    keys = {entry.key: entry.value for entry in key_values(path, open_gguf(path), f"{info.arch}.")}

    def number(key: str, default: float) -> float:
        value = keys.get(f"{info.arch}.{key}", default)
        return float(max(value) if isinstance(value, list) else value)  # one for each layer

    n_head = int(number("attention.head_count", 0))
    n_head_kv = int(number("attention.head_count_kv", n_head))
    if not n_head or info.n_embd % n_head or info.n_embd // n_head % 2 or not n_head_kv or n_head % n_head_kv:
        n_head = n_head_kv = max(1, info.n_embd // 64)
    n_ff = int(number("feed_forward_length", 0)) or 4 * info.n_embd
    eps = number("attention.layer_norm_rms_epsilon", 1e-6)
    base = number("rope.freq_base", 10000.0)
    boundaries = boundaries_of(path, layers)
    return Config(info.n_vocab, n_ctx, info.n_embd, info.n_layer, n_head, n_head_kv, n_ff, eps, base, boundaries)


def target_tensor(path: Path, name: str) -> Tensor | None:
    """A tensor of a GGUF as float32."""
    for tensor in open_gguf(path).tensors:
        if tensor.name == name:
            return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    return None


def fresh_head(path: Path, cfg: Config, d2t: Tensor, n_ff: int, n_steps: int, norms: Norms) -> Head:
    """A head with random layers, which reads and writes as the target does.

    Raises:
        ModelFileError: the target's file has no embedding.
    """
    tok_embd = target_tensor(path, "token_embd.weight")
    if tok_embd is None:
        raise ModelFileError(f"'{path}': expected a tensor token_embd.weight, found none: heads for it are not trained")
    norm = target_tensor(path, "output_norm.weight")
    return Head(cfg, tok_embd, d2t, n_ff, n_steps, norm, norms)


_NAMES = {
    "fc": "fc", "attn_norm": "blk.0.attn_norm", "hidden_norm": "blk.0.attn_norm_2", "attn.q": "blk.0.attn_q",
    "attn.k": "blk.0.attn_k", "attn.v": "blk.0.attn_v", "attn.o": "blk.0.attn_output", "ffn_norm": "blk.0.ffn_norm",
    "ffn.gate": "blk.0.ffn_gate", "ffn.up": "blk.0.ffn_up", "ffn.down": "blk.0.ffn_down", "norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip
"""Modules of `Head` -> tensors of a GGUF head."""


def head_from_gguf(path: Path, target: Path, n_ctx: int, n_steps: int) -> Head:
    """A head to go on from.

    Raises:
        IncompatibleDraftError: it was made for states of another width, or has parts that are not trained here.
    """
    info = read_head(str(path))
    reader = open_gguf(path)
    tensors = {t.name: t for t in reader.tensors}
    tgt = read_target(str(target))
    if info.n_embd_tgt != tgt.n_embd:
        raise IncompatibleDraftError(
            f"the head '{path}' reads hidden states of {info.n_embd_tgt} values, those of '{target}' have "
            f"{tgt.n_embd}: it was trained for another model"
        )
    fields = {name.split(".", 1)[1]: field.contents() for name, field in reader.fields.items() if "." in name}
    norms = Norms(bool(fields.get("fc_norm")), bool(fields.get("norm_output")))
    fc_norms = {f"fc_norm.{i}": f"fc_norm.{i}" for i in range(len(info.boundaries) if norms.fc_norm else 0)}
    names = _NAMES | fc_norms
    expected = {f"{name}.weight" for name in names.values()}
    more = set(tensors) - expected - {"d2t"}
    switched = [k for k in ("norm_before_residual", "norm_before_fc") if fields.get(k)]
    if more or switched or not expected <= set(tensors):
        found = ", ".join([*sorted(more), *switched, *sorted(expected - set(tensors))])
        raise IncompatibleDraftError(
            f"the head '{path}' is built in another way than those that are trained here ({found}): only EAGLE-3 heads "
            "with one layer, three norms and an lm_head of their own can be trained on"
        )
    n_head, n_head_kv = int(fields["attention.head_count"]), int(fields["attention.head_count_kv"])
    n_embd = int(fields["embedding_length"])
    if n_embd != tgt.n_embd or n_embd != n_head * int(fields["attention.key_length"]):
        raise IncompatibleDraftError(
            f"the head '{path}' is {n_embd} wide with {n_head} heads of {fields['attention.key_length']}: only heads "
            f"of the target's width, {tgt.n_embd}, divided among their attention heads, can be trained on"
        )
    cfg = Config(
        tgt.n_vocab, n_ctx, n_embd, tgt.n_layer, n_head, n_head_kv, int(fields["feed_forward_length"]),
        float(fields["attention.layer_norm_rms_epsilon"]), float(fields["rope.freq_base"]), tuple(info.boundaries),
    )  # fmt: skip
    d2t = torch.from_numpy(np.array(draft_ids(path, reader), dtype=np.int64))
    head = fresh_head(target, cfg, d2t, cfg.n_ff, n_steps, norms)
    state = head.state_dict()
    for name, theirs in names.items():
        tensor = tensors[f"{theirs}.weight"]
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name in ("attn.q", "attn.k"):
            values = _halves(values, n_head if name == "attn.q" else n_head_kv)
        state[f"{name}.weight"] = torch.from_numpy(values.reshape(state[f"{name}.weight"].shape))
    head.load_state_dict(state)
    return head


def _halves(weight: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of q or k from llama.cpp's neighbouring pairs to halves."""
    n_out, n_in = weight.shape
    return weight.reshape(n_head, n_out // n_head // 2, 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)
