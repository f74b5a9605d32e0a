"""Hidden states of the target as a NumPy array with their tokens and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class Features(np.ndarray[Any, np.dtype[np.float32]]):
    """Rows of the last decode, float32, shape (n_tokens, n_boundaries, n_embd).

    A read-only view; it keeps its values when the target decodes on. Arrays made from it by slicing or arithmetic are
    Features too, but without tokens and positions, which would not fit any more.
    """

    tokens: Int32Array | None
    """Token ids, in batch order."""
    positions: Int32Array | None
    """Positions in the context, in batch order."""
    boundaries: tuple[int, ...] | None
    """`features[:, i]` is the residual stream after `boundaries[i]` layers."""

    def __new__(
        cls,
        rows: npt.NDArray[np.float32],
        *,
        tokens: npt.ArrayLike,
        positions: npt.ArrayLike,
        boundaries: Sequence[int],
    ) -> Features:
        """View `rows`; nothing is copied but tokens and positions."""
        features = np.asarray(rows).view(cls)
        features.tokens = np.array(tokens, dtype=np.int32)
        features.positions = np.array(positions, dtype=np.int32)
        features.boundaries = tuple(boundaries)
        return features

    def __array_finalize__(self, obj: Any) -> None:
        self.tokens = None
        self.positions = None
        self.boundaries = None
