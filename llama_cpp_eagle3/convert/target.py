"""The facts of a target that a conversion needs, from its GGUF or its Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFValueType
from gguf.quants import dequantize

from .. import _core
from ..errors import ModelFileError
from .checkpoint import canonical_name, read_json, read_tensors
from .gguf_file import KeyValue, key_values, open_gguf
from .tensors import Array


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

    def embedding_rows(self, ids: Array) -> Array | None:
        """Rows of the token embedding as float32, None if they are not at hand."""
        try:
            return self._gguf_rows(ids) if self.is_gguf else self._checkpoint_rows(ids)
        except (ModelFileError, NotImplementedError, ValueError):
            return None

    def _gguf_rows(self, ids: Array) -> Array | None:
        for tensor in open_gguf(self.path).tensors:
            if tensor.name == "token_embd.weight":
                return np.asarray(dequantize(tensor.data[ids], tensor.tensor_type), dtype=np.float32)
        return None

    def _checkpoint_rows(self, ids: Array) -> Array | None:
        for name, tensor in read_tensors(self.path).items():
            if (canonical_name(name) or "").endswith("embed_tokens.weight") and "visual" not in name:
                raw = tensor.read_raw()[ids]
                if tensor.dtype == "bf16":
                    return (raw.astype(np.uint32) << 16).view(np.float32)
                return raw.astype(np.float32)
        return None


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

    No text is tokenized with a head: it goes through the target's own tokenizer. So the pre-tokenizer is not looked
    for, and a file without a vocabulary only has to have the number of tokens.
    """
    string, array = GGUFValueType.STRING, GGUFValueType.ARRAY
    none = [KeyValue("tokenizer.ggml.model", "none", string)]
    if not (path / "tokenizer.json").is_file():
        return none
    state = read_json(path / "tokenizer.json")
    model = state.get("model") or {}
    if model.get("type") != "BPE" or "ByteLevel" not in str(state.get("decoder")):
        return none
    tokens = {i: f"[PAD{i}]" for i in range(n_vocab)}
    kinds = [5] * n_vocab  # unused
    for token, i in model.get("vocab", {}).items():
        if 0 <= i < n_vocab:
            tokens[i], kinds[i] = token, 1
    for entry in state.get("added_tokens") or []:
        if 0 <= entry["id"] < n_vocab:
            tokens[entry["id"]], kinds[entry["id"]] = entry["content"], 3 if entry.get("special") else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    return [
        KeyValue("tokenizer.ggml.model", "gpt2", string),
        KeyValue("tokenizer.ggml.pre", "default", string),
        KeyValue("tokenizer.ggml.tokens", list(tokens.values()), array, string),
        KeyValue("tokenizer.ggml.token_type", kinds, array, GGUFValueType.INT32),
        KeyValue("tokenizer.ggml.merges", merges, array, string),
    ]
