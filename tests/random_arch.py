"""Random targets of many architectures: llama.cpp names the tensors that it wants, and we fill them.

Only the metadata is written by us, all keys that any of the architectures asks for, as llama.cpp's own test of its
architectures does. Models are a few megabytes.
"""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

N_VOCAB = 128
_LIB_DIR = Path(llama_cpp.llama_cpp._lib._name).parent


def _keys(arch: str) -> dict[str, Any]:
    """Metadata of a small model; a key that the architecture does not know does no harm."""
    n_embd, n_head, n_ff, n_layer = 128, 2, 192, 3
    if arch == "gemma4":
        n_layer = 5
    if arch == "llama4":
        n_layer = 4
    if arch in ("deepseek2", "bailingmoe3"):
        n_head = 1
    hybrid = arch in ("lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "bailingmoe3")
    heads: int | list[int] = [0 if il == 1 else n_head for il in range(n_layer)] if hybrid else n_head
    keys: dict[str, Any] = {
        "vocab_size": N_VOCAB,
        "context_length": 256,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "leading_dense_block_count": 1,
        "feed_forward_length": n_ff,
        "full_attention_interval": 2,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": 2,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "rope.dimension_sections": [16, 16, 16, 16],
        "expert_count": 2,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": n_ff,
        "expert_shared_feed_forward_length": n_ff,
        "expert_latent_length": n_ff,
        "expert_gating_func": 2,
        "expert_group_scale": 1.0,
        "experts_per_group": 1,
        "interleave_moe_layer_step": 2,
        "ssm.inner_size": 256,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.time_step_rank": n_head,
        "ssm.group_count": 2,
        "shortconv.l_cache": 3,
        "logit_scale": 1.0,
        "residual_scale": 3.5,
        "wkv.head_size": n_embd // n_head,
        "kda.head_dim": 128,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }
    if arch in ("nemotron_h", "nemotron_h_moe"):
        keys["feed_forward_length"] = [0 if il <= 1 else n_ff for il in range(n_layer)]
    if arch == "gemma4":
        keys |= {
            "embedding_length_per_layer_input": n_embd // 2,
            "attention.shared_kv_layers": 0,
            "attention.key_length_swa": n_embd // n_head,
            "attention.value_length_swa": n_embd // n_head,
            "rope.freq_base_swa": 10000.0,
            "attention.sliding_window_pattern": [(il + 1) % 5 for il in range(n_layer)],
        }
    if arch == "gemma3n":
        keys["block_count"] = 22
    if arch in ("mimo2", "muse-glimmer"):
        keys["attention.sliding_window_pattern"] = [il % 2 for il in range(n_layer)]
    if arch in ("deepseek2", "bailingmoe3"):
        keys |= {
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.kv_lora_rank": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
        }
    return keys


def _write_metadata(path: Path, arch: str) -> None:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in _keys(arch).items():
        name = f"{arch}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tokenizer_model("test")
    writer.add_token_list([f"tok_{i}" for i in range(N_VOCAB)])
    writer.add_token_scores([0.0] * N_VOCAB)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


class _GgufInitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _ggml() -> ctypes.CDLL:
    (file,) = (f for f in _LIB_DIR.glob("*ggml-base*") if f.suffix in (".so", ".dylib", ".dll"))
    lib = ctypes.CDLL(str(file))
    lib.gguf_init_from_file.restype = ctypes.c_void_p
    lib.gguf_init_from_file.argtypes = (ctypes.c_char_p, _GgufInitParams)
    lib.gguf_free.argtypes = (ctypes.c_void_p,)
    lib.ggml_nelements.restype = ctypes.c_int64
    lib.ggml_nelements.argtypes = (ctypes.c_void_p,)
    lib.ggml_get_name.restype = ctypes.c_char_p
    lib.ggml_get_name.argtypes = (ctypes.c_void_p,)
    lib.ggml_backend_tensor_set.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    return lib


def load_random_arch(folder: Path, arch: str) -> int:
    """Make a random model of an architecture. Two calls make the same one."""
    lib = _ggml()
    metadata = folder / f"{arch}.gguf"
    _write_metadata(metadata, arch)

    @llama_cpp.llama_model_set_tensor_data_t
    def fill(tensor: int, _: int) -> None:
        name = lib.ggml_get_name(tensor).decode()
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        data = rng.normal(0.0, 0.1, lib.ggml_nelements(tensor)).astype(np.float32)
        if "ssm_a" in name:
            data = -np.abs(data)
        elif "norm" in name:
            data += 1.0
        lib.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)

    header = lib.gguf_init_from_file(str(metadata).encode(), _GgufInitParams(True, None))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_init_from_user(header, fill, None, params)
    lib.gguf_free(header)
    assert model, f"llama.cpp makes no random {arch}"
    return model
