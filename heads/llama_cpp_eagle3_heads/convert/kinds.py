"""Checkpoints that are no head and no block drafter that can be converted: what they are, and what to do with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llama_cpp_eagle3.errors import ModelFileError

from .checkpoint import Checkpoint
from .config import Config
from .tensors import FLOAT_TYPES

_TO_GGUF = "llama.cpp's convert_hf_to_gguf.py"
# classes of block drafters whose layers are Qwen3's, also where the rest of config.json is a copy of their target's
_QWEN3_BLOCKS = ("Qwen3DSparkModel", "LingDSparkModel", "Lfm2DSparkDraftModel", "DSparkDraftModel", "DFlashDraftModel")


@dataclass(frozen=True)
class _Facts:
    names: frozenset[str]
    config: Config
    is_block: bool

    def any_name(self, pattern: str) -> bool:
        return any(re.search(pattern, name) for name in self.names)

    def any_architecture(self, pattern: str) -> bool:
        return any(re.search(pattern, name, re.IGNORECASE) for name in self.config.architectures)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is known, and a sentence on whether it can draft here and what to do."""

    what: str
    is_it: Callable[[_Facts], bool]
    advice: str


def _is_mla_block(f: _Facts) -> bool:
    if f.any_name(r"\.kv_(a_proj|b_proj|a_layernorm)|\.q_[ab]_proj"):
        return f.is_block
    is_qwen3 = any(name in _QWEN3_BLOCKS for name in f.config.architectures)
    return f.is_block and f.config.has("kv_lora_rank") and not is_qwen3


# the first that is true
KINDS = (
    Kind(
        "a LoRA adapter",
        lambda f: f.any_name(r"lora_[AB]"),
        "It does not draft. Merge it into its model, or make a GGUF of it with llama.cpp's convert_lora_to_gguf.py and "
        "give that with lora_path",
    ),
    Kind(
        "a block drafter made of DeepSeek-V4's layers (hyper-connections and experts)",
        lambda f: f.any_name(r"(^|\.)hc_(attn|ffn|head)_|^mtp\.\d+\.(main_proj|markov_head)"),
        f"{_TO_GGUF} --dspark makes a GGUF of it; it is not converted here, and no such file drafts here yet",
    ),
    Kind(
        "a block for multi-token prediction (MTP)",
        lambda f: f.any_name(r"^mtp\.|\.mtp\.|(^|\.)eh_proj\.") or f.any_architecture("MTP|NextN"),
        f"It drafts here from a GGUF: {_TO_GGUF} writes it into the file of its target, or with --mtp into one of its "
        "own, and then draft_sources=('mtp',) or draft_model_path takes it",
    ),
    Kind(
        "Gemma 4's assistant",
        lambda f: f.any_architecture("Gemma4Assistant"),
        f"It drafts here from a GGUF: {_TO_GGUF} makes one, which draft_model_path takes",
    ),
    Kind(
        "Medusa heads",
        lambda f: f.any_name(r"medusa|^\d+\.\d+\.linear\.") or f.any_architecture("Medusa"),
        "They cannot be run here. Use an EAGLE-3 head, a block drafter or a small model",
    ),
    Kind(
        "an MLP speculator",
        lambda f: f.any_name(r"^(speculator\.)?(emb|proj|ln|head)\.\d+\.") or f.any_architecture("MLPSpeculator"),
        "It cannot be run here. Use an EAGLE-3 head, a block drafter or a small model",
    ),
    Kind(
        "a drafter with experts (a mixture of experts, MoE)",
        lambda f: f.any_name(r"\.(experts|shared_experts?|router)\.|\.experts_|\.block_sparse_moe\."),
        "It cannot be run here: graphs of heads and of block drafters have one feed-forward part for all tokens. Use "
        "one with dense layers",
    ),
    Kind(
        "a block drafter with multi-head latent attention (MLA, kv_lora_rank)",
        _is_mla_block,
        "It cannot be run here: llama.cpp's graph of block drafters has keys and values for each head. Use one whose "
        "layers are Qwen3's, or an EAGLE-3 head",
    ),
    Kind(
        "a block drafter with Domino's recurrent head",
        lambda f: f.any_name(r"prefix_gru|\.gru\.") or f.config.values.get("projector_type") == "domino",
        "It cannot be run here: llama.cpp's graph of block drafters has Markov heads alone. Use a DFlash or a DSpark",
    ),
    Kind(
        "a whole model",
        lambda f: not f.is_block and not f.any_name(r"hidden_norm|^fc\.|mask_hidden") and _n_layers(f.names) > 4,
        f"{_TO_GGUF} makes a GGUF of it; if its vocabulary is the target's, draft_model_path takes that as a small "
        "model that drafts",
    ),
)


def _n_layers(names: Iterable[str]) -> int:
    return len({m[1] for m in (re.match(r"layers\.(\d+)\.", name) for name in names) if m})


def refuse_other_kinds(checkpoint: Checkpoint, config: Config, *, is_block: bool) -> None:
    """Raise `ModelFileError` for a checkpoint of another kind, with what it is and what to do."""
    names = frozenset(checkpoint.tensors)
    if config.top.get("quantization_config") or any(
        part in name for name in names for part in (".weight_packed", ".weight_scale", ".qweight", ".absmax")
    ):
        raise ModelFileError(
            f"'{checkpoint.path}': the checkpoint is quantized: convert the original, then choose an --outtype"
        )
    for name, tensor in checkpoint.tensors.items():
        if name.endswith((".weight", ".bias")) and tensor.dtype not in FLOAT_TYPES:
            raise ModelFileError(
                f"{tensor.source}: expected floats, found {tensor.dtype}: convert the checkpoint that it was made of"
            )
    facts = _Facts(names, config, is_block)
    for kind in KINDS:
        if kind.is_it(facts):
            raise ModelFileError(f"'{checkpoint.path}': {kind.what}. {kind.advice}.")
