"""Targets and EAGLE-3 heads of any shape with random weights: speed does not depend on the weights' values.

    python -m llama_cpp_eagle3.bench.random_model --shape 1B --type Q4_0 --head-type Q8_0 FOLDER

A few random blocks of 32 values are quantized and dealt out at random, so that a file is written about as fast as the
disk takes it. The heads are in llama.cpp's dialect: its own tools load the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

TYPES = {name: gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0")}
_N_BLOCK = 32  # values
_N_BLOCKS = 4096  # different ones in a matrix
_N_CTX = 8192


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama and of a head for it."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_ff_dft: int
    n_vocab_dft: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def boundaries(self) -> list[int]:
        """The usual three: near the beginning, in the middle, near the end."""
        return [2, self.n_layer // 2, self.n_layer - 3]


SHAPES = {
    "tiny": Shape(8, 256, 512, 8, 4, 4000, 512, 2000),
    "1B": Shape(16, 2048, 8192, 32, 8, 32000, 8192, 8000),
}


class _File:
    """A GGUF file whose tensors are made one by one while it is written."""

    def __init__(self, path: Path, arch: str, name: str, shape: Shape, ftype: str):
        self.writer = gguf.GGUFWriter(path, arch)
        self.shape, self.ftype = shape, TYPES[ftype]
        self.arch = arch
        self.rng = np.random.default_rng(0)
        self.tensors: list[tuple[str, tuple[int, ...]]] = []
        self.writer.add_name(name)

    def add_sizes(self, n_layer: int, n_ff: int) -> None:
        """The keys that target and head have in common, tokenizer included."""
        w, s = self.writer, self.shape
        w.add_block_count(n_layer)
        w.add_context_length(_N_CTX)
        w.add_embedding_length(s.n_embd)
        w.add_feed_forward_length(n_ff)
        w.add_head_count(s.n_head)
        w.add_head_count_kv(s.n_head_kv)
        w.add_key_length(s.head_dim)
        w.add_value_length(s.head_dim)
        w.add_rope_dimension_count(s.head_dim)
        w.add_rope_freq_base(10000.0)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_vocab_size(s.n_vocab)
        _add_tokenizer(w, s.n_vocab)

    def matrix(self, name: str, n_out: int, n_in: int) -> None:
        """Plan a matrix; it keeps the size of what it multiplies."""
        self.tensors.append((name, (n_out, n_in)))

    def vector(self, name: str, n: int) -> None:
        """Plan a norm: all ones."""
        self.tensors.append((name, (n,)))

    def block(self, il: int, n_inp: int, n_ff: int) -> None:
        """Plan a layer's attention (with inputs of width n_inp) and MLP."""
        s, blk = self.shape, f"blk.{il}"
        n_kv = s.n_head_kv * s.head_dim
        self.vector(f"{blk}.attn_norm.weight", s.n_embd)
        self.matrix(f"{blk}.attn_q.weight", s.n_embd, n_inp)
        self.matrix(f"{blk}.attn_k.weight", n_kv, n_inp)
        self.matrix(f"{blk}.attn_v.weight", n_kv, n_inp)
        self.matrix(f"{blk}.attn_output.weight", s.n_embd, s.n_embd)
        self.vector(f"{blk}.ffn_norm.weight", s.n_embd)
        self.matrix(f"{blk}.ffn_gate.weight", n_ff, s.n_embd)
        self.matrix(f"{blk}.ffn_up.weight", n_ff, s.n_embd)
        self.matrix(f"{blk}.ffn_down.weight", s.n_embd, n_ff)

    def write(self, first: dict[str, npt.NDArray[np.int64]] | None = None) -> None:
        """Write everything; `first` are integer tensors that go before the others."""
        w = self.writer
        for name, ids in (first or {}).items():
            w.add_tensor_info(name, ids.shape, ids.dtype, ids.nbytes)
        for name, shape in self.tensors:
            kind = self._type(shape)
            rows = _n_bytes(shape, kind)
            if kind in (TYPES["F32"], TYPES["F16"]):
                dtype = np.dtype(np.float32 if kind == TYPES["F32"] else np.float16)
                w.add_tensor_info(name, shape, dtype, rows)
            else:
                # quantized tensors are announced by the shape of their bytes
                w.add_tensor_info(name, (shape[0], rows // shape[0]), np.dtype(np.uint8), rows, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for ids in (first or {}).values():
            w.write_tensor_data(ids)
        for _, shape in self.tensors:
            w.write_tensor_data(self._data(shape))
        w.close()

    def _type(self, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
        return self.ftype if len(shape) == 2 else TYPES["F32"]

    def _data(self, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        n_out, n_in = shape
        values = self.rng.normal(0.0, n_in**-0.5, (_N_BLOCKS, _N_BLOCK)).astype(np.float32)
        blocks: npt.NDArray[np.generic] = gguf.quants.quantize(values, self.ftype)
        deal = self.rng.integers(0, _N_BLOCKS, n_out * n_in // _N_BLOCK)
        return blocks[deal].reshape(n_out, -1)


def _n_bytes(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> int:
    n_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(int(np.prod(shape)) // n_block * n_bytes)


def _byte_alphabet() -> Iterator[str]:
    """The printable characters that stand for the 256 bytes in GPT-2's tokenizer."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    n_other = 0
    for b in range(256):
        if b in printable:
            yield chr(b)
        else:
            yield chr(256 + n_other)
            n_other += 1


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """A byte-level tokenizer: one token per byte, one merge, fillers, bos and eos."""
    tokens = [*_byte_alphabet(), "in"]
    n_text = len(tokens)
    tokens += [f"<|filler_{i}|>" for i in range(n_vocab - n_text - 2)] + ["<|bos|>", "<|eos|>"]
    types = [gguf.TokenType.NORMAL] * n_text
    types += [gguf.TokenType.UNUSED] * (n_vocab - n_text - 2) + [gguf.TokenType.CONTROL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["i n"])
    writer.add_bos_token_id(n_vocab - 2)
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(True)


def write_target(path: Path, shape: Shape, ftype: str) -> None:
    """Write a Llama with random weights."""
    file = _File(path, "llama", f"random llama {ftype}", shape, ftype)
    file.add_sizes(shape.n_layer, shape.n_ff)
    file.matrix("token_embd.weight", shape.n_vocab, shape.n_embd)
    file.vector("output_norm.weight", shape.n_embd)
    file.matrix("output.weight", shape.n_vocab, shape.n_embd)
    for il in range(shape.n_layer):
        file.block(il, shape.n_embd, shape.n_ff)
    file.write()


def write_head(path: Path, shape: Shape, ftype: str) -> None:
    """Write an EAGLE-3 head with random weights for a target of that shape, in llama.cpp's dialect."""
    file = _File(path, "eagle3", f"random EAGLE-3 head {ftype}", shape, ftype)
    file.add_sizes(1, shape.n_ff_dft)
    file.writer.add_array("eagle3.target_layers", shape.boundaries)
    file.writer.add_uint32("eagle3.target_hidden_size", shape.n_embd)
    file.matrix("fc.weight", shape.n_embd, 3 * shape.n_embd)
    file.vector("blk.0.attn_norm_2.weight", shape.n_embd)
    file.block(0, 2 * shape.n_embd, shape.n_ff_dft)
    file.vector("output_norm.weight", shape.n_embd)
    file.matrix("output.weight", shape.n_vocab_dft, shape.n_embd)
    stride = shape.n_vocab // shape.n_vocab_dft
    file.write({"d2t": np.arange(shape.n_vocab_dft, dtype=np.int64) * stride})


def random_pair(folder: Path, shape: str = "1B", ftype: str = "Q4_0", head_type: str = "Q8_0") -> tuple[Path, Path]:
    """A target and a head in `folder`; files that are there already are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    target, head = folder / f"random-{shape}-{ftype}.gguf", folder / f"random-{shape}-eagle3-{head_type}.gguf"
    for path, write, kind in ((target, write_target, ftype), (head, write_head, head_type)):
        if not path.exists():
            part = path.with_suffix(".tmp")
            write(part, SHAPES[shape], kind)
            part.rename(path)
    return target, head


def main() -> None:
    """Write a pair and print its paths."""
    parser = argparse.ArgumentParser(description="Write a target and an EAGLE-3 head with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1B")
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="of the target's matrices")
    parser.add_argument("--head-type", choices=TYPES, default="Q8_0", help="of the head's matrices")
    args = parser.parse_args()
    for path in random_pair(args.folder, args.shape, args.type, args.head_type):
        print(path)


if __name__ == "__main__":
    main()
