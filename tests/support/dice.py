"""The noise of sampled text in NumPy, and a plain llama_cpp that draws with it: written from the papers alone."""

from __future__ import annotations

from typing import Any
from unittest import mock

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import _internals as internals

from llama_cpp_eagle3.engine import Rng

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: npt.ArrayLike, key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Return Philox4x32-10 (Salmon et al., SC11) of counters (..., 4): words of 32 bits (..., 4)."""
    c = [np.asarray(counter, dtype=np.uint64)[..., i] for i in range(4)]
    for i in range(10):
        k = [np.uint64((key[j] + i * _WEYL[j]) & 0xFFFFFFFF) for j in range(2)]
        a, b = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        c = [(b >> _HALF) ^ c[1] ^ k[0], b & _LOW, (a >> _HALF) ^ c[3] ^ k[1], a & _LOW]
    return np.stack(c, axis=-1)


def noise(seed: int, position: npt.ArrayLike, token: npt.ArrayLike, attempt: int = 0) -> npt.NDArray[np.float64]:
    """Return the Gumbel noise of tokens at positions: two tokens share a block, each has 52 bits of it."""
    tokens, position = np.broadcast_arrays(np.asarray(token, dtype=np.uint64), position)
    counter = np.zeros((*tokens.shape, 4), dtype=np.uint64)
    counter[..., 0] = tokens // np.uint64(2)
    counter[..., 1] = position
    counter[..., 2] = attempt
    words = philox(counter, (seed, 0))
    odd = tokens % np.uint64(2) == 1
    high, low = np.where(odd, words[..., 2], words[..., 0]), np.where(odd, words[..., 3], words[..., 1])
    u = (((high << np.uint64(20)) | (low >> np.uint64(12))).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log1p(-u))


class NumpyDice:
    """A custom sampler of llama_cpp in place of `dist`."""

    def __init__(self, seed: int, position: int = 0):
        self.seed, self.position = seed, position

    def __call__(self, candidates: Any) -> None:
        array = candidates.contents
        kind = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)])
        data = np.ctypeslib.as_array(array.data, shape=(array.size,)).view(kind)
        scores = data["logit"].astype(np.float64) + noise(self.seed, self.position, data["id"])
        array.selected = int(scores.argmax())
        self.position += 1


class DiceLlama(llama_cpp.Llama):  # type: ignore[misc]
    """Plain llama_cpp, whose last draw is NumPy's with rng "gumbel"."""

    rng: Rng = "gumbel"
    n_drawn = 0
    """Number of tokens of the text that were drawn before."""

    def _init_sampler(self, *args: Any, **options: Any) -> Any:
        if self.rng == "llama":
            return super()._init_sampler(*args, **options)
        n_drawn = self.n_drawn

        class Sampler(internals.LlamaSampler):  # type: ignore[misc]
            def add_dist(self, seed: int) -> None:
                self.add_custom(NumpyDice(seed, n_drawn))

        with mock.patch.object(internals, "LlamaSampler", Sampler):
            return super()._init_sampler(*args, **options)
