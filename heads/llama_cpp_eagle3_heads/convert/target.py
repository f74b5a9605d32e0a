"""The facts of a target that a conversion needs, from its GGUF or its Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFValueType, ReaderTensor
from gguf.quants import dequantize

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import ModelFileError

from .checkpoint import canonical_name, read_json, read_tensors
from .encoding import encode
from .gguf_file import KeyValue, key_values, open_gguf
from .output import OutTensor
from .tensors import Array, LazyTensor


@dataclass(frozen=True)
class TargetModel:
    """Sizes of the target, its tokenizer's keys, and a way to look at a few rows of its embedding."""

    path: Path
    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    is_gguf: bool
    tokenizer: list[KeyValue] = field(repr=False)
    has_sections: bool = False
    """Whether it rotates by several positions (M-RoPE)."""

    @property
    def is_gpt_oss(self) -> bool:
        """Whether the rules for gpt-oss heads apply."""
        return self.arch.replace("_", "-") == "gpt-oss"

    def find_token(self, text: str) -> int | None:
        """The token of this text; None if there is none, or the tokens are not at hand."""
        tokens: list[str] = next((entry.value for entry in self.tokenizer if entry.key == "tokenizer.ggml.tokens"), [])
        return tokens.index(text) if text in tokens else None

    def embedding_rows(self, ids: Array) -> Array | None:
        """Rows of the token embedding as float32, None if they are not at hand."""
        return self._rows(_EMBEDDING, ids)

    def output_rows(self, ids: Array) -> Array | None:
        """Rows of the output matrix as float32, None if they are not at hand."""
        return self._rows(_OUTPUT, ids)

    def table(self, is_output: bool, name: str, row: tuple[int, Array] | None = None) -> OutTensor:
        """The token embedding, or the output matrix, as a tensor `name` of another file, in its own type.

        row: a token, and the values that replace its row.

        Raises:
            ModelFileError: the tensor is missing, or in another file of a split model.
        """
        tensor = self._find(_OUTPUT if is_output else _EMBEDDING)
        if tensor is None:
            raise ModelFileError(
                f"'{self.path}': the {'output matrix' if is_output else 'token embedding'} is not in this file, which "
                "the drafter's file must have: give the target in one file"
            )
        if isinstance(tensor, LazyTensor):
            kind = {"bf16": GgmlType.BF16, "f16": GgmlType.F16}.get(tensor.dtype, GgmlType.F32)
            lazy = tensor

            def read() -> Array:
                values = np.array(lazy.read()[: self.n_vocab])
                if row is not None:
                    values[row[0]] = row[1]
                return values

            return OutTensor(name, (self.n_vocab, tensor.shape[1]), kind, read)
        stored = tensor

        def copy() -> Array:
            data = np.array(stored.data)
            if row is not None:
                data[row[0]] = encode(row[1][None], stored.tensor_type).view(data.dtype).reshape(data[0].shape)
            return data

        shape = (int(tensor.shape[1]), int(tensor.shape[0]))
        return OutTensor(name, shape, tensor.tensor_type, copy, is_encoded=True)

    def _rows(self, names: tuple[str, ...], ids: Array) -> Array | None:
        try:
            tensor = self._find(names)
            if isinstance(tensor, LazyTensor):
                raw = tensor.read_raw()[ids]
                if tensor.dtype == "bf16":
                    return (raw.astype(np.uint32) << 16).view(np.float32)
                return raw.astype(np.float32)
            return None if tensor is None else np.asarray(dequantize(tensor.data[ids], tensor.tensor_type), np.float32)
        except (ModelFileError, NotImplementedError, ValueError):
            return None

    def _find(self, names: tuple[str, ...]) -> LazyTensor | ReaderTensor | None:
        """The first of these tensors, by their names in a GGUF; a model without an output uses its embedding."""
        if self.is_gguf:
            stored = {tensor.name: tensor for tensor in open_gguf(self.path).tensors}
            return next((stored[name] for name in names if name in stored), None)
        found: dict[str, LazyTensor] = {}
        for name, tensor in read_tensors(self.path).items():
            own = canonical_name(name) or ""
            for ours, theirs in _FOLDER_NAMES.items():
                if own.endswith(theirs) and "visual" not in name:
                    found.setdefault(ours, tensor)
        return next((found[name] for name in names if name in found), None)


_EMBEDDING = ("token_embd.weight",)
_OUTPUT = ("output.weight", "token_embd.weight")
_FOLDER_NAMES = {"token_embd.weight": "embed_tokens.weight", "output.weight": "lm_head.weight"}


def read_target_model(path: Path) -> TargetModel:
    """Read the target's header (GGUF) or config.json and tokenizer (Hugging Face folder)."""
    return _read_folder(path) if path.is_dir() else _read_gguf(path)


def _read_gguf(path: Path) -> TargetModel:
    info = _core.read_target(str(path))
    reader = open_gguf(path)
    has_sections = f"{info.arch}.rope.dimension_sections" in reader.fields
    tokenizer = key_values(path, reader, "tokenizer.")
    return TargetModel(path, info.arch, info.n_layer, info.n_embd, info.n_vocab, True, tokenizer, has_sections)


def _read_folder(path: Path) -> TargetModel:
    config = read_json(path / "config.json")
    # multimodal models keep the language model's config inside
    text = config.get("text_config") or config.get("llm_config") or config
    sizes = []
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        value = text.get(key, config.get(key))
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelFileError(f"'{path / 'config.json'}': key '{key}': expected a positive size, found {value!r}")
        sizes.append(value)
    arch = str(text.get("model_type") or config.get("model_type") or "unknown")
    n_layer, n_embd, n_vocab = sizes
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    tokenizer = _read_tokenizer(path, n_vocab)
    return TargetModel(path, arch, n_layer, n_embd, n_vocab, False, tokenizer, "mrope_section" in rope)


def _read_tokenizer(path: Path, n_vocab: int) -> list[KeyValue]:
    """The vocabulary of a byte-level BPE tokenizer.json, so that llama.cpp can show drafted tokens; else none.

    No text is tokenized with a head, but with the target's own tokenizer. So the pre-tokenizer is not needed, and a
    file without a vocabulary only needs the number of tokens.
    """
    string, array = GGUFValueType.STRING, GGUFValueType.ARRAY
    none = [KeyValue("tokenizer.ggml.model", "none", string)]
    if not (path / "tokenizer.json").is_file():
        return none
    state = read_json(path / "tokenizer.json")
    try:
        found = _byte_level_bpe(state, n_vocab)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        why = f"not as the library 'tokenizers' writes it ({type(e).__name__}: {e})"
        raise ModelFileError(f"'{path / 'tokenizer.json'}': {why}; take the target's own file, or leave it out") from e
    if found is None:
        return none
    tokens, kinds, merges = found
    return [
        KeyValue("tokenizer.ggml.model", "gpt2", string),
        KeyValue("tokenizer.ggml.pre", "default", string),
        KeyValue("tokenizer.ggml.tokens", tokens, array, string),
        KeyValue("tokenizer.ggml.token_type", kinds, array, GGUFValueType.INT32),
        KeyValue("tokenizer.ggml.merges", merges, array, string),
    ]


def _byte_level_bpe(state: dict[str, Any], n_vocab: int) -> tuple[list[str], list[int], list[str]] | None:
    """Tokens, their types and merges; None if it is of another kind."""
    model = state.get("model") or {}
    if model.get("type") != "BPE" or "ByteLevel" not in str(state.get("decoder")):
        return None
    tokens = {i: f"[PAD{i}]" for i in range(n_vocab)}
    kinds = [5] * n_vocab  # unused
    for token, i in model.get("vocab", {}).items():
        if 0 <= i < n_vocab:
            tokens[i], kinds[i] = token, 1
    for entry in state.get("added_tokens") or []:
        if 0 <= entry["id"] < n_vocab:
            tokens[entry["id"]], kinds[entry["id"]] = str(entry["content"]), 3 if entry.get("special") else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    return list(tokens.values()), kinds, merges
