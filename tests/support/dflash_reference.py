"""A block drafter in float64: all rows of a text and one block behind them."""

from __future__ import annotations

import math

import numpy as np

from dflash import Shape

_EPS = 1e-5
_ROPE_BASE = 10000.0


class Block:
    """tensors: of the file. embd, output: the target's tables, where the file has none."""

    def __init__(self, shape: Shape, tensors: dict[str, np.ndarray], embd: np.ndarray, output: np.ndarray):
        self.shape = shape
        self.tensors = {name: t.astype(np.float64) for name, t in tensors.items()}
        self.embd = self.tensors.get("token_embd.weight", embd.astype(np.float64))
        self.output = self.tensors.get("output.weight", output.astype(np.float64))

    def _layer(self, il: int, name: str) -> np.ndarray:
        return self.tensors[f"blk.{il}.{name}.weight"]

    def _key(self, name: str, default: float) -> float:
        return float(self.shape.all_keys.get(name, default))

    @staticmethod
    def _norm(x: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + _EPS) * weight

    def _rotate(self, x: np.ndarray, pos: np.ndarray) -> np.ndarray:
        """[n, n_head, head_dim]: of the values that are rotated the first half goes with the second."""
        n_rot = int(self._key("rope.dimension_count", self.shape.head_dim))
        half = n_rot // 2
        angle = pos[:, None] * _ROPE_BASE ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b, rest = x[..., :half], x[..., half:n_rot], x[..., n_rot:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)

    def _keys_values(self, il: int, x: np.ndarray, pos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = self.shape
        k = (x @ self._layer(il, "attn_k").T).reshape(len(x), shape.n_head_kv, shape.head_dim)
        if shape.shares_kv:
            v = self._norm(k)
        else:
            v = (x @ self._layer(il, "attn_v").T).reshape(len(x), shape.n_head_kv, shape.head_dim)
        return self._rotate(self._norm(k, self._layer(il, "attn_k_norm")), pos), v

    def _act(self, x: np.ndarray) -> np.ndarray:
        if self.shape.act == "silu":
            return x / (1.0 + np.exp(-x))
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))

    def logits(self, rows: np.ndarray, id_last: int, n: int, pos_first: int = 0) -> np.ndarray:
        """Logits of a block of n tokens, the first of which is id_last, behind the target's rows."""
        shape = self.shape
        fused = self._norm(
            rows.astype(np.float64) @ self.tensors["fc.weight"].T, self.tensors["enc.output_norm.weight"]
        )
        before, pos = pos_first + np.arange(len(rows)), pos_first + len(rows) + np.arange(n)
        all_pos = np.concatenate([before, pos])
        x = self.embd[[id_last, *[shape.mask_token] * (n - 1)]] * self._key("embedding_scale", 1.0)
        for il in range(shape.n_layer):
            normed = self._norm(x, self._layer(il, "attn_norm"))
            k, v = (
                np.repeat(np.concatenate(pair), shape.n_head // shape.n_head_kv, axis=1)
                for pair in zip(self._keys_values(il, fused, before), self._keys_values(il, normed, pos), strict=True)
            )
            q = (normed @ self._layer(il, "attn_q").T).reshape(n, shape.n_head, shape.head_dim)
            q = self._rotate(self._norm(q, self._layer(il, "attn_q_norm")), pos)
            scores = np.einsum("qhd,khd->hqk", q, k) * self._key("attention.scale", shape.head_dim**-0.5)
            distance = pos[:, None] - all_pos
            seen = np.ones(distance.shape, bool)
            if shape.causal:
                seen &= distance >= 0
            if shape.sliding_window and il % 2 == 0:
                seen &= distance < shape.sliding_window
            scores = np.where(seen, scores, -np.inf)
            top = scores.max(-1, keepdims=True)
            e = np.exp(scores - top)
            total = e.sum(-1, keepdims=True)
            if shape.has_sinks:
                total = total + np.exp(self._layer(il, "attn_sinks").reshape(-1, 1, 1) - top)
            out = np.einsum("hqk,khd->qhd", e / total, v).reshape(n, -1) @ self._layer(il, "attn_output").T
            out = out * self._key("attention.value_scale", 1.0)
            x = x + (self._norm(out, self._layer(il, "post_attention_norm")) if shape.has_post_norms else out)
            normed = self._norm(x, self._layer(il, "ffn_norm"))
            out = self._act(normed @ self._layer(il, "ffn_gate").T) * (normed @ self._layer(il, "ffn_up").T)
            out = out @ self._layer(il, "ffn_down").T
            x = x + (self._norm(out, self._layer(il, "post_ffw_norm")) if shape.has_post_norms else out)
            if shape.has_post_norms:
                x = x * self._layer(il, "layer_output_scale")
        logits = self._norm(x, self.tensors["output_norm.weight"]) @ self.output.T
        if not shape.n_vocab_dft:
            return logits
        full = np.full((n, shape.n_vocab), -np.inf)
        full[:, self.tensors["d2t"].astype(int)] = logits
        return full
