"""A fresh head for a target's GGUF, or one that goes on from another head."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from .._core import read_head, read_target
from ..convert.draft_vocab import draft_ids
from ..convert.gguf_file import key_values, open_gguf
from ..convert.rope import llama3_divisors
from ..errors import IncompatibleDraftError, ModelFileError
from .eagle import Head
from .head_config import HeadConfig, Rotation


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


def target_config(path: Path, n_ctx: int, layers: Sequence[int], *, eagle31: bool = False) -> HeadConfig:
    """What a fresh head looks like: the sizes of its target's layers; eagle31: with EAGLE-3.1's norms.

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
    n_embd_head = info.n_embd // n_head
    return HeadConfig(
        n_vocab=info.n_vocab,
        n_layer_tgt=info.n_layer,
        n_embd_tgt=info.n_embd,
        n_ctx=n_ctx,
        n_embd=info.n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=n_embd_head,
        n_ff=int(number("feed_forward_length", 0)) or 4 * info.n_embd,
        boundaries=boundaries_of(path, layers),
        rotation=Rotation(n_embd_head, number("rope.freq_base", 10000.0)),
        rms_eps=number("attention.layer_norm_rms_epsilon", 1e-6),
        fc_norm=eagle31,
        norm_output=eagle31,
    )


def target_tensor(path: Path, name: str) -> Tensor | None:
    """A tensor of a GGUF as float32."""
    for tensor in open_gguf(path).tensors:
        if tensor.name == name:
            return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    return None


def fresh_head(path: Path, cfg: HeadConfig, d2t: Tensor, n_steps: int) -> Head:
    """A head that begins as a reader of its target's last state, and with the target's embedding.

    Raises:
        ModelFileError: the target's file has no embedding.
    """
    return Head(cfg, _needed(path, "token_embd.weight"), d2t, n_steps, target_tensor(path, "output_norm.weight"))


def _needed(path: Path, name: str) -> Tensor:
    tensor = target_tensor(path, name)
    if tensor is None:
        raise ModelFileError(f"'{path}': expected a tensor {name}, found none: heads for it are not trained")
    return tensor


_MODULES = {
    "fc": "fc", "attn_norm": "blk.0.attn_norm", "hidden_norm": "blk.0.attn_norm_2", "attn.q": "blk.0.attn_q",
    "attn.k": "blk.0.attn_k", "attn.v": "blk.0.attn_v", "attn.o": "blk.0.attn_output", "ffn_norm": "blk.0.ffn_norm",
    "ffn.gate": "blk.0.ffn_gate", "ffn.up": "blk.0.ffn_up", "ffn.down": "blk.0.ffn_down", "norm": "output_norm",
    "lm_head": "output", "input_norm.0": "enc.output_norm", "attn.q_norm": "blk.0.attn_q_norm",
    "attn.k_norm": "blk.0.attn_k_norm",
}  # fmt: skip
"""Modules of `Head` -> tensors of a GGUF head."""


def head_from_gguf(path: Path, target: Path, n_ctx: int, n_steps: int) -> Head:
    """A head to go on from.

    Raises:
        IncompatibleDraftError: it was made for another target, or has parts that are not trained here.
    """
    info, tgt = read_head(str(path)), read_target(str(target))
    reader = open_gguf(path)
    tensors = {t.name.replace("blk.0.hidden_norm", "blk.0.attn_norm_2"): t for t in reader.tensors}
    if info.n_embd_tgt != tgt.n_embd:
        raise IncompatibleDraftError(
            f"the head '{path}' reads hidden states of {info.n_embd_tgt} values, those of '{target}' have "
            f"{tgt.n_embd}: it was trained for another model"
        )
    _refuse(path, info)
    cfg = _config(path, info, tgt, reader, tensors, n_ctx)

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.array(dequantize(tensors[name].data, tensors[name].tensor_type), dtype=np.float32))

    n_draft = tgt.n_vocab
    if cfg.own_output:
        d2t = torch.from_numpy(np.array(draft_ids(path, reader), dtype=np.int64))
        n_draft = int(d2t.max()) + 1
    else:
        d2t = torch.arange(tgt.n_vocab)
    embd = read("token_embd.weight") if cfg.own_embd else _needed(target, "token_embd.weight")
    if n_draft > tgt.n_vocab or len(embd) != tgt.n_vocab:
        raise IncompatibleDraftError(
            f"the head '{path}' is for a vocabulary of {max(n_draft, len(embd))} tokens, '{target}' has "
            f"{tgt.n_vocab}: it was trained for another model"
        )
    head = Head(cfg, embd, d2t, n_steps)
    state = head.state_dict()
    for name, values in state.items():
        module, _, kind = name.rpartition(".")
        theirs = f"{_MODULES.get(module, module)}.{kind}"
        if name in ("d2t", "row_scale"):
            continue
        if module == "lm_head" and not cfg.own_output:
            output = target_tensor(target, "output.weight")
            state[name] = _needed(target, "token_embd.weight") if output is None else output
            continue
        found = read(theirs)
        if module in ("attn.q", "attn.k", "attn.q_norm", "attn.k_norm"):
            n_head = {"attn.q": cfg.n_head, "attn.k": cfg.n_head_kv}.get(module, 1)
            found = halves(found, n_head, cfg.rotation.n_rot)
        state[name] = found.reshape(values.shape)
    head.load_state_dict(state)
    return head


def _refuse(path: Path, info: Any) -> None:
    """Say no to what convert takes and is not trained here."""
    reasons = {
        f"{info.n_layer} layers": info.n_layer != 1,
        "multi-head latent attention": info.kv_lora_rank > 0,
        "a mask token (P-EAGLE)": info.mask_token >= 0,
        "no fc": not info.use_aux_hidden_state,
        "a draft vocabulary without an lm_head of its own": info.has_d2t and not info.has_output,
    }
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise IncompatibleDraftError(
            f"the head '{path}' has {' and '.join(found)}: expected one layer of ordinary attention behind an fc, as "
            "EAGLE-3's heads have it; others can be converted and run, but not trained on"
        )


def _config(path: Path, info: Any, tgt: Any, reader: Any, tensors: Container[str], n_ctx: int) -> HeadConfig:
    """Of a GGUF head."""
    fields = {name.split(".", 1)[1]: field.contents() for name, field in reader.fields.items() if "." in name}
    biases = [name for name, theirs in _MODULES.items() if f"{theirs}.bias" in tensors]
    return HeadConfig(
        n_vocab=tgt.n_vocab,
        n_layer_tgt=tgt.n_layer,
        n_embd_tgt=tgt.n_embd,
        n_ctx=n_ctx,
        boundaries=tuple(info.boundaries),
        rotation=_rotation(path, info, fields, reader),
        rms_eps=float(info.rms_eps),
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        biases=frozenset(biases),
        own_embd=info.has_tok_embd,
        own_output=info.has_output,
        **{name: getattr(info, name) for name in _SAME},
    )


_SAME = (
    "n_embd", "n_head", "n_head_kv", "n_embd_head", "n_ff", "norm_before_fc", "fc_norm", "norm_output", "has_d2t",
    "norm_before_residual", "sliding_window", "hidden_act", "logit_scale",
)  # fmt: skip


def _rotation(path: Path, info: Any, fields: Mapping[str, Any], reader: Any) -> Rotation:
    """RoPE of a GGUF head.

    Raises:
        IncompatibleDraftError: its divisors are none that a config could say.
    """
    scaling = {key.removeprefix("rope.scaling."): value for key, value in fields.items()}
    sections = [int(n) for n in fields.get("rope.dimension_sections", ())]
    rotation = Rotation(
        info.n_rot,
        float(info.rope_freq_base),
        info.rope_scaling,
        float(scaling.get("factor", 1.0)),
        int(scaling.get("original_context_length", 0)),
        float(scaling.get("attn_factor", 1.0)),
        float(scaling.get("yarn_beta_fast", 32.0)),
        float(scaling.get("yarn_beta_slow", 1.0)),
        sections=tuple(sections[:3] if sections[3:] == [0] else sections),
        interleaved=bool(fields.get("rope.mrope_interleaved", False)),
    )
    divisors = next((tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    return rotation if divisors is None else _llama3(path, rotation, np.asarray(divisors, dtype=np.float32))


def _llama3(path: Path, rotation: Rotation, divisors: np.ndarray) -> Rotation:
    """With what was said in the checkpoint: a GGUF has the divisors alone, and an export has to say it again."""
    for n_ctx in (2**k for k in range(5, 21)):
        # all configs that are known have these two
        found = llama3_divisors(rotation.n_rot, rotation.base, float(divisors.max()), n_ctx, 1.0, 4.0)
        if np.array_equal(found, divisors):
            return replace(
                rotation,
                kind="llama3",
                factor=float(divisors.max()),
                n_ctx_orig=n_ctx,
                divisors=tuple(divisors.tolist()),
            )
    raise IncompatibleDraftError(
        f"the head '{path}' divides the frequencies of its rotation by numbers (rope_freqs) that are none of llama3's "
        "scaling with the usual factors 1 and 4: it cannot be trained on, since no config could say so"
    )


def halves(values: Tensor, n_head: int, n_rot: int) -> Tensor:
    """Rows of q or k from llama.cpp's neighbouring pairs to halves; only the first n_rot of each head are rotated."""
    heads = values.reshape(n_head, -1, *values.shape[1:])
    turned = heads[:, :n_rot].reshape(n_head, n_rot // 2, 2, *values.shape[1:]).transpose(1, 2)
    turned = turned.reshape(n_head, n_rot, *values.shape[1:])
    return torch.cat([turned, heads[:, n_rot:]], dim=1).reshape(values.shape)
