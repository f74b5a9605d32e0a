"""The draft vocabulary: checkpoints store offsets, a GGUF the target ids themselves."""

from __future__ import annotations

import numpy as np

from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

from .tensors import Array, LazyTensor


def read_d2t(tensors: dict[str, LazyTensor], n_vocab: int, where: str, notes: list[str]) -> Array | None:
    """Target id of every draft token as int64, None if the vocabularies are the same. Appends to `notes`.

    `n_vocab` is the size of the target's vocabulary, 0 if it is unknown.
    """
    n_vocab = n_vocab or 1 << 31
    t2d = np.flatnonzero(tensors["t2d"].read()) if "t2d" in tensors else None
    if "d2t" not in tensors:
        if t2d is None or len(t2d) >= n_vocab:
            return None
        notes.append("d2t is missing: taken from t2d")
        return _checked(t2d.astype(np.int64), n_vocab, where)
    stored = tensors["d2t"]
    if len(stored.shape) != 1 or stored.dtype not in ("i64", "i32"):
        raise ModelFileError(
            f"'{where}': tensor 'd2t': expected one dimension of int64, found {list(stored.shape)} of {stored.dtype}"
        )
    values = stored.read()
    ids = values + np.arange(len(values))
    if _problem(ids, n_vocab) is not None and _problem(values, n_vocab) is None:
        notes.append("d2t holds target ids, not offsets: as offsets they would leave the vocabulary or repeat")
        ids = values
    ids = _checked(ids, n_vocab, where)
    if len(ids) == n_vocab and np.array_equal(ids, np.arange(n_vocab)):
        return None
    if t2d is not None and not np.array_equal(np.sort(ids), t2d):
        notes.append(f"t2d marks {len(t2d)} tokens and not those of d2t; d2t is what counts")
    return ids


def _problem(ids: Array, n_vocab: int) -> str | None:
    outside = np.flatnonzero((ids < 0) | (ids >= n_vocab))
    if outside.size:
        i = int(outside[0])
        return f"draft token {i} maps to {int(ids[i])}, the target's vocabulary has {n_vocab} tokens"
    order = np.argsort(ids, kind="stable")
    repeated = np.flatnonzero(np.diff(ids[order]) == 0)
    if repeated.size:
        a, b = (int(order[repeated[0] + k]) for k in (0, 1))
        return f"draft tokens {a} and {b} both map to the target's token {int(ids[a])}"
    return None


def _checked(ids: Array, n_vocab: int, where: str) -> Array:
    problem = _problem(ids, n_vocab)
    if problem is not None:
        kind = IncompatibleDraftError if "vocabulary" in problem else ModelFileError
        raise kind(f"'{where}': tensor 'd2t': {problem}")
    return ids
