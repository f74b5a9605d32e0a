"""Estimate the least time of a pass on memory-bound machines: the weights that it reads, and memory's bandwidth."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import gguf
import numpy as np

_NOT_READ = ("token_embd.weight", "d2t", "rope_freqs.weight")  # of these, a pass reads one row or next to nothing


@cache
def weights_read(path: str) -> int:
    """Return the bytes of a target's weights that a pass over one row reads.

    Of the experts, only those that a row is sent to count; more rows may need more of them. Tables of which a pass only
    looks up rows are left out.
    """
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    used, experts = (reader.fields.get(f"{arch}.expert_{key}") for key in ("used_count", "count"))
    share = used.contents() / experts.contents() if used and experts and experts.contents() else 1.0
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    tied = 0 if "output.weight" in sizes else sizes.get("token_embd.weight", 0)
    return tied + int(
        sum(size * (share if "_exps." in name else 1.0) for name, size in sizes.items() if name not in _NOT_READ)
    )


def read_bandwidth(n_threads: int, n_mib: int = 512, n_times: int = 5) -> float:
    """Return the bytes per second that these threads read from memory together: the best of a few sweeps over `n_mib`.

    libc's memchr, asked for a byte that does not occur, reads everything and computes next to nothing.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.restype, memchr.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    n = n_mib * 2**20
    parts = [np.full(n, 1, dtype=np.uint8) for _ in range(n_threads)]
    best = 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(n_times):
            start = time.perf_counter()
            list(pool.map(lambda part: memchr(part.ctypes.data, 2, n), parts))
            best = max(best, n * n_threads / (time.perf_counter() - start))
    return best
