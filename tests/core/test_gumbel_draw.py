"""The draw itself: the generator matches its authors' numbers and NumPy's, and winners do not depend on vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest

import dice
from llama_cpp_eagle3._core import GumbelNoise, philox4x32

N_VECTOR = 32
"""Fewer candidates than this are compared one by one."""
CANDIDATE = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)])

Candidates = npt.NDArray[Any]


class Link:
    """The sampler, as llama.cpp calls it."""

    def __init__(self, noise: GumbelNoise):
        self.sampler = ctypes.cast(noise.sampler(), lib.llama_sampler_p_ctypes)

    def draw(self, candidates: Candidates) -> int:
        """Return the index of the selected candidate; p is set."""
        data = candidates.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)
        lib.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return int(array.selected)

    def close(self) -> None:
        lib.llama_sampler_free(self.sampler)


def candidates_of(ids: npt.ArrayLike, logits: npt.ArrayLike) -> Candidates:
    ids = np.asarray(ids)
    found = np.zeros(len(ids), CANDIDATE)
    found["id"], found["logit"] = ids, logits
    return found


def cases() -> Iterator[tuple[int, int, Candidates]]:
    """Yield seed, position, candidates: runs of ids, subsets, flat rows, steep ones, sorted ones, some with -inf."""
    rng = np.random.default_rng(0)
    for i in range(400):
        n = int(rng.choice([1, 5, 31, 32, 33, 40, 64, 100, 500, 2000]))
        first = int(rng.integers(0, 100_000))
        ids = np.arange(first, first + n)
        if i % 3 == 1:
            ids = rng.choice(250_000, n, replace=False)
        elif i % 3 == 2 and n > 3:
            ids[n // 2 :] += 1  # a gap
        logits = rng.standard_normal(n) * rng.choice([0.0, 0.1, 3.0, 30.0])
        if i % 5 == 1:
            logits = -np.sort(-logits)
        elif i % 5 == 2:
            logits = np.sort(logits)
        elif i % 5 == 3:
            logits[rng.random(n) < 0.3] = -np.inf
        if not np.isfinite(logits).any():
            logits[0] = 0.0
        yield (
            int(rng.integers(0, 1 << 32)),
            int(rng.choice([0, 1, 7, 1 << 20, (1 << 32) - 1])),
            candidates_of(ids, logits),
        )


def winner(seed: int, position: int, candidates: Candidates, indices: npt.NDArray[np.intp]) -> int:
    """Return the index of the candidate that is drawn from some."""
    noise = GumbelNoise(seed)
    noise.position = position
    link = Link(noise)
    found = int(indices[link.draw(candidates[indices])])
    link.close()
    return found


def test_philox_is_numpys() -> None:
    rng = np.random.default_rng(1)
    counters = rng.integers(0, 1 << 32, (500, 4))
    for counter in counters.tolist():
        key = tuple(rng.integers(0, 1 << 32, 2).tolist())
        assert philox4x32(counter, key) == dice.philox(counter, key).tolist()


def test_noise_is_numpys() -> None:
    for seed, position, candidates in cases():
        noise = GumbelNoise(seed)
        noise.position = position
        ids = candidates["id"][:20]
        assert [noise(int(t)) for t in ids] == pytest.approx(dice.noise(seed, position, ids).tolist(), rel=1e-12)


def test_winners_are_numpys() -> None:
    n_close = 0
    for seed, position, candidates in cases():
        noise = GumbelNoise(seed)
        noise.position = position
        link = Link(noise)
        for attempt in range(3):  # a second draw after a rejection has noise of its own
            scores = candidates["logit"].astype(np.float64) + dice.noise(seed, position, candidates["id"], attempt)
            found = link.draw(candidates)
            n_close += found != int(scores.argmax())
            assert scores[found] > scores.max() - 1e-5
        link.close()
    assert n_close <= 1


def test_vectors_change_no_winner() -> None:
    """Many at once, by AVX2 if there is one, have the same winner as the best of few at a time, one by one."""
    for seed, position, candidates in cases():
        peak = int(candidates["logit"].argmax())  # p is relative to the largest logit, which is in every part

        left = np.arange(len(candidates))
        while len(left) >= N_VECTOR:
            parts = [np.append(left[i : i + N_VECTOR - 2], peak) for i in range(0, len(left), N_VECTOR - 2)]
            left = np.unique([winner(seed, position, candidates, part) for part in parts])
        at_once = winner(seed, position, candidates, np.arange(len(candidates)))
        assert at_once == winner(seed, position, candidates, np.append(left, peak)), (seed, position, len(candidates))


def test_probabilities_are_those_of_dist() -> None:
    for seed, _, candidates in cases():
        link, theirs = Link(GumbelNoise(seed)), candidates.copy()
        link.draw(candidates)
        link.close()
        link.sampler = lib.llama_sampler_init_dist(seed)
        link.draw(theirs)
        link.close()
        np.testing.assert_allclose(candidates["p"], theirs["p"], rtol=2e-6, atol=1e-37)


def test_no_candidate_and_none_that_can_be() -> None:
    link = Link(GumbelNoise(1))
    assert link.draw(candidates_of([], [])) == -1
    n = 64
    found = {link.draw(candidates_of(np.arange(n), np.full(n, -np.inf))) for _ in range(50)}
    assert len(found) > 10
    link.close()
