"""How many bytes of weights a pass reads: what a pass over one row costs at least on memory-bound machines."""

from __future__ import annotations

import os
from functools import cache

import gguf

_NOT_READ = ("token_embd.weight", "d2t", "rope_freqs.weight")  # a row, or next to nothing


@cache
def weights_read(target: str, head: str | None) -> tuple[int, int]:
    """Bytes that one row reads of the target, and of the head (0 without one).

    Of experts only those that a row is sent to are counted; more rows may need more of them. Tables that are only
    looked up are left out.
    """
    tensors, of_target = _sizes(target)
    output = tensors.get("output.weight", tensors.get("token_embd.weight", 0))
    if "output.weight" not in tensors:
        of_target += output
    if head is None:
        return of_target, 0
    of_head_tensors, of_head = _sizes(head)
    return of_target, of_head + (0 if "output.weight" in of_head_tensors else output)


def _sizes(path: str | os.PathLike[str]) -> tuple[dict[str, int], int]:
    """Bytes of each tensor, and of those that one row reads."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    used, experts = (reader.fields.get(f"{arch}.expert_{key}") for key in ("used_count", "count"))
    share = used.contents() / experts.contents() if used and experts and experts.contents() else 1.0
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    n = sum(size * (share if "_exps." in name else 1.0) for name, size in sizes.items() if name not in _NOT_READ)
    return sizes, int(n)
