"""Multi-head latent attention (DeepSeek's, in Kimi's heads): its sizes, its tensors, and how a GGUF holds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_cpp_eagle3.errors import ModelFileError

from .checkpoint import Checkpoint
from .config import Config
from .encoding import type_of
from .output import OutTensor
from .tensors import Array, LazyTensor

_KV_B = "self_attn.kv_b_proj.weight"


@dataclass(frozen=True)
class Mla:
    """Sizes: all heads share a compressed row of `kv_lora_rank` values and `n_rot` rotated ones."""

    n_head: int
    kv_lora_rank: int
    q_lora_rank: int  # 0: q is not compressed
    n_nope: int  # values of a key that are not rotated
    n_rot: int
    n_value: int  # values of a head of v

    @property
    def head_dim(self) -> int:
        """Values of a head of q and k."""
        return self.n_nope + self.n_rot

    def keys(self) -> dict[str, int]:
        """The GGUF's keys, under llama.cpp's names. Lengths without `mla` are those of the cached row."""
        keys = {
            "attention.head_count_kv": 1,
            "attention.key_length": self.kv_lora_rank + self.n_rot,
            "attention.value_length": self.kv_lora_rank,
            "attention.kv_lora_rank": self.kv_lora_rank,
            "attention.key_length_mla": self.head_dim,
            "attention.value_length_mla": self.n_value,
        }
        return keys | ({"attention.q_lora_rank": self.q_lora_rank} if self.q_lora_rank else {})

    def shapes(self, n_embd: int, n_inp: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's attention in a checkpoint."""
        n_q = self.n_head * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.kv_a_proj_with_mqa": (self.kv_lora_rank + self.n_rot, n_inp),
            "self_attn.kv_a_layernorm": (self.kv_lora_rank,),
            "self_attn.kv_b_proj": (self.n_head * (self.n_nope + self.n_value), self.kv_lora_rank),
            "self_attn.o_proj": (n_embd, self.n_head * self.n_value),
        }
        if not self.q_lora_rank:
            return shapes | {"self_attn.q_proj": (n_q, n_inp)}
        return shapes | {
            "self_attn.q_a_proj": (self.q_lora_rank, n_inp),
            "self_attn.q_a_layernorm": (self.q_lora_rank,),
            "self_attn.q_b_proj": (n_q, self.q_lora_rank),
        }

    def unfolded(self, name: str, tensor: LazyTensor, outtype: str) -> list[OutTensor]:
        """The two tensors that kv_b_proj becomes, one matrix for each head: keys transposed, since q is multiplied."""
        layer = f"blk.{name.split('.')[1]}"
        k_shape = (self.n_head, self.kv_lora_rank, self.n_nope)
        v_shape = (self.n_head, self.n_value, self.kv_lora_rank)

        def part(read: Callable[[Array], Array]) -> Callable[[], Array]:
            return lambda: read(tensor.read().reshape(self.n_head, -1, self.kv_lora_rank))

        return [
            OutTensor(
                f"{layer}.attn_k_b.weight",
                k_shape,
                type_of(k_shape, outtype),
                part(lambda heads: heads[:, : self.n_nope].transpose(0, 2, 1)),
            ),
            OutTensor(
                f"{layer}.attn_v_b.weight",
                v_shape,
                type_of(v_shape, outtype),
                part(lambda heads: heads[:, self.n_nope :]),
            ),
        ]


def is_kv_b(name: str) -> bool:
    """Whether this is the tensor that `Mla.unfolded` takes apart."""
    return name.endswith(_KV_B)


def read_mla(checkpoint: Checkpoint, config: Config) -> Mla | None:
    """Sizes from the first layer's shapes, checked against the config; None for other attention."""
    tensors = checkpoint.tensors

    def shape(name: str, n_dims: int) -> tuple[int, ...]:
        tensor = tensors.get(f"layers.0.self_attn.{name}.weight")
        if tensor is None or len(tensor.shape) != n_dims:
            found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise ModelFileError(
                f"'{checkpoint.path}': an MLA head (multi-head latent attention): expected tensor "
                f"'layers.0.self_attn.{name}.weight' with {n_dims} dimension(s), it is {found}"
            )
        return tensor.shape

    if not any(".kv_a_proj_with_mqa." in name or ".kv_b_proj." in name for name in tensors):
        return None
    n_head = config.get_int("num_attention_heads")
    n_lora = shape("kv_a_layernorm", 1)[0]
    n_rot = shape("kv_a_proj_with_mqa", 2)[0] - n_lora
    q_lora = shape("q_a_layernorm", 1)[0] if "layers.0.self_attn.q_a_proj.weight" in tensors else 0
    n_q = shape("q_b_proj" if q_lora else "q_proj", 2)[0]
    n_kv = shape("kv_b_proj", 2)[0]
    n_nope = n_q // n_head - n_rot
    mla = Mla(n_head, n_lora, q_lora, n_nope, n_rot, n_kv // n_head - n_nope)
    if n_q % n_head or n_kv % n_head or min(mla.n_nope, mla.n_rot, mla.n_value) <= 0 or n_rot % 2:
        raise ModelFileError(
            f"'{checkpoint.path}': an MLA head: q has {n_q} rows, kv_b_proj {n_kv} and kv_a_proj_with_mqa "
            f"{n_lora + n_rot}, which are not {n_head} heads with an even rotated part"
        )
    by_tensors = {
        "kv_lora_rank": n_lora,
        "q_lora_rank": q_lora,
        "qk_nope_head_dim": mla.n_nope,
        "qk_rope_head_dim": n_rot,
        "v_head_dim": mla.n_value,
    }
    for key, found in by_tensors.items():
        if config.has(key) and config.get_int(key) != found:
            raise ModelFileError(
                f"'{checkpoint.path}': config.json has {key} {config.get_int(key)}, by the tensors it is {found}"
            )
    return mla


def attention_scale(mla: Mla, scaling: dict[str, Any], config: Config) -> float:
    """The factor of attention's scores: DeepSeek's YaRN also sharpens the softmax. scaling: the config's rotation."""
    scale = 1.0 / math.sqrt(mla.head_dim)
    if (scaling.get("rope_type") or scaling.get("type")) == "yarn" and scaling.get("mscale_all_dim"):
        factor = config.check_number("factor", scaling.get("factor"), 1e-6, 1e12)
        weight = config.check_number("mscale_all_dim", scaling["mscale_all_dim"], 0.0, 1e6)
        scale *= (0.1 * weight * math.log(factor) + 1.0) ** 2 if factor > 1.0 else 1.0
    return scale
