"""Blocks for multi-token prediction in float64: mimo2's (sinks, a window) and qwen35's (gated attention, M-RoPE)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arch_keys import HEAD_DIM, N_HEAD, N_LAYER
from random_arch import random_tensors

_EPS = 1e-5
_ROPE_BASE = 10000.0
_N_WINDOW = 16
_N_SECTION = HEAD_DIM // 8


class Block:
    """A block over all rows of a text at once: row p is the target's hidden row at p with the token at p + 1."""

    def __init__(self, path: Path, arch: str, index: int = 0):
        """index: that of one of several chained blocks."""
        self.arch, self.layer = arch, N_LAYER + index
        self.tensors = {name: t.astype(np.float64) for name, t in random_tensors(path).items()}

    def weight(self, name: str) -> np.ndarray:
        """Return a tensor of the block."""
        return self.tensors[f"blk.{self.layer}.{name}.weight"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + _EPS) * self.weight(name).reshape(-1)

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotate [n, n_head, head_dim], positions 0, 1, ...: a head's first half is paired with its second."""
        n, half = len(x), x.shape[-1] // 2
        pair = np.arange(half)
        # of a text's four positions, three have the token's position and the last is 0
        has_position = (pair < 3 * _N_SECTION) | (self.arch != "qwen35")
        angle = np.arange(n)[:, None] * _ROPE_BASE ** (-pair / half) * has_position
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        n = len(q)
        scores = np.einsum("qhd,khd->hqk", self._rotate(q), self._rotate(k)) / np.sqrt(HEAD_DIM)
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & ((distance < _N_WINDOW) | (self.arch != "mimo2"))
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        e = np.exp(scores - top)
        total = e.sum(-1, keepdims=True)
        if self.arch == "mimo2":
            total = total + np.exp(self.weight("attn_sinks").reshape(-1, 1, 1) - top)
        return np.einsum("hqk,khd->qhd", e / total, v).reshape(n, -1)

    def _attention(self, x: np.ndarray) -> np.ndarray:
        n = len(x)
        if self.arch == "mimo2":
            q, k, v = np.split((x @ self.weight("attn_qkv").T).reshape(n, 3 * N_HEAD, HEAD_DIM), 3, axis=1)
            return self._attend(q, k, v) @ self.weight("attn_output").T
        q, gate = np.split((x @ self.weight("attn_q").T).reshape(n, N_HEAD, 2 * HEAD_DIM), 2, axis=-1)
        k, v = ((x @ self.weight(name).T).reshape(n, N_HEAD, HEAD_DIM) for name in ("attn_k", "attn_v"))
        out = self._attend(self._norm(q, "attn_q_norm"), self._norm(k, "attn_k_norm"), v)
        return (out / (1.0 + np.exp(-gate.reshape(n, -1)))) @ self.weight("attn_output").T

    def rows(self, tokens: list[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits, and the rows with which drafting continues."""
        embd = self.weight("nextn.embed_tokens")[tokens]
        pair = [self._norm(embd, "nextn.enorm"), self._norm(hidden.astype(np.float64), "nextn.hnorm")]
        x = np.concatenate(pair, axis=1) @ self.weight("nextn.eh_proj").T
        x = x + self._attention(self._norm(x, "attn_norm"))
        y = self._norm(x, "ffn_norm" if self.arch == "mimo2" else "post_attention_norm")
        gate = y @ self.weight("ffn_gate").T
        x = x + (gate / (1.0 + np.exp(-gate)) * (y @ self.weight("ffn_up").T)) @ self.weight("ffn_down").T
        normed = self._norm(x, "nextn.shared_head_norm")
        return normed @ self.weight("nextn.shared_head_head").T, x if self.arch == "mimo2" else normed
