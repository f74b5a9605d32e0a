"""Inflate a target and its head to the shape of a larger model; they compute what they computed before.

    python benchmarks/inflate.py --shape 1B --type Q4_0 --type F16 FOLDER
    python benchmarks/inflate.py -m qwen2.5-coder-1.5b --shape Qwen2.5-7B --type Q4_K_M FOLDER

This gives real text and real acceptance at the cost of a big model. The large pair computes every value of the small
one, beside others that are zero or that nothing reads:

- *Channels* beyond the small width stay zero. A norm divides by the root of the mean over all channels, so that its
  weights shrink by sqrt(small / large width) and eps by small / large width.
- *One constant channel*, the first of the new ones, holds a small K from the embedding on; nothing reads it but the
  last norm. It makes the logits of added tokens very negative: they are never chosen. Its square is a part of what the
  norms average, and comes off their eps.
- *Attention heads* that were added have V = 0 or are not read. *MLP units* that were added have up = 0.
- *Layers* that were added have norms of zero: they add nothing. Those of the small model keep their order and their
  place relative to the boundaries.

Weights that meet only zeros or are not read are random, so that no memory page and no block looks special.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from gguf.quants import dequantize
from numpy.typing import NDArray

from llama_cpp_eagle3.errors import Eagle3Error, IncompatibleDraftError
from llama_cpp_eagle3.models import bundled_pair, resolve
from llama_cpp_eagle3_heads.convert import quantize
from llama_cpp_eagle3_heads.convert.encoding import FILE_TYPES, type_of
from llama_cpp_eagle3_heads.convert.gguf_file import key_values, open_gguf
from llama_cpp_eagle3_heads.convert.output import OutTensor, temporary, write
from random_model import SHAPES, Shape

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]

TARGET_TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K_M")
_LAST_NORM_WEIGHT = 1e5  # of the constant channel: logits of about -3000 / root mean square of the last hidden state
_N_POOL = 1 << 20  # random numbers to fill up with
TARGETS = ("llama", "qwen2")  # architectures of targets that grow
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Part:
    """The position of a small matrix in a large one."""

    rows: NDArray[np.intp]
    """Rows of the large matrix, in the order of the small one's."""
    cols: NDArray[np.intp]
    live: Mask
    """Columns whose input may be other than zero."""
    silent: bool
    """Rows that were added give zero; else they give anything, and nothing reads it."""


class Model:
    """One of the two files: its small tensors, and functions that grow them."""

    def __init__(self, path: str | os.PathLike[str], shape: Shape, outtype: str, n_ff: int, n_vocab_out: int):
        path = os.fspath(path)
        reader = open_gguf(path)
        self.path, self.shape, self.outtype = path, shape, outtype
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.keys = {entry.key: entry for entry in key_values(path, reader)}
        self.arch = str(self.keys["general.architecture"].value)
        self.prefix = self.arch.removesuffix("-ext")  # prefix of the keys; the extended dialect shares it
        self.n_ff, self.n_vocab_out = n_ff, n_vocab_out
        self.n_embd = self.size("embedding_length")
        self.n_layer = self.size("block_count")
        self.n_head, self.n_head_kv = self.size("attention.head_count"), self.size("attention.head_count_kv")
        has_dim = f"{self.prefix}.attention.key_length" in self.keys
        self.head_dim = self.size("attention.key_length") if has_dim else self.n_embd // self.n_head
        self.n_tokens = len(self.keys["tokenizer.ggml.tokens"].value)
        self.eps = float(self.keys[f"{self.prefix}.attention.layer_norm_rms_epsilon"].value)
        self.rng = np.random.default_rng(0)
        self.pool = self.rng.standard_normal(_N_POOL, dtype=np.float32)

    def size(self, key: str) -> int:
        """Return a number of the metadata."""
        entry = self.keys.get(f"{self.prefix}.{key}")
        if entry is None:
            raise Eagle3Error(f"'{self.path}' has no {self.prefix}.{key}: use a file that the converter wrote")
        return int(entry.value)

    def check_sizes(self) -> None:
        """Raise Eagle3Error if this file cannot grow to the shape."""
        s = self.shape
        wanted = {
            f"a width of more than {self.n_embd}": s.n_embd > self.n_embd,
            f"heads of {self.head_dim} values": s.head_dim == self.head_dim,
            f"at least {self.n_head_kv} K/V heads": s.n_head_kv >= self.n_head_kv,
            f"at least {self.n_head // self.n_head_kv} heads for each K/V head": s.n_head // s.n_head_kv
            >= self.n_head // self.n_head_kv,
            f"at least {self.n_tokens} tokens": s.n_vocab >= self.n_tokens,
            f"an MLP of at least {self.size('feed_forward_length')}": self.n_ff >= self.size("feed_forward_length"),
        }
        for what, met in wanted.items():
            if not met:
                raise Eagle3Error(f"'{self.path}' grows to shapes with {what}, not to {s}")

    @property
    def constant(self) -> float:
        """K: a power of two, so that every type holds it exactly; its square is at most half of what eps adds."""
        return float(2.0 ** math.floor(math.log2(self.n_embd * self.eps / 2) / 2))

    @property
    def new_eps(self) -> float:
        """The eps of the large model's norms: the small one's, less the constant channel's part."""
        return (self.n_embd * self.eps - self.constant**2) / self.shape.n_embd

    def small(self, name: str) -> Array:
        """Return a tensor of the small model."""
        tensor = self.tensors[name]
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

    def filler(self, n_out: int, n_in: int) -> Array:
        """Return random numbers of the size of weights; every row begins somewhere else in the pool."""
        pool = np.resize(self.pool, _N_POOL + n_in) * np.float32(n_in**-0.5)
        windows = np.lib.stride_tricks.sliding_window_view(pool, n_in)
        return np.ascontiguousarray(windows[self.rng.integers(0, _N_POOL, n_out)])

    def grown(self, name: str, n_out: int, n_in: int, part: Part) -> Array:
        """Return the large matrix around the small one."""
        large = self.filler(n_out, n_in)
        real = np.zeros(n_out, dtype=bool)
        real[part.rows] = True
        zero = np.ones(n_out, dtype=bool) if part.silent else real
        large[np.ix_(zero, part.live)] = 0.0
        large[np.ix_(part.rows, part.cols)] = self.small(name)
        return large

    # positions of channels, attention heads and MLP units

    def channels(self, n: int = 1) -> tuple[NDArray[np.intp], Mask]:
        """Return the positions of the small channels in `n` normed streams side by side, and the channels not zero."""
        width = self.shape.n_embd
        places = np.concatenate([np.arange(self.n_embd) + i * width for i in range(n)])
        live = np.zeros(n * width, dtype=bool)
        live[places] = True
        return places, live

    def heads(self, group: int, new_group: int) -> NDArray[np.intp]:
        """Return the positions of the rows of the small model's heads, of which each K/V head has a group."""
        h = np.arange(group * self.n_head_kv)
        first = (h // group * new_group + h % group) * self.head_dim
        return (first[:, None] + np.arange(self.head_dim)).ravel()

    # the kinds of tensors

    def norm(self, name: str, last: bool = False) -> OutTensor:
        """Return a norm; `last` is the one before the logits."""

        def values() -> Array:
            scale = math.sqrt(self.n_embd / self.shape.n_embd)
            weight = np.full(self.shape.n_embd, scale, dtype=np.float32)
            weight[: self.n_embd] = self.small(name) * scale
            weight[self.n_embd] = _LAST_NORM_WEIGHT * scale if last else 0.0
            return weight

        return OutTensor(name, (self.shape.n_embd,), GgmlType.F32, values)

    def matrix(self, name: str, n_out: int, n_in: int, values: Callable[[], Array]) -> OutTensor:
        """Return a matrix that `values` makes."""
        return OutTensor(name, (n_out, n_in), type_of((n_out, n_in), self.outtype), values)

    def biases(self, il: int, source: int | str | None, parts: dict[str, Part]) -> Iterator[OutTensor]:
        """Yield the biases of layer `il`'s queries, keys and values, if the model has them: added rows have zeros."""
        s = self.shape
        for name, n_head in (("attn_q", s.n_head), ("attn_k", s.n_head_kv), ("attn_v", s.n_head_kv)):
            bias = f"blk.{source or 0}.{name}.bias"
            if bias in self.tensors:

                def values(name: str = name, bias: str = bias, n: int = n_head * s.head_dim) -> Array:
                    large = np.zeros(n, dtype=np.float32)
                    if source is not None:
                        large[parts[name].rows] = self.small(bias)
                    return large

                yield OutTensor(f"blk.{il}.{name}.bias", (n_head * s.head_dim,), GgmlType.F32, values)

    def random(self, name: str, n_out: int, n_in: int) -> OutTensor:
        """Return a matrix whose values do not matter."""
        return self.matrix(name, n_out, n_in, lambda: self.filler(n_out, n_in))

    def logits(self, source: str) -> OutTensor:
        """Return the output matrix: added tokens read the constant channel only."""
        n, width = self.n_vocab_out, self.shape.n_embd

        def values() -> Array:
            cols, live = self.channels()
            live[self.n_embd] = True
            rows = np.arange(int(self.tensors[source].shape[1]))
            large = self.grown(source, n, width, Part(rows, cols, live, silent=True))
            large[len(rows) :, self.n_embd] = -1.0
            return large

        return self.matrix("output.weight", n, width, values)

    def block(self, il: int, source: int | str | None, n_inp: int = 1) -> Iterator[OutTensor]:
        """Yield layer `il`: the small model's `source`, or one that adds nothing. It reads `n_inp` normed streams."""
        s, blk = self.shape, f"blk.{il}"
        n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        outs = (n_q, n_kv, n_kv, s.n_embd, self.n_ff, self.n_ff, s.n_embd)
        ins = (*[n_inp * s.n_embd] * 3, n_q, s.n_embd, s.n_embd, self.n_ff)
        sizes = {name: (n_out, n_in) for name, n_out, n_in in zip(MATRICES, outs, ins, strict=True)}
        parts = self.parts(n_inp)
        yield from self.biases(il, source, parts)
        if source is None:
            for name in ("attn_norm", "ffn_norm"):
                yield OutTensor(f"{blk}.{name}.weight", (s.n_embd,), GgmlType.F32, lambda: np.zeros(s.n_embd))
            for name, size in sizes.items():
                yield self.random(f"{blk}.{name}.weight", *size)
            return
        for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
            if f"blk.{source}.{name}.weight" in self.tensors:
                tensor = self.norm(f"blk.{source}.{name}.weight")
                yield OutTensor(f"{blk}.{name}.weight", tensor.shape, tensor.kind, tensor.values)
        for name, size in sizes.items():

            def values(name: str = name, size: tuple[int, int] = size) -> Array:
                return self.grown(f"blk.{source}.{name}.weight", *size, parts[name])

            yield self.matrix(f"{blk}.{name}.weight", *size, values)

    def parts(self, n_inp: int) -> dict[str, Part]:
        """Return the parts of a layer's matrices."""
        s = self.shape
        stream, live = self.channels()
        inputs, live_inputs = self.channels(n_inp)
        q, kv = self.heads(self.n_head // self.n_head_kv, s.n_head // s.n_head_kv), self.heads(1, 1)
        units = np.arange(self.size("feed_forward_length"))
        # every head of a K/V head with values has an output, added ones too
        live_q = np.zeros(s.n_head * s.head_dim, dtype=bool)
        live_q[: self.n_head_kv * (s.n_head // s.n_head_kv) * s.head_dim] = True
        live_units = np.zeros(self.n_ff, dtype=bool)
        live_units[units] = True
        return {
            "attn_q": Part(q, inputs, live_inputs, silent=False),
            "attn_k": Part(kv, inputs, live_inputs, silent=False),
            "attn_v": Part(kv, inputs, live_inputs, silent=True),
            "attn_output": Part(stream, q, live_q, silent=True),
            "ffn_gate": Part(units, stream, live, silent=False),
            "ffn_up": Part(units, stream, live, silent=True),
            "ffn_down": Part(stream, units, live_units, silent=True),
        }

    def write(self, output: Path, keys: dict[str, object], tensors: Sequence[OutTensor], progress: bool) -> None:
        """Write the large file: the small one's metadata, with the values of `keys` in place of its own."""
        s = self.shape
        tokens, types = (self.keys[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
        n_added = s.n_vocab - self.n_tokens
        values: dict[str, object] = {
            "general.name": f"{Path(self.path).stem}, inflated",
            "general.file_type": int(FILE_TYPES[self.outtype]),
            "tokenizer.ggml.tokens": [*tokens.value, *(f"<|filler_{i}|>" for i in range(n_added))],
            "tokenizer.ggml.token_type": [*types.value, *[int(gguf.TokenType.UNUSED)] * n_added],
        }
        sizes = {
            "embedding_length": s.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": s.n_head_kv,
            "attention.layer_norm_rms_epsilon": self.new_eps,
            "vocab_size": s.n_vocab,
            **keys,
        }
        values |= {f"{self.arch}.{key}": value for key, value in sizes.items()}
        with temporary(output, os.fspath(self.path)) as part:
            writer = gguf.GGUFWriter(part, self.arch)
            for key, entry in self.keys.items():
                if key != "general.architecture":
                    writer.add_key_value(key, values.get(key, entry.value), entry.kind, entry.sub_kind)
            write(writer, list(tensors), progress)


def layer_places(n_small: int, small: Sequence[int], n_large: int, large: Sequence[int]) -> list[int | None]:
    """Return for each layer of the large target the small one's layer, or None for one that adds nothing.

    Args:
        n_small: layers of the small target.
        small: boundaries that the small head reads.
        n_large: layers of the large target.
        large: boundaries at which the large target has these hidden states.
    """
    edges = list(zip((0, *small, n_small), (0, *large, n_large), strict=True))
    places: list[int | None] = []
    for (begin, first), (end, last) in itertools.pairwise(edges):
        n, room = end - begin, last - first
        if n < 0 or room < n:
            raise Eagle3Error(
                f"boundaries {list(large)} of {n_large} layers leave {room} layers for {n}: expected boundaries at "
                f"least as far apart as {list(small)} of {n_small}"
            )
        places += [*range(begin, end), *[None] * (room - n)]
    return places


def inflate(
    target: str | os.PathLike[str],
    head: str | os.PathLike[str],
    shape: Shape,
    target_out: str | os.PathLike[str],
    head_out: str | os.PathLike[str],
    *,
    random_head_out: str | os.PathLike[str] | None = None,
    boundaries: Sequence[int] | None = None,
    outtype: str = "f16",
    progress: bool = False,
) -> None:
    """Write a pair of the given shape that computes what the small pair computes.

    Args:
        target: a Llama in GGUF with F32 or F16 matrices.
        head: its EAGLE-3 head, one layer in llama.cpp's dialect with an output matrix of its own.
        shape: the shape of the large target. Heads keep their size (`shape.head_dim`), the width must grow.
        target_out: file to write.
        head_out: file to write.
        random_head_out: also write a head of that shape and vocabulary with random weights.
        boundaries: where in the large target the head reads (default: `shape.boundaries`).
        outtype: f32 or f16, type of the matrices.
        progress: show bars.

    Raises:
        Eagle3Error: the pair cannot grow to that shape.
        IncompatibleDraftError: the head is of a kind that this does not know.
    """
    s, large = shape, list(shape.boundaries if boundaries is None else boundaries)
    tgt, dft = Model(target, s, outtype, s.n_ff, s.n_vocab), Model(head, s, outtype, s.n_ff_dft, s.n_vocab_dft)
    _check_kinds(tgt, dft)
    dft.check_sizes()
    places = layer_places(tgt.n_layer, dft.keys["eagle3.target_layers"].value, s.n_layer, large)
    d2t = _grown_d2t(dft)

    tgt.write(Path(target_out), {"block_count": s.n_layer}, _target_tensors(tgt, places), progress)
    keys = {"target_layers": large, "target_hidden_size": s.n_embd}
    tensors = [*_head_tensors(dft, len(large)), OutTensor("d2t", d2t.shape, GgmlType.I64, lambda: d2t)]
    dft.write(Path(head_out), keys, tensors, progress)
    if random_head_out is not None:
        tensors = [dft.random(t.name, *t.shape) if len(t.shape) == 2 else t for t in tensors]
        dft.write(Path(random_head_out), keys, tensors, progress)


def inflate_target(source: str | os.PathLike[str], shape: Shape, output: str | os.PathLike[str]) -> None:
    """Write a target of the given shape, in F16, that computes what the small one computes; its vocabulary stays.

    Raises:
        Eagle3Error: the target cannot grow to that shape.
    """
    model = Model(source, shape, "f16", shape.n_ff, shape.n_vocab)
    model.shape = replace(shape, n_vocab=model.n_tokens)
    model.n_vocab_out = model.n_tokens
    _check_target(model)
    places = [*range(model.n_layer), *[None] * (shape.n_layer - model.n_layer)]
    model.write(Path(output), {"block_count": shape.n_layer}, _target_tensors(model, places), progress=False)


def _check_target(target: Model) -> None:
    if target.arch not in TARGETS:
        raise Eagle3Error(f"'{target.path}': targets of {' and '.join(TARGETS)} grow, not of {target.arch}")
    known = {f"{name}.weight" for name in ("token_embd", "output_norm", "output")}
    for il in range(target.n_layer):
        known |= {f"blk.{il}.{name}.weight" for name in (*MATRICES, "attn_norm", "ffn_norm")}
        known |= {f"blk.{il}.{name}.bias" for name in MATRICES[:3]}
    if unknown := sorted(set(target.tensors) - known):
        raise Eagle3Error(f"'{target.path}': expected tensors of a plain {target.arch}, found {', '.join(unknown[:3])}")
    target.check_sizes()


def _check_kinds(target: Model, head: Model) -> None:
    _check_target(target)
    known = {"fc", "output_norm", "output", "d2t", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"}
    known |= {f"blk.0.{name}" for name in MATRICES}
    different = {name.removesuffix(".weight") for name in head.tensors} ^ known
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        entry = head.keys.get(f"eagle3.{flag}")
        if entry is not None and entry.value:
            different.add(flag)
    if head.arch != "eagle3" or different:
        raise IncompatibleDraftError(
            f"'{head.path}': only plain EAGLE-3 heads of one layer with fc, output and d2t grow; "
            f"this one differs in {', '.join(sorted(different)) or head.arch}"
        )


def _grown_d2t(head: Model) -> NDArray[np.int64]:
    """Return the draft vocabulary; added entries stand for added tokens of the target."""
    s, d2t = head.shape, np.asarray(head.tensors["d2t"].data, dtype=np.int64)
    n_added, n_new = s.n_vocab_dft - len(d2t), s.n_vocab - head.n_tokens
    if not 0 <= n_added <= n_new:
        raise Eagle3Error(
            f"'{head.path}' drafts {len(d2t)} tokens and the target gets {n_new} new ones: "
            f"a draft vocabulary of {s.n_vocab_dft} is too small or too large"
        )
    return np.concatenate([d2t, head.n_tokens + np.arange(n_added)])


def _target_tensors(model: Model, places: list[int | None]) -> list[OutTensor]:
    s = model.shape

    def embeddings() -> Array:
        rows = np.arange(int(model.tensors["token_embd.weight"].shape[1]))
        part = Part(rows, np.arange(model.n_embd), np.ones(s.n_embd, dtype=bool), silent=False)
        large = model.grown("token_embd.weight", s.n_vocab, s.n_embd, part)
        large[rows, model.n_embd] = model.constant
        return large

    tied = "output.weight" not in model.tensors
    tensors = [
        model.matrix("token_embd.weight", s.n_vocab, s.n_embd, embeddings),
        model.norm("output_norm.weight", last=True),
        model.logits("token_embd.weight" if tied else "output.weight"),
    ]
    for il, source in enumerate(places):
        tensors += model.block(il, source)
    return tensors


def _head_tensors(model: Model, n_boundaries: int) -> list[OutTensor]:
    n_out, n_in = model.shape.n_embd, n_boundaries * model.shape.n_embd

    def fc() -> Array:
        cols, live = model.channels(n_boundaries)
        live[model.n_embd :: n_out] = True  # hidden states carry the constant
        part = Part(np.arange(model.n_embd), cols, live, silent=True)
        large = model.grown("fc.weight", n_out, n_in, part)
        large[model.n_embd, model.n_embd] = 1.0
        return large

    return [
        model.matrix("fc.weight", n_out, n_in, fc),
        *model.block(0, 0, n_inp=2),
        model.norm("output_norm.weight", last=True),
        model.logits("output.weight"),
    ]


def quantize_target(source: str | os.PathLike[str], output: str | os.PathLike[str], ftype: str, n_threads: int) -> None:
    """Quantize a target with libllama, with the mix of types that llama-quantize makes."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it prints a line per tensor
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = n_threads
    params.ftype = int(gguf.LlamaFileType[f"MOSTLY_{ftype}"])
    with temporary(Path(output), os.fspath(source)) as part:
        done = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(part), ctypes.byref(params))
        if done != 0:
            raise Eagle3Error(f"libllama cannot quantize '{os.fspath(source)}' to {ftype}")


def inflated_pair(
    folder: Path, shape: str = "1B", ftype: str = "Q4_0", head_type: str = "Q8_0", random_head: bool = False
) -> tuple[Path, Path]:
    """Write the bundled pair at that shape to `folder`; existing files are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"pystdlib-{shape}"

    def path(what: str, kind: str) -> Path:
        return folder / f"{name}{what}-{kind}.gguf"

    base = [path("", "F16"), path("-eagle3", "F16"), path("-random-eagle3", "F16")]
    head_name = "-random-eagle3" if random_head else "-eagle3"
    target, head = path("", ftype), path(head_name, head_type)
    if target.exists() and head.exists():
        return target, head
    if not all(p.exists() for p in base):
        inflate(*bundled_pair(), SHAPES[shape], base[0], base[1], random_head_out=base[2])
    if not target.exists():
        quantize_target(base[0], target, ftype, os.cpu_count() or 1)
    if not head.exists():
        quantize(path(head_name, "F16"), head, head_type.lower())
    return target, head


def inflated_target(folder: Path, model: str, shape: str, ftype: str) -> Path:
    """Write a target at that shape to `folder`; an existing file is used again."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(resolve(model))
    base, target = (folder / f"{source.stem}-{shape}-{kind}.gguf" for kind in ("F16", ftype))
    if not target.exists():
        inflate_target(source, SHAPES[shape], base)
        if ftype != "F16":
            quantize_target(base, target, ftype, os.cpu_count() or 1)
            base.unlink()
    return target


def main() -> None:
    """Write the files and print their paths."""
    parser = argparse.ArgumentParser(description="Write a pair or a target at the shape of a larger model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-m", "--model", help="a target that grows alone (default: the bundled pair)")
    parser.add_argument("--shape", choices=SHAPES, default="1B")
    parser.add_argument("--type", choices=TARGET_TYPES[1:], action="append", help="of the target (default: Q4_0)")
    parser.add_argument("--head-type", choices=("F16", "Q8_0", "Q4_0"), default="Q8_0")
    parser.add_argument("--random-head", action="store_true", help="the head with random weights")
    args = parser.parse_args()
    for ftype in args.type or ["Q4_0"]:
        if args.model is not None:
            print(inflated_target(args.folder, args.model, args.shape, ftype))
            continue
        for path in inflated_pair(args.folder, args.shape, ftype, args.head_type, args.random_head):
            print(path)


if __name__ == "__main__":
    main()
