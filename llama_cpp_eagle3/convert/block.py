"""Block drafters as their trainers publish them, as GGUF files of llama.cpp's architecture dflash.

Three forms of config.json are read; names of tensors are the same in all of them:
- z-lab's DFlash (https://github.com/z-lab/dflash, dflash/model.py): Qwen3's config with a table `dflash_config`. The
  drafter has no tables of its own. DFlash2 has more tensors and keys in that table, which are known from llama.cpp's
  converter alone: its model code is not in that repository.
- deepseek-ai's DSpark (https://github.com/deepseek-ai/DeepSpec, deepspec/modeling/dspark/qwen3): Qwen3's config with
  `target_layer_ids`, `mask_token_id` and `markov_rank` beside the others, and copies of the target's tables.
- speculators (https://github.com/vllm-project/speculators, src/speculators/models/dflash and dspark): the config of the
  layers in `transformer_layer_config`, and maybe a vocabulary of its own.

Layer ids of the first two are outputs of layers, so that boundaries are one more; those of speculators are boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from .._version import __version__
from ..errors import IncompatibleDraftError, ModelFileError
from .checkpoint import Checkpoint
from .config import CLASS_DEFAULTS, Config, flatten
from .encoding import FILE_TYPES, type_of
from .output import OutTensor, add_keys, write
from .rope import Rope, add_rope_keys, read_rope
from .target import TargetModel
from .tensors import Array, is_copy
from .vocab import read_d2t

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
_TOP_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
_VOCABULARIES = ("d2t", "t2d")
_TABLES = ("embed_tokens.weight", "lm_head.weight")
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_BOUNDARIES = "aux_hidden_state_layer_ids"
_MASK_KEY = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True)
class BlockSpec:
    """The description of a checkpoint's block drafter for its target."""

    path: Path
    kind: str
    """Of dflash, dspark and dflash2."""
    keys: dict[str, Any]
    """Of the file, without the architecture's name in front."""
    rope: Rope
    mask_token: int
    own_tables: bool
    """Whether embedding and output are in the file; else they are the target's."""
    d2t: Array | None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def is_block(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a block drafter."""
    names = config.get("architectures") or []
    is_named = isinstance(names, list) and any("DFlash" in str(name) or "DSpark" in str(name) for name in names)
    return is_named or "dflash_config" in config or config.get("speculators_model_type") in ("dflash", "dspark")


class _Reader:
    """A checkpoint's config and tensors, held against the target."""

    def __init__(self, checkpoint: Checkpoint, target: TargetModel):
        self.checkpoint, self.target, self.path = checkpoint, target, checkpoint.path
        flat = flatten(self.path / "config.json", checkpoint.config)
        own = checkpoint.config.get("dflash_config") or {}
        if not isinstance(own, dict):
            raise ModelFileError(f"'{flat.path}': key 'dflash_config': expected a table, found {type(own).__name__}")
        values = {**flat.values, **{key: value for key, value in own.items() if value is not None}}
        # the drafters' classes are Qwen3's, whatever their model_type is called
        self.config = Config(flat.path, values, flat.top, flat.nested, flat.eagle, CLASS_DEFAULTS["qwen3"])
        self.notes: list[str] = []
        names = checkpoint.tensors
        is_selector = "candidate_selector.hidden_projection.weight" in names
        self.kind = "dflash2" if is_selector else "dspark" if "markov_head.markov_w1.weight" in names else "dflash"

    def refuse(self, what: str) -> ModelFileError:
        return ModelFileError(f"'{self.path}': a block drafter with {what}: llama.cpp's graph has no such thing")

    def check_names(self) -> None:
        """Raise ModelFileError for what llama.cpp's graph does not have."""
        if (self.path / "mask_embedding.pt").is_file():
            raise self.refuse("an embedding of its own for the mask token (mask_embedding.pt)")
        if "quantization_config" in self.config.top:
            raise ModelFileError(f"'{self.path}': the checkpoint is quantized: convert the original")
        head_type = self.config.get("markov_head_type", "vanilla")
        if head_type != "vanilla":
            raise self.refuse(f"a Markov head of the type '{head_type}'")
        if self.kind == "dflash" and (self.sample_from_anchor or self.config.has("markov_rank")):
            raise self.refuse("a first row that drafts, but no Markov head")
        if self.config.values.get("rope_is_neox_style") is False:
            raise self.refuse("neighbouring channels that are rotated together (rope_is_neox_style false)")
        for name in self.checkpoint.tensors:
            _, _, rest = name.partition(".")
            known = name in _TOP_NAMES or name in _VOCABULARIES
            if not known and not (name.startswith("layers.") and rest.partition(".")[2] in _LAYER_NAMES):
                raise self.refuse(f"the tensor '{self.checkpoint.original[name]}'")

    @property
    def sample_from_anchor(self) -> bool:
        """Whether the first row of a block drafts; DeepSpec has no key for it.

        Files with boundaries but not in speculators' form come from SpecForge, as llama.cpp's converter has it.
        """
        is_specforge = self.config.has(_BOUNDARIES) and not self.config.is_speculators
        return self.config.get_bool("sample_from_anchor", self.kind == "dspark" and not is_specforge)

    def n_layer(self) -> int:
        """Sizes of the drafter."""
        found = self.checkpoint.layer_indices()
        n_layer = self.config.get_int("num_hidden_layers", len(found))
        if found != list(range(n_layer)):
            raise ModelFileError(f"'{self.path}': expected {n_layer} layers as config.json has it, found {found}")
        return n_layer

    def boundaries(self) -> list[int]:
        """Boundaries of the target, whose width and number of layers are checked too."""
        config, target = self.config, self.target
        n_embd, n_layer = config.get_int("hidden_size"), config.get_int("num_target_layers", target.n_layer)
        if (n_embd, n_layer) != (target.n_embd, target.n_layer):
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter was trained for a model of {n_layer} layers, {n_embd} wide; "
                f"'{target.path}' has {target.n_layer}, {target.n_embd} wide"
            )
        key = _BOUNDARIES if config.is_speculators or config.has(_BOUNDARIES) else "target_layer_ids"
        ids = config.values.get(key)
        if ids is None and key != _BOUNDARIES:  # evenly from layer 1 to the third from the end
            n = self.n_layer()
            ids = [round(1 + i * (n_layer - 4) / (n - 1)) for i in range(n)] if n > 1 else [n_layer // 2]
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise ModelFileError(f"'{config.path}': key '{key}': expected a list of layers, found {ids!r}")
        found = ids if key == _BOUNDARIES else [i + 1 for i in ids]
        if min(found) < 0 or len(set(found)) != len(found):
            raise ModelFileError(f"'{config.path}': key '{key}': expected different layers, found {ids}")
        if max(found) > n_layer:
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter reads layers {ids} ({key}), '{target.path}' has {n_layer}: it was "
                "trained for another model"
            )
        return found

    def n_vocab(self) -> int:
        """Tokens of the target, which the drafter must be made for."""
        n = self.config.get_int("vocab_size")
        if n != self.target.n_vocab:
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter was made for a vocabulary of {n} tokens, '{self.target.path}' has "
                f"{self.target.n_vocab}"
            )
        return n

    def mask_token(self, n_vocab: int) -> int:
        token = self.config.values.get("mask_token_id")
        if type(token) is not int or not 0 <= token < n_vocab:
            raise ModelFileError(
                f"'{self.config.path}': key 'mask_token_id': expected a token, 0 to {n_vocab - 1}, found {token!r}"
            )
        return token

    def window_keys(self, n_layer: int) -> dict[str, Any]:
        """Keys of sliding-window layers."""
        config = self.config
        all_layers, window = config.get_bool("use_swa"), config.values.get("swa_window_size")
        window = window or config.values.get("sliding_window")
        if not window or not (all_layers or config.get_bool("use_sliding_window")):
            return {}
        types = config.values.get("layer_types")
        if not isinstance(types, list):  # as Qwen3Config fills them in
            types = ["sliding_attention" if i >= config.get("max_window_layers", 28) else "" for i in range(n_layer)]
        has_window = [all_layers or kind == "sliding_attention" for kind in types[:n_layer]]
        if not any(has_window):
            return {}
        if config.is_speculators and not config.get_bool("sliding_window_non_causal"):
            raise self.refuse("layers whose windows end at each row, beside others that see all of a block")
        size = int(config.check_number("sliding_window", window, 1, 1 << 28))
        return {"attention.sliding_window": size, "attention.sliding_window_pattern": has_window}

    def number_keys(self) -> dict[str, float]:
        """Keys of factors that a few drafters have."""
        names = {
            "output_multiplier": "logit_scale",
            "final_logit_softcapping": "final_logit_softcapping",
            "input_embedding_scale": "embedding_scale",
            "attention_value_scale": "attention.value_scale",
        }
        return {key: self.config.get_float(name) for name, key in names.items() if self.config.has(name)}

    def owns_tables(self, has_d2t: bool) -> bool:
        """Whether the file must have embedding and output: not if they are copies of the target's."""
        tensors = self.checkpoint.tensors
        embd = tensors.get("embed_tokens.weight")
        is_own = embd is not None and not is_copy(embd, self.target.n_vocab, self.target.embedding_rows)
        if embd is not None and not is_own:
            self.notes.append("embed_tokens is a copy of the target's: shared" + ("" if has_d2t else ", as lm_head is"))
        if is_own and "lm_head.weight" not in tensors:
            raise self.refuse("an embedding of its own, but no lm_head")
        return is_own

    def expected(self, keys: dict[str, Any], n_vocab: int, n_rows: int) -> dict[str, tuple[int, ...]]:
        """Shapes by the checkpoint's names."""
        n_embd, head_dim, n_ff = keys["embedding_length"], keys["attention.key_length"], keys["feed_forward_length"]
        n_q, n_kv = keys["attention.head_count"] * head_dim, keys["attention.head_count_kv"] * head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (n_embd,),
            "self_attn.q_proj.weight": (n_q, n_embd),
            "self_attn.k_proj.weight": (n_kv, n_embd),
            "self_attn.v_proj.weight": (n_kv, n_embd),
            "self_attn.o_proj.weight": (n_embd, n_q),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.k_norm.weight": (head_dim,),
            "post_attention_layernorm.weight": (n_embd,),
            "mlp.gate_proj.weight": (n_ff, n_embd),
            "mlp.up_proj.weight": (n_ff, n_embd),
            "mlp.down_proj.weight": (n_embd, n_ff),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (n_embd, n_embd * len(keys["target_layers"])),
            "hidden_norm.weight": (n_embd,),
            "norm.weight": (n_embd,),
        }
        tensors, rank = self.checkpoint.tensors, 0
        if self.kind == "dflash2":
            n_taps, n_group = keys["conv_kernel_size"], keys["conv_group_size"]
            for part in ("attention_conv", "mlp_conv"):
                layer[f"{part}.base_kernel"] = (2, n_taps, n_embd)
                layer[f"{part}.kernel_projection.weight"] = (2 * n_taps * n_embd // n_group, n_embd)
            for name in ("predecessor", "successor"):
                shapes[f"candidate_selector.{name}_codebook"] = (n_vocab, keys["selector_rank"])
            shapes["candidate_selector.hidden_projection.weight"] = (keys["selector_rank"], n_embd)
        if self.kind == "dspark":
            rank = tensors["markov_head.markov_w1.weight"].shape[-1]
            shapes["markov_head.markov_w1.weight"] = (n_vocab, rank)
            shapes["markov_head.markov_w2.weight"] = (n_rows, rank)
        if "confidence_head.proj.weight" in tensors:
            with_markov = self.config.get_bool("confidence_head_with_markov", True)
            shapes["confidence_head.proj.weight"] = (1, n_embd + (rank if with_markov else 0))
            shapes["confidence_head.proj.bias"] = (1,)
        shapes |= {f"layers.{i}.{name}": shape for i in range(keys["block_count"]) for name, shape in layer.items()}
        rows = {"embed_tokens.weight": n_vocab, "lm_head.weight": n_rows}
        return shapes | {name: (rows[name], n_embd) for name in _TABLES if name in tensors}

    def check_shapes(self, keys: dict[str, Any], n_vocab: int, n_rows: int) -> None:
        expected = self.expected(keys, n_vocab, n_rows)
        for name, shape in expected.items():
            tensor = self.checkpoint.tensors.get(name)
            if tensor is None or tuple(tensor.shape) != shape:
                found = "it is missing" if tensor is None else f"found {list(tensor.shape)}"
                raise ModelFileError(
                    f"'{self.path}': tensor '{self.checkpoint.original.get(name, name)}': expected the shape "
                    f"{list(shape)}, {found}"
                )
        if more := set(self.checkpoint.tensors) - set(expected) - set(_VOCABULARIES):
            name = self.checkpoint.original[min(more)]
            raise ModelFileError(f"'{self.path}': tensor '{name}': not expected in {keys['block_count']} layers")


def describe_block(checkpoint: Checkpoint, target: TargetModel) -> BlockSpec:
    """Describe a checkpoint's block drafter.

    Raises:
        ModelFileError: something in it is missing, broken or not supported.
        IncompatibleDraftError: it was not made for this target.
    """
    reader = _Reader(checkpoint, target)
    config = reader.config
    reader.check_names()
    boundaries, n_vocab = reader.boundaries(), reader.n_vocab()
    d2t = read_d2t(checkpoint.tensors, n_vocab, str(checkpoint.path), reader.notes)
    n_layer, n_head = reader.n_layer(), config.get_int("num_attention_heads")
    act = str(config.values.get("hidden_activation") or config.get("hidden_act"))
    if act not in _ACTIVATIONS:
        raise ModelFileError(f"'{config.path}': key 'hidden_act': expected one of {_ACTIVATIONS}, found '{act}'")
    keys: dict[str, Any] = {
        "context_length": config.get_int("max_position_embeddings"),
        "embedding_length": config.get_int("hidden_size"),
        "block_count": n_layer,
        "feed_forward_length": config.get_int("intermediate_size"),
        "attention.head_count": n_head,
        "attention.head_count_kv": config.get_int("num_key_value_heads", n_head),
        "attention.key_length": config.get_int("head_dim"),
        "attention.value_length": config.get_int("head_dim"),
        "vocab_size": n_vocab,
        "attention.layer_norm_rms_epsilon": config.get_float("rms_norm_eps"),
        "hidden_activation": act,
        "target_layers": boundaries,
        "block_size": config.get_int("block_size", 16),
        **reader.window_keys(n_layer),
        **reader.number_keys(),
    }
    for name in ("is_causal", "causal"):
        if config.has(name):
            keys["attention.causal"] = config.get_bool(name)
    if reader.kind == "dspark":
        keys["sample_from_anchor"] = reader.sample_from_anchor
        keys["has_confidence_head"] = "confidence_head.proj.weight" in checkpoint.tensors
    if reader.kind == "dflash2":
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        keys |= {name: int(config.check_number(name, config.get(name), 1, 1 << 20)) for name in names}
    reader.check_shapes(keys, n_vocab, n_vocab if d2t is None else len(d2t))
    return BlockSpec(
        path=checkpoint.path,
        kind=reader.kind,
        keys=keys,
        rope=read_rope(config, keys["attention.key_length"]),
        mask_token=reader.mask_token(n_vocab),
        own_tables=reader.owns_tables(d2t is not None),
        d2t=d2t,
        notes=tuple(reader.notes),
    )


def write_block(
    path: Path, spec: BlockSpec, checkpoint: Checkpoint, target: TargetModel, outtype: str, progress: bool, name: str
) -> None:
    """Write the GGUF of a block drafter called `name` to `path`.

    Raises:
        ModelFileError: the target's tokens are not at hand.
    """
    if not any(entry.key == "tokenizer.ggml.tokens" for entry in target.tokenizer):
        raise ModelFileError(
            f"'{target.path}': its tokens cannot be read from there, which the file of a block drafter has: give the "
            "target's GGUF instead"
        )
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name(f"{name} ({spec.kind})")
    writer.add_file_type(FILE_TYPES[outtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_string("dflash.provenance.converter", f"llama-cpp-eagle3 {__version__}")
    add_keys(writer, {f"dflash.{key}": value for key, value in spec.keys.items()})
    add_rope_keys(writer, "dflash", spec.rope)
    if target.has_sections:  # positions of llama.cpp's batches have sections then, of which texts use the first
        writer.add_array("dflash.rope.dimension_sections", [spec.rope.n_rot // 2, 0, 0, 0])
    for entry in target.tokenizer:
        if entry.key != _MASK_KEY:
            writer.add_key_value(entry.key, entry.value, entry.kind, entry.sub_kind)
    writer.add_uint32(_MASK_KEY, spec.mask_token)
    write(writer, _tensors(spec, checkpoint, outtype), progress)


def _tensors(spec: BlockSpec, checkpoint: Checkpoint, outtype: str) -> list[OutTensor]:
    tensors = []
    for name, tensor in checkpoint.tensors.items():
        is_table = name in _TABLES
        is_wanted = spec.own_tables or (name == "lm_head.weight" and spec.d2t is not None)
        if name in _VOCABULARIES or (is_table and not is_wanted):
            continue
        shape = tuple(tensor.shape)
        kind = GgmlType.F32 if "conv.base_kernel" in name or "confidence" in name else type_of(shape, outtype)
        read = tensor.read
        if name == "confidence_head.proj.weight" and "markov_head.markov_w1.weight" in checkpoint.tensors:
            rank = checkpoint.tensors["markov_head.markov_w1.weight"].shape[-1]
            n = spec.keys["embedding_length"] + rank
            if shape[-1] != n:  # it does not read the Markov head's part

                def read(tensor: Any = tensor, n: int = n) -> Array:
                    values = tensor.read()
                    return np.pad(values, ((0, 0), (0, n - values.shape[-1])))

                shape = (1, n)
        tensors.append(OutTensor(_gguf_name(name), shape, kind, read))
    if spec.rope.freqs is not None:
        freqs = spec.rope.freqs
        tensors.append(OutTensor("rope_freqs.weight", freqs.shape, GgmlType.F32, lambda: freqs))
    if spec.d2t is not None:
        d2t = spec.d2t
        tensors.append(OutTensor("d2t", d2t.shape, GgmlType.I64, lambda: d2t))
    return tensors


def _gguf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, il, rest = name.split(".", 2)
    return f"blk.{il}.{_LAYER_NAMES[rest]}"
