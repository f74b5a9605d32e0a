"""GATED_DELTA_NET by our kernel agrees with float64, and is bit for bit the same whatever else is in the pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest

from attention_checks import KERNEL, N_EMBD, needs_kernel
from ggml_products import Weights, delta_net, kernels_for

pytestmark = needs_kernel


@dataclass
class Case:
    """Sequences: q, k, v, g [sequence][token][head][channel], state [sequence][head][row][channel]."""

    weights: Weights
    x: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    state: np.ndarray
    n_states: int = 1

    def run(self, tokens: slice = slice(None), state: Any = None, n_threads: int = 2, ours: bool = True) -> Any:
        """Return the layer's result, the states after the last tokens, the newest first, and beta."""
        x, q, k, v, g = (part[:, tokens] for part in (self.x, self.q, self.k, self.v, self.g))
        state = self.state if state is None else state
        with closing(kernels_for(self.weights, {KERNEL: 1 << 20} if ours else {})):
            return delta_net(self.weights, x, q, k, v, g, state, self.n_states, n_threads=n_threads)

    def expected(self, beta: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return in float64 the layer's result, and the states after all tokens."""
        n_heads, n = self.v.shape[2:]
        turns = [i % self.q.shape[2] for i in range(n_heads)]
        q, k = (part[:, :, turns].astype(np.float64) for part in (self.q, self.k))
        state = self.state.astype(np.float64)
        given, states = [], []
        for t in range(self.v.shape[1]):
            state = state * np.exp(self.g[:, t, :, None, :].astype(np.float64))
            missing = self.v[:, t] - np.einsum("shrc,shc->shr", state, k[:, t])
            state = state + (beta[:, t, :, None] * missing)[..., None] * k[:, t, :, None, :]
            given.append(np.einsum("shrc,shc->shr", state, q[:, t]) / np.sqrt(n))
            states.append(state)
        return np.stack(given, 1), states


def make(n_seqs: int, n_tokens: int, n_heads: int, n_k: int, n: int, by_channel: bool, n_states: int = 1) -> Case:
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def unit(*shape: int) -> np.ndarray:
        x = normal(*shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    weights = Weights(rng, gguf.GGMLQuantizationType.F16, (N_EMBD, n_heads), repacked=False)
    return Case(
        weights,
        normal(n_seqs, n_tokens, N_EMBD) / 8,
        unit(n_seqs, n_tokens, n_k, n),
        unit(n_seqs, n_tokens, n_k, n),
        normal(n_seqs, n_tokens, n_heads, n),
        -np.abs(normal(n_seqs, n_tokens, n_heads, n if by_channel else 1)) / 4,
        normal(n_seqs, n_heads, n, n) / 8,
        n_states,
    )


SHAPES = [  # sequences, tokens, heads, heads of keys, channels, decay by channel, states
    (1, 1, 4, 4, 128, False),
    (1, 70, 4, 2, 128, False),
    (1, 9, 3, 3, 64, True),
    (2, 17, 4, 2, 32, False, 4),
    (3, 3, 2, 1, 64, True, 5),
    (1, 8, 1, 1, 8, False, 2),
]


@pytest.fixture(params=SHAPES, ids=["-".join(str(int(n)) for n in shape) for shape in SHAPES])
def case(request: Any) -> Iterator[Case]:
    case = make(*request.param)
    yield case
    case.weights.close()


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "ggml"])
def test_float64(case: Case, ours: bool) -> None:
    given, states, beta = case.run(ours=ours)
    expected, expected_states = case.expected(beta.astype(np.float64))
    np.testing.assert_allclose(given, expected, rtol=0, atol=4e-6)
    assert given.std() > 0.01
    for age, state in enumerate(states[: case.v.shape[1]]):
        np.testing.assert_allclose(state, expected_states[-1 - age], rtol=0, atol=4e-6)


def test_threads(case: Case) -> None:
    expected = case.run()
    for n_threads in (1, 3, 5):
        found = case.run(n_threads=n_threads)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1][: case.v.shape[1]], expected[1][: case.v.shape[1]])


def test_token_by_token(case: Case) -> None:
    """A pass over several tokens gives the bits of as many passes over one."""
    given, states, _ = case.run()
    state = None
    for t in range(case.v.shape[1]):
        one, after, _ = case.run(slice(t, t + 1), state)
        state = after[0]
        np.testing.assert_array_equal(one[:, 0], given[:, t])
        age = case.v.shape[1] - 1 - t
        if age < case.n_states:
            np.testing.assert_array_equal(state, states[age])
