"""A block drafter in float64: all rows of a text and one block after them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dflash import Shape

_EPS = 1e-5
_ROPE_BASE = 10000.0


class Block:
    """tensors: those of the file. embd, output: the target's tables, where the file has none."""

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
        """Rotate [n, n_head, head_dim]: the first half of the rotated values is paired with the second."""
        n_rot = int(self._key("rope.dimension_count", self.shape.head_dim))
        half = n_rot // 2
        angle = pos[:, None] * _ROPE_BASE ** (-np.arange(half) / half) / self.tensors.get("rope_freqs.weight", 1.0)
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
        """Return the logits of a block of n tokens, the first of which is id_last, after the target's rows."""
        shape = self.shape
        fused = self._norm(
            rows.astype(np.float64) @ self.tensors["fc.weight"].T, self.tensors["enc.output_norm.weight"]
        )
        before, pos = pos_first + np.arange(len(rows)), pos_first + len(rows) + np.arange(n)
        all_pos = np.concatenate([before, pos])
        x = self.embd[[id_last, *[shape.mask_token] * (n - 1)]] * self._key("embedding_scale", 1.0)
        for il in range(shape.n_layer):
            normed, leave = self._convolve(il, "attn", self._norm(x, self._layer(il, "attn_norm")))
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
            out = leave(out * self._key("attention.value_scale", 1.0))
            x = x + (self._norm(out, self._layer(il, "post_attention_norm")) if shape.has_post_norms else out)
            normed, leave = self._convolve(il, "ffn", self._norm(x, self._layer(il, "ffn_norm")))
            out = self._act(normed @ self._layer(il, "ffn_gate").T) * (normed @ self._layer(il, "ffn_up").T)
            out = leave(out @ self._layer(il, "ffn_down").T)
            x = x + (self._norm(out, self._layer(il, "post_ffw_norm")) if shape.has_post_norms else out)
            if shape.has_post_norms:
                x = x * self._layer(il, "layer_output_scale")
        hidden = self._norm(x, self.tensors["output_norm.weight"])
        logits = self._spread(hidden @ self.output.T, -np.inf)
        if shape.markov_rank:
            self._add_markov(logits, hidden, id_last)
        if shape.selector:
            self._make_lattice(logits, hidden, id_last)
        return logits

    def _spread(self, x: np.ndarray, other: float) -> np.ndarray:
        """Return values of a draft vocabulary in the target's vocabulary."""
        if not self.shape.n_vocab_dft:
            return x
        full = np.full((len(x), self.shape.n_vocab), other)
        full[:, self.tensors["d2t"].astype(int)] = x
        return full

    def _convolve(self, il: int, part: str, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return the input of a part of a layer, and the function of its output (DFlash2)."""
        if not self.shape.selector:
            return x, lambda out: out
        _, _, n_taps, n_group = self.shape.selector
        dynamic = (x @ self._layer(il, f"{part}_conv_proj").T).reshape(len(x), 2, n_taps, -1)
        weights = np.repeat(dynamic, n_group, axis=-1) + self.tensors[f"blk.{il}.{part}_conv_base"]

        def convolved(values: np.ndarray, side: int) -> np.ndarray:
            out = np.zeros_like(values)
            for tap in range(min(n_taps, len(values))):
                out[tap:] += weights[tap:, side, tap] * values[: len(values) - tap]
            return out

        return convolved(x, 0), lambda out: convolved(out, 1)

    def _add_markov(self, logits: np.ndarray, hidden: np.ndarray, id_last: int) -> None:
        """Give each row the best token of the row before; sets self.confidence (DSpark)."""
        w1, w2 = self.tensors["markov_w1.weight"], self.tensors["markov_w2.weight"]
        previous, self.confidence = id_last, np.zeros(len(logits))
        for i in range(self.shape.n_first, len(logits)):
            logits[i] += self._spread((w2 @ w1[previous])[None], 0.0)[0]
            if self.shape.has_confidence:
                score = self.tensors["conf_proj.weight"].reshape(-1) @ np.concatenate([hidden[i], w1[previous]])
                self.confidence[i] = 1.0 / (1.0 + np.exp(-score - self.tensors["conf_proj.bias"].item()))
            previous = int(logits[i].argmax())

    def _make_lattice(self, logits: np.ndarray, hidden: np.ndarray, id_last: int) -> None:
        """Set self.candidates of each row, and self.scores after the candidates of the row before (DFlash2)."""
        assert self.shape.selector
        k = self.shape.selector[1]
        before, after = self.tensors["selector_predecessor.weight"], self.tensors["selector_successor.weight"]
        gate = hidden @ self.tensors["selector_hidden.weight"].T
        self.candidates = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
        self.scores = np.zeros((len(logits), k, k))
        for i in range(1, len(logits)):
            previous = [id_last] * k if i == 1 else self.candidates[i - 1]
            found = self.candidates[i]
            self.scores[i] = (before[previous] * gate[i]) @ after[found].T + logits[i, found]

    def drafted(self, n: int) -> list[int]:
        """Return the first n tokens on the path through the lattice that is best at each step."""
        tokens, best = [], 0
        for candidates, scores in zip(self.candidates[1 : n + 1], self.scores[1:], strict=False):
            best = int(scores[best].argmax())
            tokens.append(int(candidates[best]))
        return tokens
