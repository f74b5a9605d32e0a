"""A fresh head for a target's GGUF, or one that goes on from another head."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from llama_cpp_eagle3._core import read_head, read_target
from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

from ..convert.draft_vocab import draft_ids
from ..convert.gguf_file import key_values, open_gguf
from ..convert.mla import Mla, is_kv_b
from ..convert.rope import llama3_divisors
from ..convert.writer import gguf_name
from .checkpoint import biased_modules, checkpoint_name
from .eagle import Head
from .head_config import HeadConfig, Rotation


def boundaries_of(path: Path, layers: Sequence[int]) -> tuple[int, ...]:
    """The target's states that a head reads: the given ones, or the usual three.

    Raises:
        ValueError: the target does not offer one.
    """
    info = read_target(str(path))
    if info.why_no_target:
        raise ValueError(f"'{path}' ({info.arch}) cannot be the target of a draft: {info.why_no_target}")
    chosen = tuple(layers) or (2, info.n_layer // 2, info.n_layer - 3)
    if any(b not in info.boundaries for b in chosen) or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"'{path}' has {info.n_layer} layers, found boundaries {list(chosen)}: give --layers with other numbers "
            f"from {info.boundaries[0]} to {info.n_layer}"
        )
    return chosen


def _reader(path: Path) -> GGUFReader:
    """The target's file, which is kept, since reading a vocabulary of 150,000 tokens takes ten seconds."""
    stat = path.stat()
    return _open(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _open(path: Path, mtime_ns: int, size: int) -> GGUFReader:
    return open_gguf(path)


def target_config(
    path: Path, n_ctx: int, layers: Sequence[int], *, n_ff: int | None = None, eagle31: bool = False
) -> HeadConfig:
    """The config of a fresh head, which has the sizes of its target's layers.

    Args:
        path: the target's GGUF.
        n_ctx: tokens of the longest text.
        layers: boundaries to read; none: the usual ones.
        n_ff: width of the feed-forward layer; None: the target's.
        eagle31: with EAGLE-3.1's norms.

    Raises:
        ValueError: the target does not offer a boundary.
    """
    info = read_target(str(path))
    keys = {entry.key: entry.value for entry in key_values(path, _reader(path), f"{info.arch}.")}

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
        n_ff=n_ff or int(number("feed_forward_length", 0)) or 4 * info.n_embd,
        boundaries=boundaries_of(path, layers),
        rotation=Rotation(n_embd_head, number("rope.freq_base", 10000.0)),
        rms_eps=number("attention.layer_norm_rms_epsilon", 1e-6),
        fc_norm=eagle31,
        norm_output=eagle31,
    )


def target_tensor(path: Path, name: str) -> Tensor | None:
    """A tensor of a GGUF as float32."""
    for tensor in _reader(path).tensors:
        if tensor.name == name:
            return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    return None


def fresh_head(path: Path, cfg: HeadConfig, d2t: Tensor, n_steps: int) -> Head:
    """A head that at first reads its target's last state as the target does, with the target's embedding.

    Raises:
        ModelFileError: the target's file has no embedding.
    """
    head = Head(cfg, _require_tensor(path, "token_embd.weight"), d2t, n_steps)
    head.start_as_target(target_tensor(path, "output_norm.weight"))
    return head


def _require_tensor(path: Path, name: str) -> Tensor:
    tensor = target_tensor(path, name)
    if tensor is None:
        raise ModelFileError(f"'{path}': expected a tensor {name}, found none: heads for it are not trained")
    return tensor


def head_from_gguf(path: Path, target: Path, n_ctx: int, n_steps: int) -> Head:
    """A GGUF head, to continue its training.

    Raises:
        IncompatibleDraftError: it was made for another target, or has parts that cannot be trained here.
    """
    info, tgt = read_head(str(path)), read_target(str(target))
    reader = open_gguf(path)
    tensors = {_upstream_name(tensor.name): tensor for tensor in reader.tensors}
    if info.n_embd_tgt != tgt.n_embd:
        raise IncompatibleDraftError(
            f"the head '{path}' reads hidden states of {info.n_embd_tgt} values, those of '{target}' have "
            f"{tgt.n_embd}: it was trained for another model"
        )
    cfg = _config(path, info, tgt, reader, tensors, n_ctx)

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.array(dequantize(tensors[name].data, tensors[name].tensor_type), dtype=np.float32))

    if info.has_d2t and not info.has_output:
        raise IncompatibleDraftError(
            f"the head '{path}' has a draft vocabulary without an lm_head of its own: expected output.weight beside d2t"
        )
    d2t = torch.from_numpy(np.array(draft_ids(path, reader))) if cfg.own_output else torch.arange(tgt.n_vocab)
    n_draft = int(d2t.max()) + 1
    embd = read("token_embd.weight") if cfg.own_embd else _require_tensor(target, "token_embd.weight")
    if n_draft > tgt.n_vocab or len(embd) != tgt.n_vocab:
        raise IncompatibleDraftError(
            f"the head '{path}' is for a vocabulary of {max(n_draft, len(embd))} tokens, '{target}' has "
            f"{tgt.n_vocab}: it was trained for another model"
        )
    head = Head(cfg, embd, d2t, n_steps)
    state = head.state_dict()
    for name, values in state.items():
        if name in ("d2t", "row_scale"):
            continue
        if name == "lm_head.weight" and not cfg.own_output:
            output = target_tensor(target, "output.weight")
            state[name] = _require_tensor(target, "token_embd.weight") if output is None else output
            continue
        state[name] = _checkpoint_rows(cfg, name, read).reshape(values.shape)
    head.load_state_dict(state)
    return head


def replace_draft_vocab(head: Head, target: Path, d2t: Tensor, n_steps: int) -> Head:
    """The same head with another draft vocabulary.

    Tokens of both vocabularies keep their rows of the lm_head. New ones get the target's row times the matrix that
    best maps the target's rows of the old vocabulary to the head's (least squares).

    Args:
        head: with an lm_head of its own.
        target: the target's GGUF.
        d2t: the new draft vocabulary, ascending.
        n_steps: draft steps in training.

    Raises:
        ModelFileError: the target's file has neither an lm_head nor an embedding.
    """
    output = target_tensor(target, "output.weight")
    rows_tgt = _require_tensor(target, "token_embd.weight") if output is None else output
    rows_dft, known = head.lm_head.weight.detach(), head.d2t
    fit = torch.linalg.lstsq(rows_tgt[known].double(), rows_dft.double(), driver="gelsd").solution.float()
    replaced = Head(replace(head.cfg, has_d2t=True), head.tok_embd, d2t, n_steps)
    rows = rows_tgt[d2t] @ fit
    place = torch.full((len(rows_tgt),), -1).scatter(0, known, torch.arange(len(known)))[d2t]
    rows[place >= 0] = rows_dft[place[place >= 0]]
    replaced.load_state_dict({**head.state_dict(), "d2t": d2t, "lm_head.weight": rows})
    return replaced


def _upstream_name(name: str) -> str:
    """llama.cpp's name of a tensor; SpecDrift's fork has another name for one."""
    return name.replace("blk.0.hidden_norm", "blk.0.attn_norm_2")


def _checkpoint_rows(cfg: HeadConfig, name: str, read: Callable[[str], Tensor]) -> Tensor:
    """A parameter of a GGUF head in a checkpoint's layout. read: returns a tensor of the GGUF by its name."""
    module = name.rpartition(".")[0]
    part = module.partition(".attn.")[2]
    if part == "kv_b":  # in the GGUF a matrix for each head, keys transposed
        layer = f"blk.{module.split('.')[1]}"
        keys, values = (read(f"{layer}.attn_{x}_b.weight") for x in "kv")
        return torch.cat((keys.transpose(1, 2), values), dim=1)
    found = read(gguf_name(checkpoint_name(name)))
    if part in ("q", "k", "q_norm", "k_norm") and cfg.mla is None:
        return halves(found, {"q": cfg.n_head, "k": cfg.n_head_kv}.get(part, 1), cfg.rotation.n_rot)
    return found


def _config(path: Path, info: Any, tgt: Any, reader: Any, tensors: Container[str], n_ctx: int) -> HeadConfig:
    """The config of a GGUF head."""
    fields = {name.split(".", 1)[1]: field.contents() for name, field in reader.fields.items() if "." in name}
    mla = _mla(info, fields)
    heads = (info.n_head_kv, info.n_embd_head) if mla is None else (mla.n_head, mla.head_dim)
    rotation = _rotation(path, info, fields, reader)
    cfg = HeadConfig(
        n_vocab=tgt.n_vocab,
        n_layer_tgt=tgt.n_layer,
        n_embd_tgt=tgt.n_embd,
        n_ctx=n_ctx,
        n_head_kv=heads[0],
        n_embd_head=heads[1],
        boundaries=tuple(info.boundaries) if info.use_aux_hidden_state else (tgt.n_layer + 1,),
        rotation=rotation,
        rms_eps=float(info.rms_eps),
        has_fc=info.use_aux_hidden_state,
        mla=mla,
        scale=_score_scale(path, fields, heads[1], rotation if mla else None),
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        own_embd=info.has_tok_embd,
        own_output=info.has_output,
        **{name: getattr(info, name) for name in _SAME},
    )
    return replace(cfg, biases=biased_modules(cfg, lambda name: _has(tensors, name)))


def _has(tensors: Container[str], name: str) -> bool:
    """Whether a GGUF has a tensor, by its name in a checkpoint."""
    return not is_kv_b(name.replace(".bias", ".weight")) and gguf_name(name) in tensors


def _mla(info: Any, fields: Mapping[str, Any]) -> Mla | None:
    if not info.kv_lora_rank:
        return None
    n_key, n_value = (int(fields[f"attention.{kind}_length_mla"]) for kind in ("key", "value"))
    return Mla(info.n_head, info.kv_lora_rank, info.q_lora_rank, n_key - info.n_rot, info.n_rot, n_value)


def _score_scale(path: Path, fields: Mapping[str, Any], n_embd_head: int, rotation: Rotation | None) -> float | None:
    """The factor of attention's scores; None: the usual one. rotation: that of latent attention.

    Raises:
        IncompatibleDraftError: no config can express this number.
    """
    scale = float(fields.get("attention.scale", 0.0))
    usual = n_embd_head**-0.5
    if not scale or math.isclose(scale, usual, rel_tol=1e-6):
        return None
    if rotation is None or rotation.kind != "yarn" or rotation.factor <= 1 or scale < usual:
        raise IncompatibleDraftError(
            f"the head '{path}' multiplies its attention's scores by {scale:g} (attention.scale): expected {usual:g}, "
            "or more with multi-head latent attention and yarn. It cannot be trained on, since no config can express it"
        )
    return scale


_SAME = (
    "n_embd", "n_head", "n_ff", "n_layer", "norm_before_fc", "fc_norm", "norm_output", "has_d2t",
    "norm_before_residual", "sliding_window", "hidden_act", "logit_scale", "mask_token",
)  # fmt: skip


def _rotation(path: Path, info: Any, fields: Mapping[str, Any], reader: Any) -> Rotation:
    """RoPE of a GGUF head.

    Raises:
        IncompatibleDraftError: no config can express its divisors.
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


_LOW_FACTORS, _HIGH_FACTORS = (1.0, 2.0, 0.5), (4.0, 8.0, 2.0, 16.0, 32.0)
"""Factors of llama3's scaling that are tried, the usual ones first."""


def _llama3(path: Path, rotation: Rotation, divisors: np.ndarray) -> Rotation:
    """The rotation with the config of llama3's scaling, which an export needs and a GGUF, with divisors only, lacks."""
    factor = float(divisors.max())
    # whose configs are known: 1 and 4 with the context of the model that was stretched
    for low, high, n_ctx in product(_LOW_FACTORS, _HIGH_FACTORS, (2**k for k in range(5, 21))):
        if low < high and np.array_equal(
            llama3_divisors(rotation.n_rot, rotation.base, factor, n_ctx, low, high), divisors
        ):
            return replace(
                rotation,
                kind="llama3",
                factor=factor,
                n_ctx_orig=n_ctx,
                low_freq_factor=low,
                high_freq_factor=high,
                divisors=tuple(divisors.tolist()),
            )
    raise IncompatibleDraftError(
        f"the head '{path}' divides the frequencies of its rotation by numbers (rope_freqs) that are none of llama3's "
        f"scaling with factors of {_LOW_FACTORS} and {_HIGH_FACTORS}: it cannot be trained on, since its export has to "
        "write them"
    )


def halves(values: Tensor, n_head: int, n_rot: int) -> Tensor:
    """Rows of q or k from llama.cpp's neighbouring pairs to halves; only the first n_rot of each head are rotated."""
    heads = values.reshape(n_head, -1, *values.shape[1:])
    turned = heads[:, :n_rot].reshape(n_head, n_rot // 2, 2, *values.shape[1:]).transpose(1, 2)
    turned = turned.reshape(n_head, n_rot, *values.shape[1:])
    return torch.cat([turned, heads[:, n_rot:]], dim=1).reshape(values.shape)
