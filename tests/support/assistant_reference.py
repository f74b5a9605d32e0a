"""A Gemma 4 assistant in float64, on the keys and values of its target's last two layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arch_keys import HEAD_DIM, N_EMBD, N_HEAD, N_LAYER
from random_arch import random_tensors

_EPS = 1e-5
_ROPE_BASE = 10000.0
_N_WINDOW = 16
_WINDOWS = (True, False, True)
"""Whether each of the assistant's layers has a window: then it reads the target's last layer but one, else its last."""


def _normed(x: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + _EPS) * weight


def _rotate(x: np.ndarray, positions: np.ndarray, factors: np.ndarray | float) -> np.ndarray:
    """Rotate [n, n_head, head_dim]: the first half of a head's values is paired with the second."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * _ROPE_BASE ** (-np.arange(half) / half) / factors
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU with input and output in F16, as in ggml's table."""
    x = x.astype(np.float16).astype(np.float64)
    y = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return y.astype(np.float16).astype(np.float64)


class Assistant:
    """Computes the assistant's logits after a text, given the inputs of the target's last two layers."""

    def __init__(self, target: Path, assistant: Path):
        self.target, self.own = (
            {name.removesuffix(".weight"): t.astype(np.float64) for name, t in random_tensors(path).items()}
            for path in (target, assistant)
        )

    def _keys_and_values(self, rows: np.ndarray, layer: int, factors: np.ndarray | float):
        """Return the target layer's keys and values, each [n, n_head, head_dim]; rows: the layer's input."""
        weight = {name: self.target[f"blk.{layer}.{name}"] for name in ("attn_k", "attn_v", "attn_k_norm", "attn_norm")}
        x = _normed(rows.astype(np.float64), weight["attn_norm"].reshape(-1))
        k, v = ((x @ weight[name].T).reshape(len(x), N_HEAD, HEAD_DIM) for name in ("attn_k", "attn_v"))
        k = _normed(k, weight["attn_k_norm"].reshape(-1))
        return _rotate(k, np.arange(len(x)), factors), _normed(v, 1.0)

    def chain(self, inputs: list[np.ndarray], row: np.ndarray, id_last: int, n: int) -> list[np.ndarray]:
        """Return the logits of n greedy steps after id_last.

        Args:
            inputs: the inputs of the target's last two layers, each [n_tokens, n_embd].
            row: the target's hidden state of the last token before id_last.
        """
        n_tokens = len(inputs[0])
        factors = {True: 1.0, False: self.target["rope_freqs"].reshape(-1)}
        cells = {w: self._keys_and_values(inputs[-1 - w], N_LAYER - 1 - w, factors[w]) for w in (True, False)}
        distance = n_tokens - np.arange(n_tokens)
        found: list[np.ndarray] = []
        token, row = id_last, row.astype(np.float64)
        for _ in range(n):
            embd = self.target["token_embd"][token] * np.sqrt(N_EMBD)
            x = self.own["nextn.pre_projection"] @ np.concatenate([embd, row])
            for i, has_window in enumerate(_WINDOWS):
                layer = {k.removeprefix(f"blk.{i}."): t for k, t in self.own.items() if k.startswith(f"blk.{i}.")}
                norm = {name: layer[name].reshape(-1) for name in layer if "norm" in name}
                q = (layer["attn_q"] @ _normed(x, norm["attn_norm"])).reshape(1, N_HEAD, HEAD_DIM)
                own_factors = 1.0 if has_window else self.own["rope_freqs"].reshape(-1)
                q = _rotate(_normed(q, norm["attn_q_norm"]), np.array([n_tokens]), own_factors)
                k, v = cells[has_window]
                scores = np.einsum("qhd,khd->hqk", q, k)
                scores = np.where((distance < _N_WINDOW) | (not has_window), scores, -np.inf)
                e = np.exp(scores - scores.max(-1, keepdims=True))
                y = layer["attn_output"] @ np.einsum("hqk,khd->qhd", e / e.sum(-1, keepdims=True), v).reshape(-1)
                x = x + _normed(y, norm["post_attention_norm"])
                y = _normed(x, norm["ffn_norm"])
                y = layer["ffn_down"] @ (_gelu(layer["ffn_gate"] @ y) * (layer["ffn_up"] @ y))
                x = (x + _normed(y, norm["post_ffw_norm"])) * layer["layer_output_scale"].reshape(())
            x = _normed(x, self.own["output_norm"].reshape(-1))
            found.append(self.own["token_embd"] @ x)
            row = self.own["nextn.post_projection"] @ x
            token = int(found[-1].argmax())
        return found
