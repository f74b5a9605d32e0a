"""Sampling from the best logits alone gives the result of the whole chain over all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from lowlevel import LowLevel
from tiny import write_target


@contextmanager
def chain(top_k: int, seed: int, temp: float) -> Iterator[int]:
    """Yield the address of Llama's default chain, without the penalties that do nothing."""
    lib = llama_cpp
    res = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for link in (
        lib.llama_sampler_init_top_k(top_k),
        lib.llama_sampler_init_typical(1.0, 1),
        lib.llama_sampler_init_top_p(0.95, 1),
        lib.llama_sampler_init_min_p(0.05, 1),
        lib.llama_sampler_init_temp(temp),
        lib.llama_sampler_init_dist(seed),
    ):
        lib.llama_sampler_chain_add(res, link)
    yield int(ctypes.cast(res, ctypes.c_void_p).value or 0)
    lib.llama_sampler_free(res)


@pytest.mark.parametrize("top_k", [1, 2, 40, 319, 320, 1000])
@pytest.mark.parametrize("temp", [0.3, 1.0, 5.0])
def test_same_draws(tmp_path: Path, top_k: int, temp: float) -> None:
    with (
        LowLevel(write_target(tmp_path / "t.gguf").path) as low,
        chain(top_k, 7, temp) as all_of_them,
        chain(top_k, 7, temp) as best,
    ):
        low.target.decode(np.random.default_rng(0).integers(0, 256, 20).tolist(), 0)
        drawn = []
        for row in [*range(20)] * 20:
            expected = low.target.sample(all_of_them, row)
            assert low.target.sample(best, row, top_k) == expected
            drawn.append(expected)
        assert top_k <= 2 or temp < 1.0 or len(set(drawn)) > 20


def test_argmax_is_top_1(tmp_path: Path) -> None:
    with LowLevel(write_target(tmp_path / "t.gguf").path) as low, chain(1, 1, 1.0) as sampler:
        low.target.decode(np.random.default_rng(1).integers(0, 256, 40).tolist(), 0)
        for row in range(40):
            best = int(low.target.logits(row).argmax())
            assert low.target.argmax(row) == best
            assert low.target.sample(sampler, row, 1) == best
