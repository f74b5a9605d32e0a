"""Which tokens a head should be able to draft: its lm_head is read for every drafted token (FR-Spec).

The target's text does not depend on it: a token that the head cannot draft only ends the draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import Llama

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import ModelFileError

from .tensors import Array


def count_tokens(target: str | Path, texts: Iterable[str]) -> Counter[int]:
    """How often each token occurs in texts. Only the vocabulary of the target, a GGUF, is loaded."""
    counts: Counter[int] = Counter()
    llm = Llama(str(target), vocab_only=True, verbose=False)
    try:
        for text in texts:
            counts.update(llm.tokenize(text.encode(), add_bos=False, special=True))
    finally:
        llm.close()
    return counts


def draft_ids(head: str | Path, reader: gguf.GGUFReader) -> Array:
    """Target ids of a GGUF head's draft vocabulary, in the order of its lm_head's rows.

    Raises:
        ModelFileError: the head has no lm_head of its own.
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "output.weight" not in tensors:
        raise ModelFileError(f"'{head}': the head shares the target's lm_head, of which no rows can be left out")
    n = int(tensors["output.weight"].shape[1])
    if "d2t" not in tensors:
        return np.arange(n, dtype=np.int64)
    ids = np.asarray(tensors["d2t"].data, dtype=np.int64)
    return ids + np.arange(n) if is_offset(head) else ids


def is_offset(head: str | Path) -> bool:
    """Whether its d2t holds differences to the draft's own ids."""
    return bool(_core.read_head(str(head)).dialect == "fork")


def rows_to_keep(ids: Array, counts: Counter[int], n: int) -> Array:
    """Rows of the n tokens that occur most often, ascending; of those that occur equally often the lowest ids.

    Raises:
        ValueError: `ids` are not more than n.
    """
    if not 0 < n < len(ids):
        raise ValueError(f"expected a draft vocabulary of 1 to {len(ids) - 1} tokens, less than the head has, got {n}")
    order = sorted(range(len(ids)), key=lambda row: (-counts[int(ids[row])], int(ids[row])))
    return np.sort(np.array(order[:n], dtype=np.int64))
