"""The GGUF of a target that was trained here, with PyPI ``gguf``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from torch import Tensor, nn

from ..convert.checkpoint import read_json
from . import corpus
from .model import Attention, Config, Llama

SOURCE = "CPython standard library"


@dataclass(frozen=True)
class About:
    """Metadata of a file; the defaults are the bundled target's."""

    name: str = "pystdlib 8M"
    target: str = f"small language model of Python code, trained on the {SOURCE}"
    license: str = "PSF-2.0"
    chat_template: str = ""


_BUNDLED = About()


def permute(weight: Tensor, n_head: int) -> Tensor:
    """Rows of a q or k projection from half-rotation to llama.cpp's interleaved RoPE."""
    n_out, n_in = weight.shape
    return weight.view(n_head, 2, n_out // n_head // 2, n_in).transpose(1, 2).reshape(n_out, n_in)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """The byte-level BPE of :mod:`corpus`, as llama.cpp's ``gpt2`` model with the ``gpt-2`` pre-tokenizer."""
    whole = read_json(path)
    state = whole["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    special = {*corpus.SPECIAL_TOKENS, *(token["content"] for token in whole.get("added_tokens", ()))}
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(corpus.BOS)
    writer.add_eos_token_id(corpus.EOS)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_sizes(writer: gguf.GGUFWriter, cfg: Config) -> None:
    """Hyperparameters."""
    writer.add_context_length(cfg.n_ctx)
    writer.add_embedding_length(cfg.n_embd)
    writer.add_block_count(cfg.n_layer)
    writer.add_feed_forward_length(cfg.n_ff)
    writer.add_head_count(cfg.n_head)
    writer.add_head_count_kv(cfg.n_head_kv)
    writer.add_key_length(cfg.n_embd_head)
    writer.add_value_length(cfg.n_embd_head)
    writer.add_layer_norm_rms_eps(cfg.rms_eps)
    writer.add_rope_dimension_count(cfg.n_embd_head)
    writer.add_rope_freq_base(cfg.rope_base)
    writer.add_vocab_size(cfg.n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_matrix(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    """A matrix, as F16."""
    writer.add_tensor(f"{name}.weight", weight.detach().float().numpy().astype(np.float16))


def add_vector(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    """A norm's weight, as F32."""
    writer.add_tensor(f"{name}.weight", weight.detach().float().numpy().astype(np.float32))


def add_layer(writer: gguf.GGUFWriter, il: int, attn: Attention, ffn: nn.Module) -> None:
    """Projections of one layer."""
    add_matrix(writer, f"blk.{il}.attn_q", permute(attn.q.weight, attn.n_head))
    add_matrix(writer, f"blk.{il}.attn_k", permute(attn.k.weight, attn.n_head_kv))
    add_matrix(writer, f"blk.{il}.attn_v", attn.v.weight)
    add_matrix(writer, f"blk.{il}.attn_output", attn.o.weight)
    for name in ("gate", "up", "down"):
        add_matrix(writer, f"blk.{il}.ffn_{name}", getattr(ffn, name).weight)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(model: Llama, tokenizer: Path, path: Path, about: About = _BUNDLED) -> None:
    """The target as a GGUF of architecture ``llama``; the embedding is tied, so there is no output tensor."""
    cfg = model.cfg
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(about.name)
    writer.add_description(about.target)
    writer.add_license(about.license)
    add_sizes(writer, cfg)
    add_tokenizer(writer, tokenizer)
    if about.chat_template:
        writer.add_chat_template(about.chat_template)
    add_matrix(writer, "token_embd", model.tok_embd.weight)
    for il, block in enumerate(model.blocks):
        add_vector(writer, f"blk.{il}.attn_norm", block.attn_norm.weight)
        add_layer(writer, il, block.attn, block.ffn)
        add_vector(writer, f"blk.{il}.ffn_norm", block.ffn_norm.weight)
    add_vector(writer, "output_norm", model.norm.weight)
    finish(writer)
