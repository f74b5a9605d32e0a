"""Writes a head's description and its checkpoint's tensors as a GGUF: keys, names, and the order of q and k."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from llama_cpp_eagle3._version import __version__

from .checkpoint import Checkpoint
from .encoding import FILE_TYPES, type_of
from .head import HeadSpec
from .mla import is_kv_b
from .output import OutTensor, write
from .rope import add_rope_keys
from .target import TargetModel
from .tensors import Array, LazyTensor

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP_NAMES = {
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
}
_DROPPED = ("t2d", "d2t")

PROVENANCE = "eagle3.provenance."
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def write_head(
    path: Path, spec: HeadSpec, checkpoint: Checkpoint, target: TargetModel, outtype: str, progress: bool, name: str
) -> None:
    """Write the GGUF of a head called `name` to `path`."""
    writer = gguf.GGUFWriter(path, spec.arch)
    _add_keys(writer, spec, target, outtype, name)
    write(writer, list(_tensors(spec, checkpoint, outtype)), progress)


def gguf_name(name: str) -> str:
    """Name in the file of a tensor of a checkpoint."""
    stem, _, suffix = name.rpartition(".")
    if not stem:
        return name
    if not stem.startswith("layers."):
        return f"{_TOP_NAMES.get(stem, stem)}.{suffix}"
    _, il, rest = stem.split(".", 2)
    return f"blk.{il}.{_LAYER_NAMES[rest]}.{suffix}"


def interleave(array: Array, n_head: int, n_rot: int) -> Array:
    """Rows of q or k from halves, as checkpoints rotate, to neighbouring pairs, as llama.cpp does.

    Only the first `n_rot` rows of each head are rotated; the others stay.
    """
    heads = array.reshape(n_head, -1, *array.shape[1:])
    rotated = heads[:, :n_rot].reshape(n_head, 2, n_rot // 2, *array.shape[1:]).swapaxes(1, 2)
    rotated = rotated.reshape(n_head, n_rot, *array.shape[1:])
    return np.concatenate([rotated, heads[:, n_rot:]], axis=1).reshape(array.shape)


def _tensors(spec: HeadSpec, checkpoint: Checkpoint, outtype: str) -> list[OutTensor]:
    tensors = []
    for name, tensor in checkpoint.tensors.items():
        if name in _DROPPED or (name == "embed_tokens.weight" and not spec.sizes.own_embd):
            continue
        if spec.sizes.mla and is_kv_b(name):
            tensors += spec.sizes.mla.unfolded(name, tensor, outtype)
        else:
            tensors.append(_tensor(spec, name, gguf_name(name), tensor, outtype))
    if spec.tie_output:
        tensors.append(
            _tensor(spec, "lm_head.weight", "output.weight", checkpoint.tensors["embed_tokens.weight"], outtype)
        )
    if spec.rope.freqs is not None:
        tensors.append(_constant("rope_freqs.weight", spec.rope.freqs, GgmlType.F32))
    if spec.d2t is not None:
        tensors.append(_constant("d2t", spec.d2t, GgmlType.I64))
    return tensors


def _constant(name: str, values: Array, kind: GgmlType) -> OutTensor:
    return OutTensor(name, values.shape, kind, lambda: values)


def _tensor(spec: HeadSpec, name: str, name_out: str, tensor: LazyTensor, outtype: str) -> OutTensor:
    sizes = spec.sizes
    shape = tensor.shape
    if name == "mask_hidden":
        return OutTensor(name_out, (int(np.prod(shape)),), GgmlType.F32, lambda: tensor.read().reshape(-1))
    if name in ("embed_tokens.weight", "lm_head.weight"):
        # rows beyond the vocabulary are padding
        n_rows = sizes.n_vocab if name == "embed_tokens.weight" else sizes.n_vocab_dft
        shape = (n_rows, shape[1])
    return OutTensor(name_out, shape, type_of(shape, outtype), _reader(spec, name, tensor, shape[0]))


def _reader(spec: HeadSpec, name: str, tensor: LazyTensor, n_rows: int) -> Callable[[], Array]:
    sizes, n_rot = spec.sizes, spec.rope.n_rot
    n_head = 0
    if sizes.mla or not spec.is_neox:
        pass  # neighbouring pairs are rotated, as llama.cpp does
    elif ".q_proj." in name:
        n_head = sizes.n_head
    elif ".k_proj." in name:
        n_head = sizes.n_head_kv
    elif ".q_norm." in name or ".k_norm." in name:
        n_head = 1

    def read() -> Array:
        values = tensor.read()[:n_rows]
        return interleave(values, n_head, n_rot) if n_head else values

    return read


def _add_keys(writer: gguf.GGUFWriter, spec: HeadSpec, target: TargetModel, outtype: str, name: str) -> None:
    s = spec.sizes
    writer.add_name(f"{name} (EAGLE-3)")
    writer.add_file_type(FILE_TYPES[outtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if spec.use_aux_hidden_state:
        writer.add_array("eagle3.target_layers", list(spec.boundaries.values))
    else:
        writer.add_bool("eagle3.use_aux_hidden_state", False)
    # always all four, so that readers need no defaults and the probe can change them in place
    for name, value in zip(FLAGS, flag_values(spec), strict=True):
        writer.add_bool(f"eagle3.{name}", value)
    if spec.hidden_act != "silu":
        writer.add_string("eagle3.hidden_act", spec.hidden_act)
    if spec.logit_scale != 1.0:
        writer.add_float32("eagle3.logit_scale", spec.logit_scale)
    if spec.sliding_window:
        writer.add_uint32("eagle3.attention.sliding_window", spec.sliding_window)
    sizes = {
        "target_hidden_size": s.n_embd_tgt,
        "block_count": s.n_layer,
        "context_length": spec.context_length,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff,
        "vocab_size": s.n_vocab,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
    }
    if s.mla:
        sizes |= s.mla.keys()
    if spec.attn_scale is not None:
        writer.add_float32("eagle3.attention.scale", spec.attn_scale)
    if spec.mask_token is not None:
        sizes["mask_token_id"] = spec.mask_token
    for key, number in sizes.items():
        writer.add_uint32(f"eagle3.{key}", number)
    writer.add_float32("eagle3.attention.layer_norm_rms_epsilon", spec.rms_eps)
    add_rope_keys(writer, "eagle3", spec.rope)
    if spec.rope.sections:
        writer.add_array("eagle3.rope.dimension_sections", [*spec.rope.sections, *[0] * (4 - len(spec.rope.sections))])
        if spec.rope.interleaved:
            writer.add_bool("eagle3.rope.mrope_interleaved", True)
    for key, text in provenance(spec).items():
        writer.add_string(PROVENANCE + key, text)
    for entry in target.tokenizer:
        writer.add_key_value(entry.key, entry.value, entry.kind, entry.sub_kind)


def flag_values(spec: HeadSpec) -> tuple[bool, ...]:
    """Values of FLAGS."""
    return spec.norm_before_residual.value, spec.norm_before_fc, spec.fc_norm, spec.norm_output.value


def provenance(spec: HeadSpec) -> dict[str, str]:
    """The reasons for its values, kept in the file for `inspect` and for the log."""
    return {
        "family": spec.family,
        "boundaries": spec.boundaries.provenance,
        "norm_output": spec.norm_output.provenance,
        "norm_before_residual": spec.norm_before_residual.provenance,
        "converter": f"llama-cpp-eagle3 {__version__}",
    }
