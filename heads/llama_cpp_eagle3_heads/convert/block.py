"""Block drafters as their trainers publish them, as GGUF files of llama.cpp's architecture dflash.

Three forms of config.json are read; names of tensors are those of Qwen3 in most of them:
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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from llama_cpp_eagle3._version import __version__
from llama_cpp_eagle3.errors import ModelFileError

from .block_config import BlockConfig
from .block_names import TABLES, VOCABULARIES, expected_shapes, gguf_name
from .checkpoint import Checkpoint
from .encoding import FILE_TYPES, type_of
from .head import Overrides
from .keys import check_keys
from .kinds import refuse_other_kinds
from .output import OutTensor, add_keys, write
from .rope import Rope, add_rope_keys
from .target import TargetModel
from .tensors import Array, is_copy
from .vocab import read_d2t

_MASK_KEY = "tokenizer.ggml.mask_token_id"
_EMBEDDING, _OUTPUT = TABLES
_ROTATED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight")
# matrices with a row for each token of the target, besides the two tables
_BY_TOKEN = (
    "markov_head.markov_w1.weight", "markov_head.markov_w2.weight", "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
)  # fmt: skip


@dataclass(frozen=True)
class BlockSpec:
    """The description of a checkpoint's block drafter for its target."""

    path: Path
    kind: str
    """dflash, dspark or dflash2."""
    keys: dict[str, Any]
    """Keys of the file, without the architecture's prefix."""
    rope: Rope
    mask_token: int
    own_embedding: bool
    """Whether the token embedding is in the file; else it is the target's."""
    own_output: bool
    """Whether lm_head is in the file; else it is the target's."""
    d2t: Array | None
    is_neox: bool = True
    """Whether rows of q and k are halves, as in the file; else neighbours, which are permuted."""
    is_gemma: bool = False
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    """The checkpoint, with Qwen3's names."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def is_block(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a block drafter."""
    names = config.get("architectures") or []
    is_named = isinstance(names, list) and any("DFlash" in str(name) or "DSpark" in str(name) for name in names)
    has_table = any(isinstance(config.get(key), dict) for key in ("dflash_config", "dspark_config"))
    is_muse = isinstance(names, list) and "MuseGlimmerAssistantModel" in names
    return is_named or has_table or is_muse or config.get("speculators_model_type") in ("dflash", "dspark")


def describe_block(checkpoint: Checkpoint, target: TargetModel, overrides: Overrides | None = None) -> BlockSpec:
    """Describe a checkpoint's block drafter.

    overrides: only boundaries, rope_theta and mask_token hold for a block drafter.

    Raises:
        ModelFileError: something in it is missing, broken or not supported.
        IncompatibleDraftError: it was not made for this target.
    """
    overrides = overrides or Overrides()
    if overrides.norm_output is not None or overrides.norm_before_residual is not None:
        raise ModelFileError(
            f"'{checkpoint.path}' is a block drafter: it has no norm_output and no norm_before_residual that could be "
            "overridden"
        )
    reader = BlockConfig(checkpoint, target, overrides)
    config, checkpoint = reader.config, reader.checkpoint
    refuse_other_kinds(checkpoint, config, is_block=True)
    reader.warnings += [*checkpoint.notes, *check_keys(config, is_block=True)]
    _check_names(reader)
    boundaries, n_vocab = reader.boundaries(), reader.n_vocab()
    d2t = read_d2t(checkpoint.tensors, min(n_vocab, target.n_vocab), str(checkpoint.path), reader.notes)
    sizes = reader.sizes()
    n_layer = sizes["block_count"]
    keys: dict[str, Any] = {
        **sizes,
        "vocab_size": target.n_vocab,
        "attention.layer_norm_rms_epsilon": config.get_float("rms_norm_eps"),
        "hidden_activation": reader.activation(),
        "target_layers": boundaries,
        "block_size": config.get_int("block_size", 16),
        **reader.window_keys(n_layer),
        **reader.causal_keys(),
        **reader.number_keys(),
    }
    if reader.kind == "dspark":
        keys["sample_from_anchor"] = reader.sample_from_anchor
        keys["has_confidence_head"] = "confidence_head.proj.weight" in checkpoint.tensors
    if reader.kind == "dflash2":
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        keys |= {name: int(config.check_number(name, config.get(name), 1, 1 << 20)) for name in names}
    _check_shapes(reader, keys, n_vocab, n_vocab if d2t is None else len(d2t))
    mask_token = reader.mask_token(min(n_vocab, target.n_vocab))
    if (row := checkpoint.mask_row) is not None and len(row.values) != keys["embedding_length"]:
        raise ModelFileError(
            f"'{checkpoint.path}': the row of the mask token (mask_embedding) has {len(row.values)} values, the "
            f"drafter is {keys['embedding_length']} wide"
        )
    own_embedding, own_output = _own_tables(reader, mask_token, d2t is not None)
    return BlockSpec(
        path=checkpoint.path,
        kind=reader.kind,
        keys=keys,
        rope=reader.rope(keys["attention.key_length"], n_layer),
        mask_token=mask_token,
        own_embedding=own_embedding,
        own_output=own_output,
        d2t=d2t,
        is_neox=reader.is_neox,
        is_gemma=reader.is_gemma,
        checkpoint=checkpoint,
        notes=tuple(reader.notes),
        warnings=tuple(reader.warnings),
    )


def _check_names(reader: BlockConfig) -> None:
    """Raise ModelFileError for tensors that llama.cpp's graph does not have."""
    if reader.kind == "dflash" and (reader.sample_from_anchor or reader.config.values.get("markov_rank")):
        raise reader.refuse(
            "a first row that drafts, or a markov_rank, but no Markov head (tensor 'markov_head.markov_w1.weight')",
            "llama.cpp drafts with the first row of a block only where there is one",
        )
    for name in reader.checkpoint.tensors:
        if name not in VOCABULARIES and gguf_name(name, reader.is_gemma) is None:
            raise reader.refuse(f"the tensor '{reader.checkpoint.original[name]}'")


def _check_shapes(reader: BlockConfig, keys: dict[str, Any], n_vocab: int, n_rows: int) -> None:
    checkpoint, path = reader.checkpoint, reader.path
    with_markov = reader.config.get_bool("confidence_head_with_markov", True)
    expected = expected_shapes(checkpoint, reader.kind, keys, n_vocab, n_rows, confidence_with_markov=with_markov)
    for name, shape in expected.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape:
            found = "it is missing" if tensor is None else f"found {list(tensor.shape)}"
            raise ModelFileError(
                f"'{path}': tensor '{checkpoint.original.get(name, name)}': expected the shape {list(shape)}, {found}"
            )
    if more := set(checkpoint.tensors) - set(expected) - set(VOCABULARIES):
        name = checkpoint.original[min(more)]
        raise ModelFileError(f"'{path}': tensor '{name}': not expected in {keys['block_count']} layers")


def _own_tables(reader: BlockConfig, mask_token: int, has_d2t: bool) -> tuple[bool, bool]:
    """Whether the file must have an embedding and an output: not if they are copies of the target's."""
    tensors, target, notes = reader.checkpoint.tensors, reader.target, reader.notes
    embd, output, row = tensors.get(_EMBEDDING), tensors.get(_OUTPUT), reader.checkpoint.mask_row
    own_embedding = row is not None
    if embd is not None and not is_copy(embd, target.n_vocab, target.embedding_rows):
        own_embedding = True
    elif embd is not None and not is_copy(embd, target.n_vocab, target.embedding_rows, [mask_token]):
        own_embedding = True
        notes.append("embed_tokens is a copy of the target's except for the mask token: it is in the file")
    own_output = output is not None and (has_d2t or not is_copy(output, target.n_vocab, target.output_rows))
    shared = [name for name, has, own in (
        ("embed_tokens", embd is not None, own_embedding), ("lm_head", output is not None, own_output)
    ) if has and not own]  # fmt: skip
    if shared:
        notes.append(
            f"{' and '.join(shared)} {'is a copy' if len(shared) < 2 else 'are copies'} of the target's: shared"
        )
    if own_embedding and not own_output:
        # if a file has only an embedding, llama.cpp uses it for the output too
        if row is None and output is None and reader.config.get_bool("tie_word_embeddings"):
            return True, False
        return True, True
    return own_embedding, own_output


def write_block(path: Path, spec: BlockSpec, target: TargetModel, outtype: str, progress: bool, name: str) -> None:
    """Write the GGUF of a block drafter called `name` to `path`.

    Raises:
        ModelFileError: the target's tokens or tables are not at hand.
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
    write(writer, [*_tensors(spec, outtype), *_tables(spec, target, outtype)], progress)


def _tensors(spec: BlockSpec, outtype: str) -> Iterable[OutTensor]:
    """All but the two tables."""
    assert spec.checkpoint is not None
    for name, tensor in spec.checkpoint.tensors.items():
        if name in VOCABULARIES or name in TABLES:
            continue
        shape, read = tuple(tensor.shape), tensor.read
        if name == "markov_head.markov_w2.weight" and spec.d2t is not None:
            pass  # its rows are those of the draft vocabulary
        elif name in _BY_TOKEN:
            shape, read = _with_rows(shape, read, spec.keys["vocab_size"])
        elif name == "confidence_head.proj.weight":
            shape, read = _with_markov_part(spec, shape, read)
        elif name.endswith(_ROTATED) and not spec.is_neox:
            read = _in_halves(read, spec.keys["attention.key_length"], spec.rope.n_rot)
        is_exact = "conv.base_kernel" in name or "confidence" in name
        out = gguf_name(name, spec.is_gemma)
        assert out is not None  # as _check_names has it
        yield OutTensor(out, shape, GgmlType.F32 if is_exact else type_of(shape, outtype), read)
    if spec.rope.freqs is not None:
        freqs = spec.rope.freqs
        yield OutTensor("rope_freqs.weight", freqs.shape, GgmlType.F32, lambda: freqs)
    if spec.d2t is not None:
        d2t = spec.d2t
        yield OutTensor("d2t", d2t.shape, GgmlType.I64, lambda: d2t)


def _with_rows(
    shape: tuple[int, ...], read: Callable[[], Array], n_rows: int
) -> tuple[tuple[int, ...], Callable[[], Array]]:
    """A matrix with a row for each token of the target: zeros for tokens that the checkpoint does not have."""
    if shape[0] == n_rows:
        return shape, read
    n = shape[0]
    return (n_rows, *shape[1:]), lambda: np.pad(read()[:n_rows], ((0, max(0, n_rows - n)), (0, 0)))


def _with_markov_part(
    spec: BlockSpec, shape: tuple[int, ...], read: Callable[[], Array]
) -> tuple[tuple[int, ...], Callable[[], Array]]:
    """A confidence that does not read the Markov head's part, as the graph has it: multiplied by zeros."""
    assert spec.checkpoint is not None
    markov = spec.checkpoint.tensors.get("markov_head.markov_w1.weight")
    n = spec.keys["embedding_length"] + (0 if markov is None else markov.shape[-1])
    return (1, n), lambda: np.pad(read(), ((0, 0), (0, n - shape[-1])))


def _in_halves(read: Callable[[], Array], head_dim: int, n_rot: int) -> Callable[[], Array]:
    """Rows of q or k from neighbouring pairs to halves, which llama.cpp's graph rotates here."""

    def halves() -> Array:
        values = read()
        heads = values.reshape(-1, head_dim, *values.shape[1:])
        pairs = heads[:, :n_rot].reshape(len(heads), n_rot // 2, 2, *values.shape[1:]).swapaxes(1, 2)
        turned = pairs.reshape(len(heads), n_rot, *values.shape[1:])
        return np.concatenate([turned, heads[:, n_rot:]], axis=1).reshape(values.shape)

    return halves


def _tables(spec: BlockSpec, target: TargetModel, outtype: str) -> Iterable[OutTensor]:
    """Embedding and output, if the file has them: the checkpoint's, else the target's with the mask's row."""
    assert spec.checkpoint is not None
    row = spec.checkpoint.mask_row
    for name, own in ((_EMBEDDING, spec.own_embedding), (_OUTPUT, spec.own_output)):
        tensor, out = spec.checkpoint.tensors.get(name), gguf_name(name, spec.is_gemma)
        if not own or out is None:
            continue
        if tensor is None:
            is_output = name == _OUTPUT
            yield target.table(is_output, out, None if row is None or is_output else (row.token, row.values))
            continue
        shape, read = tuple(tensor.shape), tensor.read
        if name == _EMBEDDING or spec.d2t is None:
            shape, read = _with_rows(shape, read, spec.keys["vocab_size"])
        if name == _EMBEDDING and row is not None:
            read = _with_row(read, row.token, row.values)
        yield OutTensor(out, shape, type_of(shape, outtype), read)


def _with_row(read: Callable[[], Array], token: int, values: Array) -> Callable[[], Array]:
    def patched() -> Array:
        table = np.array(read())
        table[token] = values
        return table

    return patched
