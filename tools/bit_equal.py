"""Find whether a row's result depends on the other rows of its pass, and the first operation in which it does.

    python tools/bit_equal.py model.gguf...             models of your own
    python tools/bit_equal.py --archs [llama qwen3 ...] the random models of the tests, all without names

A chain is decoded after the same prompt one row at a time and in passes of several rows; logits are compared bit for
bit. Where they differ, all nodes of both graphs are recorded, and the first operation whose rows differ is named.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from llama_cpp_eagle3 import _core

N_PROMPT = 9
N_ROWS = (2, 3, 4, 7, 16)
_N_DIMS = 4


class _Tensor(ctypes.Structure):
    """A ggml_tensor up to its name."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


def _libggml() -> ctypes.CDLL:
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    (file,) = (f for f in folder.glob("*ggml-base.*") if f.suffix in (".so", ".dylib", ".dll"))
    lib = ctypes.CDLL(str(file))
    for function in (lib.ggml_op_name, lib.ggml_type_name):
        function.restype = ctypes.c_char_p
        function.argtypes = (ctypes.c_int,)
    return lib


_GGML = _libggml()
_NO_LOG = llama_cpp.llama_log_callback(lambda *_: None)


@dataclass
class Node:
    """The values that a node of a graph computed."""

    name: str
    op: str
    sources: str
    """Types of the node's sources."""
    data: npt.NDArray[np.uint8 | np.float32]
    """The values, (ne3, ne2, ne1, ne0)."""


def _read(address: int) -> Node | None:
    """Return a node with float32 values of its own, else None."""
    tensor = ctypes.cast(address, ctypes.POINTER(_Tensor)).contents
    op = _GGML.ggml_op_name(tensor.op).decode()
    if tensor.type != llama_cpp.GGML_TYPE_F32 or op in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "SET_ROWS", "CPY"):
        return None
    ne, nb = list(tensor.ne), list(tensor.nb)
    size = 4 + sum((n - 1) * b for n, b in zip(ne, nb, strict=True))
    raw = np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data), np.uint8)
    values = np.lib.stride_tricks.as_strided(raw[:4].view(np.float32), ne[::-1], nb[::-1])
    sources = []
    for source in tensor.src:
        if source:
            of = ctypes.cast(source, ctypes.POINTER(_Tensor)).contents
            sources.append(f"{_GGML.ggml_type_name(of.type).decode()} {of.name.decode()}".strip())
    return Node(tensor.name.decode(), op, ", ".join(sources), np.array(values))


class Context:
    """A model with a context and our kernels, driven pass by pass."""

    def __init__(
        self,
        path: Path,
        *,
        cpu_kernels: bool = True,
        n_ctx: int = 256,
        n_seq_max: int = 1,
        kv_unified: bool = True,
        flash_attn: bool = False,
        cache_type: int = 1,
        n_threads: int = 1,
        record: bool = False,
    ):
        """cache_type: the type of K and V, F16 by default. record: keep all nodes of each pass in `nodes`."""
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        matrices = _core.model_matrices(self._model)
        limits = dict.fromkeys(_core.cpu_kernel_names(), 1 << 30) if cpu_kernels else {}
        self._kernels = _core.CpuKernels(matrices, limits)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_seq_max, params.kv_unified = n_seq_max, kv_unified
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = int(flash_attn)
        params.type_k = params.type_v = cache_type
        self.nodes: list[Node] = []
        if record:
            self._callback = self._watcher()
            params.cb_eval = self._callback
        self._ctx = llama_cpp.llama_init_from_model(self._model, params)
        if not self._ctx:
            raise ValueError(f"no context for {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def _watcher(self) -> Any:
        @llama_cpp.ggml_backend_sched_eval_callback
        def watch(tensor: int, ask: bool, _: Any) -> bool:
            if not ask and (node := _read(tensor)) is not None:
                self.nodes.append(node)
            return True

        return watch

    def decode(self, *rows: tuple[int, int, list[int]]) -> npt.NDArray[np.float32]:
        """Decode rows of (token, position, sequences) in one pass, and return their logits."""
        self.nodes = []
        batch = llama_cpp.llama_batch_init(len(rows), 0, max(len(row[2]) for row in rows))
        batch.n_tokens = len(rows)
        for i, (token, pos, seq_ids) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, pos, 1
            batch.n_seq_id[i] = len(seq_ids)
            for j, seq_id in enumerate(seq_ids):
                batch.seq_id[i][j] = seq_id
        try:
            if llama_cpp.llama_decode(self._ctx, batch) != 0:
                raise ValueError("llama_decode failed")
        finally:
            llama_cpp.llama_batch_free(batch)
        logits = llama_cpp.llama_get_logits(self._ctx)  # the logits of all rows
        return np.ctypeslib.as_array(logits, (len(rows), self.n_vocab)).copy()

    def clear(self) -> None:
        """Clear the sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._ctx), True)

    def keep(self, n_past: int, seq_id: int = 0) -> bool:
        """Remove a sequence's positions from n_past on."""
        return bool(llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._ctx), seq_id, n_past, -1))

    def close(self) -> None:
        """Free everything."""
        self._kernels.close()
        llama_cpp.llama_free(self._ctx)
        llama_cpp.llama_model_free(self._model)


def _tokens(n_vocab: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(5).integers(n_vocab // 2, n_vocab, n)]


def chain(context: Context, n_pass: int, n: int = max(N_ROWS)) -> Iterator[tuple[npt.NDArray[np.float32], list[Node]]]:
    """Decode the prompt, then n rows in passes of n_pass; yield the logits and nodes of each pass."""
    context.clear()
    tokens = _tokens(context.n_vocab, N_PROMPT + n)
    context.decode(*((t, i, [0]) for i, t in enumerate(tokens[:N_PROMPT])))
    for first in range(N_PROMPT, N_PROMPT + n, n_pass):
        part = tokens[first : min(first + n_pass, len(tokens))]
        logits = context.decode(*((t, first + i, [0]) for i, t in enumerate(part)))
        yield logits, context.nodes


def differing_passes(path: Path, **options: Any) -> list[int]:
    """Return the passes, of N_ROWS and the prompt's (0), whose rows are not bit for bit those of a pass of one row."""
    with closing(Context(path, **options)) as context:
        alone = np.concatenate([logits for logits, _ in chain(context, 1)])
        found = []
        for n in N_ROWS:
            together = np.concatenate([logits for logits, _ in chain(context, n)])
            if not np.array_equal(alone.view(np.uint32), together.view(np.uint32)):
                found.append(n)
        context.clear()
        tokens = _tokens(context.n_vocab, N_PROMPT + max(N_ROWS))
        prompt = context.decode(*((t, i, [0]) for i, t in enumerate(tokens)))
        context.clear()
        steps = [context.decode((t, i, [0])) for i, t in enumerate(tokens)]
        if not np.array_equal(np.concatenate(steps).view(np.uint32), prompt.view(np.uint32)):
            found.append(0)
        return found


def _rows_differ(alone: list[Node], together: Node, n: int) -> bool | None:
    """Whether rows that were computed alone differ from those of one pass; None if rows cannot be told apart."""
    one, all_of_them = alone[0].data.shape, together.data.shape
    dims = [d for d in range(_N_DIMS) if one[d] != all_of_them[d]]
    if len(dims) != 1 or all_of_them[dims[0]] != n * one[dims[0]]:
        return None
    parts = np.split(together.data, n, axis=dims[0])
    n_cells = together.data.shape[-1]
    for i, (node, part) in enumerate(zip(alone, parts, strict=True)):
        # scores of cells that a row does not attend to may differ
        seen = N_PROMPT + i + 1 if together.name.startswith("kq") and n_cells % 256 == 0 else n_cells
        if not np.array_equal(node.data[..., :seen].view(np.uint32), part[..., :seen].view(np.uint32)):
            return True
    return False


def first_difference(path: Path, n: int, **options: Any) -> str:
    """Name the first operation whose rows differ in a pass of n rows from passes of one row."""
    with closing(Context(path, record=True, **options)) as context:
        alone = [nodes for _, nodes in chain(context, 1, n)]
        ((_, together),) = chain(context, n, n)
    other = _other_graph(alone[0], together)
    by_name = [_by_name(nodes) for nodes in alone]
    for key, node in _by_name(together).items():
        same = [found[key] for found in by_name if key in found]
        if len(same) == n and _rows_differ(same, node, n):
            return f"{node.op} {node.name} of ({node.sources}){other}"
    return f"no node that can be compared{other}"


def _by_name(nodes: list[Node]) -> dict[tuple[str, str, int], Node]:
    """Return nodes by operation, name and the number of earlier nodes with both."""
    found: dict[tuple[str, str, int], Node] = {}
    for node in nodes:
        n_before = sum(key[:2] == (node.op, node.name) for key in found)
        found[node.op, node.name, n_before] = node
    return found


def _other_graph(alone: list[Node], together: list[Node]) -> str:
    """Name the difference, if llama.cpp builds another graph for several rows."""
    for one, several in zip(alone, together, strict=False):
        if (one.op, one.name) != (several.op, several.name):
            return f"; other graphs from {one.op} {one.name} and {several.op} {several.name} on"
    return ""


def _child(path: Path, flash_attn: bool) -> str:
    found = differing_passes(path, flash_attn=flash_attn)
    if not found:
        return "equal"
    n = next((n for n in found if n), max(N_ROWS))
    where = first_difference(path, n, flash_attn=flash_attn)
    return f"differs in passes of {', '.join(str(n) if n else 'the prompt' for n in found)}: {where}"


def _files(archs: list[str] | None, models: list[Path], types: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((path.stem, path) for path in models)
    if archs is None:
        return
    root = Path(__file__).resolve().parents[1]
    sys.path += [str(root / "benchmarks"), str(root / "tests" / "support")]
    from arch_keys import ROWS
    from inflate import quantize_target
    from random_arch import write_random_arch

    for row in archs or sorted(ROWS):
        plain = write_random_arch(folder, row)
        for ftype in types:
            path = folder / f"{row}-{ftype}.gguf"
            with suppress(Exception):
                if ftype == "F32":
                    path = plain
                elif not path.exists():
                    quantize_target(plain, path, ftype, 2)
                yield f"{row} {ftype}", path


def main() -> int:
    """Compare, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--archs", nargs="*", help="random models of these rows of arch_keys.py; all without names")
    parser.add_argument("--types", nargs="+", default=["F16", "Q8_0", "Q4_0"], help="of the random models' weights")
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--folder", type=Path, help="where random models are kept; by default they are not")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        llama_cpp.llama_log_set(_NO_LOG, None)
        print(_child(args.models[0], args.flash_attn))
        return 0
    n_different = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, path in _files(args.archs, args.models, args.types, args.folder or Path(temporary)):
            command = [sys.executable, __file__, str(path), "--child", *["--flash-attn"] * args.flash_attn]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            answer = done.stdout.strip() or f"failed: {done.stderr.strip()[-200:]}"
            n_different += answer != "equal"
            print(f"{name}: {answer}", flush=True)
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
