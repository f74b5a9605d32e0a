"""How many bytes of weights a pass reads: what a pass over one row costs at least on memory-bound machines."""

from __future__ import annotations

from functools import cache

import gguf

_NOT_READ = ("token_embd.weight", "d2t", "rope_freqs.weight")  # a row, or next to nothing


@cache
def weights_read(path: str) -> int:
    """Bytes that one row reads of a target.

    Of experts only those that a row is sent to are counted; more rows may need more of them. Tables that are only
    looked up are left out.
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
