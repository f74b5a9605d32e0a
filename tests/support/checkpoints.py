"""Write random heads as checkpoints: each family's names, config and element types, in the files that it uses."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tiny import Head

Weights = dict[str, np.ndarray]

_NUMPY_TYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2"}


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(weights: Weights, dtype: str) -> Weights:
    """Return the weights as a checkpoint of `dtype` holds them, in float64 again."""
    out = {}
    for name, array in weights.items():
        if array.dtype == np.int64:
            out[name] = array
        elif dtype == "bf16":
            out[name] = (to_bf16(array).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            out[name] = array.astype(_NUMPY_TYPES[dtype]).astype(np.float64)
    return out


def _stored(array: np.ndarray, dtype: str) -> tuple[str, np.ndarray]:
    """Return the type in the file and the bytes."""
    if array.dtype == np.int64:
        return "i64", array
    if array.dtype == np.bool_:
        return "bool", array
    return dtype, to_bf16(array) if dtype == "bf16" else array.astype(_NUMPY_TYPES[dtype])


def write_safetensors(path: Path, weights: Weights, dtype: str) -> None:
    """Write the format by hand: the library has no bfloat16 in NumPy."""
    header, blobs, offset = {}, [], 0
    for name, array in weights.items():
        kind, stored = _stored(array, dtype)
        blob = np.ascontiguousarray(stored).tobytes()
        header[name] = {"dtype": kind.upper(), "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_sharded(folder: Path, weights: Weights, dtype: str, n: int = 2) -> None:
    """Write `n` shards and an index."""
    names = list(weights)
    weight_map = {}
    for i in range(n):
        shard = f"model-{i + 1:05}-of-{n:05}.safetensors"
        part = names[i::n]
        write_safetensors(folder / shard, {name: weights[name] for name in part}, dtype)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


_STORAGES = {
    "f64": b"DoubleStorage",
    "f32": b"FloatStorage",
    "f16": b"HalfStorage",
    "bf16": b"BFloat16Storage",
    "i64": b"LongStorage",
    "bool": b"BoolStorage",
}


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _ints(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_int, values)) + b"t"


_EMPTY_DICT = b"ccollections\nOrderedDict\n)R"


def write_torch_file(
    path: Path, weights: Weights, dtype: str, evil: bytes = b"", numbers: dict[str, int] | None = None
) -> None:
    """Write a state dict as torch.save does: a zip archive with a pickle. `evil` goes into the pickle.

    numbers: values that are no tensors.
    """
    entries, pickled = {}, b"\x80\x02" + evil + _EMPTY_DICT + b"("
    for name, number in (numbers or {}).items():
        pickled += _text(name) + _int(number)
    for i, (name, array) in enumerate(weights.items()):
        kind, stored = _stored(array, dtype)
        entries[f"archive/data/{i}"] = np.ascontiguousarray(stored).tobytes()
        strides = tuple(s // stored.itemsize for s in np.ascontiguousarray(stored).strides)
        storage = b"(" + _text("storage") + b"ctorch\n" + _STORAGES[kind] + b"\n" + _text(str(i)) + _text("cpu")
        storage += _int(array.size) + b"tQ"
        pickled += _text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _int(0)
        pickled += _ints(array.shape) + _ints(strides) + b"\x89" + _EMPTY_DICT + b"tR"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled + b"u.")
        for name, blob in entries.items():
            archive.writestr(name, blob)


def midlayer(name: str) -> str:
    """Return a name as SafeAILab and SpecForge write it."""
    return name.replace("layers.0.", "midlayer.")


def with_model(name: str) -> str:
    """Return a name as NeMo writes it."""
    return name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}"


def aux_norms(name: str) -> str:
    """Return a name as SpecDrift wrote it first."""
    for k, word in enumerate(("low", "mid", "high")):
        name = name.replace(f"fc_norm.{k}.", f"aux_norm_{word}.")
    return midlayer(name)


def layer_config(head: Head, **changes: Any) -> dict[str, Any]:
    """Return the keys of a LlamaConfig; None leaves a key out."""
    v = head.variant
    config = {
        "model_type": "llama",
        "vocab_size": head.target.n_vocab,
        "hidden_size": v.n_embd,
        "intermediate_size": v.n_ff,
        "num_attention_heads": v.n_head,
        "num_key_value_heads": v.n_head_kv,
        "head_dim": v.head_dim,
        "num_hidden_layers": v.n_layer,
        "hidden_act": v.hidden_act,
        "rms_norm_eps": v.rms_eps,
        "rope_theta": v.rope_theta,
        "rope_scaling": v.rope_scaling,
        "max_position_embeddings": 2048,
    } | changes
    return {key: value for key, value in config.items() if value is not None}


def top_config(head: Head, arch: str, **changes: Any) -> dict[str, Any]:
    """Return a flat config with the draft vocabulary."""
    v = head.variant
    return layer_config(head, **({"architectures": [arch], "draft_vocab_size": v.n_vocab_dft} | changes))


def speculators_config(head: Head, layer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the nested config of speculators; `layer` changes the inner table."""
    v = head.variant
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": v.n_vocab_dft or head.target.n_vocab,
        "norm_before_residual": v.norm_before_residual,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(v.boundaries),
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
        "transformer_layer_config": layer_config(head, **(layer or {})),
    } | changes
    return {key: value for key, value in config.items() if value is not None}


def modelopt_config(head: Head, eagle: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the config of an export by NVIDIA's ModelOpt."""
    eagle_config = {
        "use_aux_hidden_state": head.variant.use_aux_hidden_state,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    } | (eagle or {})
    return top_config(head, "LlamaForCausalLMEagle3", eagle_config=eagle_config, **changes)


@dataclass(frozen=True)
class Family:
    """The form of one kind of checkpoint. `variant` is the head's meaning, in the family's own semantics."""

    config: Callable[[Head], dict[str, Any]]
    variant: dict[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    dtype: str = "bf16"
    container: str = "safetensors"
    t2d: bool = False
    name: str = ""  # the name that `inspect` shows
    doubts: int = 0


def write_family(folder: Path, family: Family, head: Head, changes: Weights | None = None) -> None:
    """Write `head` as a checkpoint and round its weights to the checkpoint's type."""
    folder.mkdir(parents=True, exist_ok=True)
    head.weights = rounded(head.weights | (changes or {}), family.dtype)
    weights = {family.rename(name): array for name, array in head.weights.items()}
    if family.t2d and head.d2t is not None:
        weights[family.rename("t2d")] = np.isin(np.arange(head.target.n_vocab), head.d2t)
    (folder / "config.json").write_text(json.dumps(family.config(head)))
    if family.container == "torch":
        write_torch_file(folder / "pytorch_model.bin", weights, family.dtype)
    elif family.container == "sharded":
        write_sharded(folder, weights, family.dtype)
    else:
        write_safetensors(folder / "model.safetensors", weights, family.dtype)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
_KIMI = {
    "rope_type": "yarn",
    "factor": 64.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
_MLA = {"kv_lora_rank": 32, "q_lora_rank": 24, "head_dim": 20, "n_rot": 8, "v_head_dim": 12}


def _mla_config(head: Head) -> dict[str, Any]:
    v = head.variant
    return {
        "kv_lora_rank": v.kv_lora_rank,
        "q_lora_rank": v.q_lora_rank or None,
        "qk_rope_head_dim": v.n_rot,
        "qk_nope_head_dim": (v.head_dim or 0) - (v.n_rot or 0),
        "v_head_dim": v.v_head_dim,
    }


_IDS = "eagle_aux_hidden_state_layer_ids"

# The target of these has 8 layers: without ids a head reads layers 2, 4 and 5.
N_LAYER_TGT = 8
_DEFAULT = {"boundaries": (2, 4, 5)}

FAMILIES = {
    "safeailab": Family(
        lambda h: top_config(h, "LlamaForCausalLM", rope_theta=None, head_dim=None),
        _DEFAULT,
        midlayer,
        "f16",
        "torch",
        t2d=True,
        name="SafeAILab",
    ),
    "safeailab_own_embedding": Family(
        lambda h: top_config(h, "LlamaForCausalLM", rope_theta=None, target_hidden_size=h.target.n_embd),
        _DEFAULT | {"n_embd": 96, "own_embd": True},
        midlayer,
        "f16",
        t2d=True,
        name="SafeAILab",
    ),
    "specforge": Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", eagle_config={_IDS: [1, 3, 6], "use_aux_hidden_state": True}),
        {"boundaries": (2, 4, 7), "rope_theta": 500000.0, "rope_scaling": _LLAMA3},
        midlayer,
        container="sharded",
        t2d=True,
        name="SpecForge",
    ),
    "specforge_3.1": Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", fc_norm=True, norm_output=True),
        _DEFAULT | {"fc_norm": True, "norm_output": True, "rope_theta": 1e6},
        midlayer,
        t2d=True,
        name="SpecForge",
        doubts=1,
    ),
    "specforge_vl": Family(
        lambda h: top_config(
            h,
            "LlamaForCausalLMEagle3",
            rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"},
            target_model_type="qwen2_5_vl",
        ),
        _DEFAULT | {"rope_theta": 1e6, "rope_sections": (2, 3, 3, 0)},
        midlayer,
        name="SpecForge",
    ),
    "specforge_full_vocabulary": Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", draft_vocab_size=h.target.n_vocab),
        _DEFAULT | {"n_vocab_dft": None},
        midlayer,
        name="SpecForge",
    ),
    "qwen3.5": Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", partial_rotary_factor=0.25),
        _DEFAULT | {"head_dim": 32, "n_rot": 8, "rope_theta": 1e7},
        midlayer,
        t2d=True,
        name="SpecForge",
    ),
    "angelslim": Family(lambda h: top_config(h, "Eagle3LlamaForCausalLM"), _DEFAULT, t2d=True, name="vLLM/AngelSlim"),
    "speculators": Family(
        # keys equal to LlamaConfig's defaults are left out: eps 1e-6, theta 1e4, as many key/value heads as heads
        lambda h: speculators_config(
            h,
            {"rms_norm_eps": None, "rope_theta": None, "num_key_value_heads": None, "head_dim": None},
        ),
        {"boundaries": (2, 3, 7), "norm_before_residual": True, "rms_eps": 1e-6, "n_head_kv": 4},
        t2d=True,
        name="speculators",
    ),
    "speculators_qwen3": Family(
        # Qwen3Config is the default class; its head_dim is 128
        lambda h: speculators_config(h, {"model_type": None, "rms_norm_eps": None, "head_dim": None}),
        {"boundaries": (2, 4, 5), "qk_norm": True, "head_dim": 128, "rms_eps": 1e-6},
        name="speculators",
    ),
    "speculators_3.1": Family(
        lambda h: speculators_config(h, norm_before_fc=True, norm_output=True, norm_before_residual=False),
        {"boundaries": (2, 4, 6, 8), "norm_before_fc": True, "norm_output": True},
        name="speculators",
    ),
    "speculators_sliding_window": Family(
        lambda h: speculators_config(
            h,
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"],
                "rope_theta": None,
                "rope_parameters": {"sliding_attention": {"rope_theta": 5e5, "rope_type": "default"}},
            },
        ),
        _DEFAULT | {"qk_norm": True, "sliding_window": 8, "rope_theta": 5e5},
        name="speculators",
    ),
    "llama4": Family(
        lambda h: speculators_config(h, {"max_position_embeddings": 1024}, norm_before_residual=False),
        {"boundaries": (1, 3, 6), "rope_theta": 500000.0},
        name="speculators",
        doubts=1,
    ),
    "modelopt_v3": Family(
        lambda h: modelopt_config(h, {_IDS: [4, 6, 8]}, norm_before_fc=True),
        {"boundaries": (4, 6, 8), "norm_before_fc": True, "rope_scaling": _YARN, "rope_theta": 150000.0},
        name="ModelOpt",
    ),
    "modelopt_short_context": Family(lambda h: modelopt_config(h), {"use_aux_hidden_state": False}, name="ModelOpt"),
    "specdrift": Family(
        lambda h: top_config(
            h,
            "LlamaForCausalLMEagle3",
            fc_norm=True,
            norm_output=True,
            num_aux_hidden_states=5,
            eagle_config={_IDS: [1, 2, 3, 5, 7]},
        ),
        {"boundaries": (2, 3, 4, 6, 8), "fc_norm": True, "norm_output": True},
        midlayer,
        t2d=True,
        name="SpecForge",
        doubts=1,
    ),
    "specdrift_legacy_names": Family(
        lambda h: top_config(h, "Eagle3LlamaForCausalLM", use_aux_norm=True, norm_output=True),
        _DEFAULT | {"fc_norm": True, "norm_output": True},
        aux_norms,
        name="vLLM/AngelSlim",
    ),
    "nemo": Family(
        lambda h: top_config(
            h,
            "LlamaEagle3DraftModel",
            attention_bias=True,
            mlp_bias=True,
            hidden_act=None,
            hidden_activation="gelu_pytorch_tanh",
            fc_norm=True,
            norm_output=True,
            eagle_config={_IDS: [1, 4, 6]},
        ),
        {
            "boundaries": (2, 5, 7),
            "attention_bias": True,
            "mlp_bias": True,
            "fc_norm": True,
            "norm_output": True,
            "hidden_act": "gelu_pytorch_tanh",
        },
        with_model,
        t2d=True,
        name="NeMo",
    ),
    "two_layers": Family(
        lambda h: top_config(h, "Eagle3LlamaForCausalLM", logit_scale=0.5, bias=True),
        _DEFAULT | {"n_layer": 2, "fc_bias": True, "logit_scale": 0.5},
        name="vLLM/AngelSlim",
    ),
    "p_eagle_specforge": Family(
        lambda h: top_config(h, "PEagleDraftModel", mask_token_id=h.variant.mask_token),
        _DEFAULT | {"mask_token": 0, "n_layer": 2, "own_embd": True},
        t2d=True,
        name="SpecForge",
    ),
    "p_eagle_speculators": Family(
        lambda h: speculators_config(
            h, architectures=["PEagleSpeculator"], speculators_model_type="peagle", mask_token_id=h.variant.mask_token
        ),
        {"boundaries": (2, 3, 7), "norm_before_residual": True, "mask_token": 9},
        name="speculators",
    ),
    "p_eagle_amazon": Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", ptd_token_id=h.variant.mask_token, attention_bias=True),
        _DEFAULT | {"mask_token": 11, "attention_bias": True, "own_embd": True},
        name="SpecForge",
    ),
    "kimi": Family(
        lambda h: top_config(
            h,
            "Eagle3DeepseekV2ForCausalLM",
            model_type="kimi_k2",
            head_dim=None,
            num_key_value_heads=h.variant.n_head,
            rope_scaling=_KIMI | {"type": "yarn"},
            fc_norm=True,
            norm_output=True,
            **_mla_config(h),
        ),
        _DEFAULT | _MLA | {"rope_scaling": _KIMI, "rope_theta": 50000.0, "fc_norm": True, "norm_output": True},
        midlayer,
        name="TorchSpec",
    ),
    "deepseek_plain_rotation": Family(
        lambda h: top_config(h, "Eagle3DeepseekV3ForCausalLM", head_dim=None, **_mla_config(h)),
        _DEFAULT | _MLA | {"q_lora_rank": 0, "n_vocab_dft": None},
        midlayer,
        name="TorchSpec",
    ),
    "transformers_5": Family(
        lambda h: top_config(
            h,
            "LlamaForCausalLMEagle3",
            rope_theta=None,
            rope_scaling=None,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 25000.0},
        ),
        _DEFAULT | {"rope_theta": 25000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        midlayer,
        "f32",
        name="SpecForge",
    ),
}
