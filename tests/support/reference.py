"""An EAGLE-3 head and its target in NumPy and float64: slow, plain, and the reference for the C++.

Everything is computed anew from the rows and tokens at each call: there is no cache that could be wrong. Weights are in
checkpoint layout (rotation by halves), as `tiny` keeps them; a quantized model's are those of the file, dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiny import Head, Target
from tiny.head import mscale

Array = np.ndarray


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Compute the root mean square norm over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x: Array) -> Array:
    """Compute the softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: Array) -> Array:
    """Compute x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def gelu(x: Array) -> Array:
    """Compute GELU by the error function."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def gelu_tanh(x: Array) -> Array:
    """Compute GELU by tanh, called gelu_pytorch_tanh in configs."""
    return x * 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"silu": silu, "gelu": gelu, "gelu_pytorch_tanh": gelu_tanh}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `2 * len(inv_freq)` channels of a head; `scale` multiplies cosine and sine."""

    inv_freq: Array
    scale: float = 1.0
    section_of: Array | None = None  # M-RoPE: the index of the position that rotates a pair of channels

    def with_sections(self, sections: tuple[int, ...], interleaved: bool) -> Rope:
        """Return M-RoPE as in transformers: sections follow each other, or take turns."""
        owner = np.repeat(np.arange(len(sections)), sections)
        if interleaved:  # every third pair is the height's, or the width's, within their sections
            owner = np.zeros(len(self.inv_freq), dtype=int)
            for k in (1, 2):
                owner[k : 3 * sections[k] : 3] = k
        return replace(self, section_of=owner)

    @classmethod
    def make(cls, n_rot: int, theta: float, scaling: dict[str, Any] | None = None) -> Rope:
        """Make it from a config's rope_theta and rope_scaling, as transformers reads them."""
        inv_freq = theta ** (-np.arange(0, n_rot, 2) / n_rot)
        if scaling is None:
            return cls(inv_freq)
        kind, factor = scaling["rope_type"], scaling["factor"]
        if kind == "linear":
            return cls(inv_freq / factor)
        n_ctx = scaling["original_max_position_embeddings"]
        if kind == "llama3":
            return cls(_llama3(inv_freq, factor, n_ctx, scaling["low_freq_factor"], scaling["high_freq_factor"]))
        if kind == "yarn":
            betas = scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0)
            scale = mscale(factor, 1.0)
            if "mscale_all_dim" in scaling:
                scale = mscale(factor, scaling["mscale"]) / mscale(factor, scaling["mscale_all_dim"])
            return cls(_yarn(inv_freq, theta, factor, n_ctx, *betas), scale)
        raise ValueError(f"unknown rope_type {kind!r}")

    def __call__(self, x: Array, pos: Array) -> Array:
        """Rotate x [n, n_head, head_dim] to positions `pos`."""
        n = len(self.inv_freq)
        if self.section_of is not None and pos.ndim == 2:  # (4, n)
            angle = (pos[self.section_of].T * self.inv_freq)[:, None, :]
        else:
            angle = np.outer(pos, self.inv_freq)[:, None, :]
        cos, sin = np.cos(angle) * self.scale, np.sin(angle) * self.scale
        a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _llama3(inv_freq: Array, factor: float, n_ctx: int, low: float, high: float) -> Array:
    wavelength = 2.0 * np.pi / inv_freq
    smooth = (n_ctx / wavelength - low) / (high - low)
    blend = (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
    return np.where(wavelength < n_ctx / high, inv_freq, np.where(wavelength > n_ctx / low, inv_freq / factor, blend))


def _yarn(inv_freq: Array, theta: float, factor: float, n_ctx: int, beta_fast: float, beta_slow: float) -> Array:
    n_rot = 2 * len(inv_freq)

    def correction(beta: float) -> float:
        return n_rot * math.log(n_ctx / (beta * 2.0 * math.pi)) / (2.0 * math.log(theta))

    first = max(math.floor(correction(beta_fast)), 0)
    last = min(math.ceil(correction(beta_slow)), n_rot - 1)
    ramp = np.clip((np.arange(n_rot // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
    return inv_freq / factor * ramp + inv_freq * (1.0 - ramp)


def attention(q: Array, k: Array, v: Array, window: int = 0, scale: float | None = None) -> Array:
    """Compute causal attention of the last len(q) slots over all len(k) slots; the heads of q share heads of k and v.

    With a window, a slot attends to itself and the window - 1 before it.
    """
    n_q, n_kv = len(q), len(k)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[2] ** -0.5)
    i = np.arange(n_kv - n_q, n_kv)[:, None]
    j = np.arange(n_kv)[None, :]
    seen = (j <= i) & ((i - j < window) if window else True)
    probs = softmax(np.where(seen, scores, -np.inf))
    return np.einsum("hqk,khd->qhd", probs, v)


@dataclass
class _Block:
    """The attention and the MLP of one layer; `w` are its weights without the layer's prefix."""

    w: dict[str, Array]
    head_dim: int
    rope: Rope
    eps: float
    window: int = 0
    act: Callable[[Array], Array] = silu

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def heads(self, x: Array, name: str, pos: Array) -> Array:
        y = self.linear(f"self_attn.{name}_proj", x).reshape(len(x), -1, self.head_dim)
        if f"self_attn.{name}_norm.weight" in self.w:
            y = rms_norm(y, self.w[f"self_attn.{name}_norm.weight"], self.eps)
        return self.rope(y, pos) if name != "v" else y

    def attend(self, x: Array, pos: Array, cache: list[Array]) -> Array:
        """Compute attention of the slots x after those in `cache` ([k, v], extended in place)."""
        cache[0] = np.concatenate([cache[0], self.heads(x, "k", pos)])
        cache[1] = np.concatenate([cache[1], self.heads(x, "v", pos)])
        out = attention(self.heads(x, "q", pos), *cache, window=self.window)
        return self.linear("self_attn.o_proj", out.reshape(len(x), -1))

    def mlp(self, x: Array) -> Array:
        return self.linear("mlp.down_proj", self.act(self.linear("mlp.gate_proj", x)) * self.linear("mlp.up_proj", x))

    def norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self.w[f"{name}.weight"], self.eps)

    def empty_cache(self) -> list[Array]:
        n_kv = len(self.w["self_attn.k_proj.weight"]) // self.head_dim
        return [np.zeros((0, n_kv, self.head_dim))] * 2


@dataclass
class _MlaBlock(_Block):
    """DeepSeek's attention as its trainers write it: keys and values of every head unfolded from the compressed row."""

    n_head: int = 0
    n_rot: int = 0
    n_value: int = 0
    scale: float = 1.0

    def rotate(self, x: Array, pos: Array) -> Array:
        """Rotate neighbours instead of halves, which makes no difference to products."""
        return self.rope(np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1), pos)

    def attend(self, x: Array, pos: Array, cache: list[Array]) -> Array:
        n, n_nope = len(x), self.head_dim - self.n_rot
        q = self.linear("self_attn.q_proj", x) if "self_attn.q_proj.weight" in self.w else self.compressed_query(x)
        q = q.reshape(n, self.n_head, self.head_dim)
        row = self.linear("self_attn.kv_a_proj_with_mqa", x)
        kv = self.linear("self_attn.kv_b_proj", self.norm("self_attn.kv_a_layernorm", row[:, : -self.n_rot]))
        kv = kv.reshape(n, self.n_head, n_nope + self.n_value)
        k_rot = np.repeat(self.rotate(row[:, None, -self.n_rot :], pos), self.n_head, axis=1)
        cache[0] = np.concatenate([cache[0], np.concatenate([kv[..., :n_nope], k_rot], axis=-1)])
        cache[1] = np.concatenate([cache[1], kv[..., n_nope:]])
        q = np.concatenate([q[..., :n_nope], self.rotate(q[..., n_nope:], pos)], axis=-1)
        out = attention(q, *cache, window=self.window, scale=self.scale)
        return self.linear("self_attn.o_proj", out.reshape(n, -1))

    def compressed_query(self, x: Array) -> Array:
        return self.linear(
            "self_attn.q_b_proj", self.norm("self_attn.q_a_layernorm", self.linear("self_attn.q_a_proj", x))
        )

    def empty_cache(self) -> list[Array]:
        return [np.zeros((0, self.n_head, n)) for n in (self.head_dim, self.n_value)]


def _layer_weights(weights: dict[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


@dataclass
class TargetOutput:
    """`streams[b]` is the residual stream at boundary b; the last, n_layer + 1, is the stream after the final norm."""

    streams: list[Array]
    logits: Array

    def rows(self, boundaries: list[int]) -> Array:
        """Return input rows of a head: the boundaries side by side, [n_tokens, n_boundaries * n_embd]."""
        return np.concatenate([self.streams[b] for b in boundaries], axis=-1)


def run_target(target: Target, tokens: list[int]) -> TargetOutput:
    """Return all hidden states and logits of a llama, qwen2 or qwen3 target over `tokens`."""
    w = target.weights
    rope = Rope.make(target.head_dim, target.rope_theta)
    pos = np.arange(len(tokens))
    x = w["model.embed_tokens.weight"][np.asarray(tokens)]
    streams = [x]
    for il in range(target.n_layer):
        block = _Block(_layer_weights(w, f"model.layers.{il}."), target.head_dim, rope, target.rms_eps)
        x = x + block.attend(block.norm("input_layernorm", x), pos, block.empty_cache())
        x = x + block.mlp(block.norm("post_attention_layernorm", x))
        streams.append(x)
    streams.append(rms_norm(x, w["model.norm.weight"], target.rms_eps))
    return TargetOutput(streams, streams[-1] @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T)


@dataclass
class Draft:
    """A chain: each step's logits over the draft vocabulary, state for the next step, id and probability."""

    ids: list[int] = field(default_factory=list)  # ids of the target's vocabulary
    logits: list[Array] = field(default_factory=list)
    states: list[Array] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)  # probabilities of the ids among the ten best


class ReferenceHead:
    """A head by its definition. Tokens and rows of the target go in with `process`, drafts come out of `propose`.

    Slot p pairs the token at position p + 1 with the row at position p and is rotated to position p. `changes` replace
    fields of the head's variant: a wrong reference, to show that a comparison can fail.
    """

    def __init__(self, head: Head, **changes: Any):
        v = replace(head.variant, **changes)
        self.head, self.variant = head, v
        self.start = 0  # the position of the first row
        self.tokens: list[int] = []
        self.rows = np.zeros((0, head.n_embd_inp))
        rope = Rope.make(v.n_rot, v.rope_theta, v.rope_scaling)
        if v.rope_sections:
            rope = rope.with_sections(v.rope_sections, v.rope_interleaved)
        self.positions: Array | None = None  # (4, n): positions of all slots, for a head with sections after an image
        mla = {"n_head": v.n_head, "n_rot": v.n_rot, "n_value": v.v_head_dim, "scale": v.attn_scale}
        self.blocks = [
            (_MlaBlock if v.kv_lora_rank else _Block)(
                _layer_weights(head.weights, f"layers.{il}."),
                v.head_dim,
                rope,
                v.rms_eps,
                v.sliding_window,
                ACTIVATIONS[v.hidden_act],
                **(mla if v.kv_lora_rank else {}),
            )
            for il in range(v.n_layer)
        ]

    @property
    def n_past(self) -> int:
        """Number of target positions received."""
        return self.start + len(self.tokens)

    def process(self, rows: Array, tokens: list[int], n_past: int) -> None:
        """Process the target's rows and tokens at positions n_past, n_past + 1, ..."""
        if n_past != self.n_past:
            raise ValueError(f"expected position {self.n_past}, got {n_past}")
        self.rows = np.concatenate([self.rows, np.asarray(rows, dtype=np.float64).reshape(len(tokens), -1)])
        self.tokens = [*self.tokens, *tokens]

    def truncate(self, n_past: int) -> None:
        """Remove positions from n_past on."""
        n = max(n_past - self.start, 0)
        self.rows, self.tokens, self.start = self.rows[:n], self.tokens[:n], min(n_past, self.start)

    def restart(self, n_past: int) -> None:
        """Remove all rows; new rows come from n_past on."""
        self.truncate(0)
        self.start = n_past

    def propose(self, id_last: int, n: int) -> Draft:
        """Draft `n` tokens after `id_last`, the token at position n_past."""
        state, caches = self.catch_up(id_last)
        draft = Draft()
        for step in range(n):
            logits, feedback = self.outputs(state)
            draft.logits.append(logits[0])
            draft.states.append(feedback[0])
            best = int(np.argmax(logits[0]))
            draft.ids.append(best if self.head.d2t is None else int(self.head.d2t[best]))
            draft.probs.append(float(softmax(np.sort(logits[0])[-10:])[-1]))
            if step + 1 < n:
                state = self.step(draft.ids[-1], feedback, self.n_past + step, caches)
        return draft

    def catch_up(self, id_last: int) -> tuple[Array, list[list[Array]]]:
        """Return the state after the last row, which `id_last` follows, and the caches of the layers."""
        caches = [block.empty_cache() for block in self.blocks]
        states = self.decode([*self.tokens[1:], id_last], self.encode(self.rows), self.start, caches)
        return states[-1:], caches

    def step(self, token: int, feedback: Array, pos: int, caches: list[list[Array]]) -> Array:
        """Return the state after one more slot: the token with the recurrent row, or P-EAGLE's replacement of both."""
        if self.variant.mask_token is not None:
            token, feedback = self.variant.mask_token, self.encode(self.head.weights["mask_hidden"].reshape(1, -1))
        return self.decode([token], feedback, pos, caches)

    def encode(self, rows: Array) -> Array:
        """Map rows of the target to the head's hidden size; recurrent states are not mapped."""
        v, w = self.variant, self.head.weights
        if not v.use_aux_hidden_state:
            return rows
        if v.norm_before_fc:
            rows = rms_norm(rows, w["input_norm.weight"], v.rms_eps)
        if v.fc_norm:
            parts = np.split(rows, len(v.boundaries), axis=-1)
            norms = [w[f"fc_norm.{k}.weight"] for k in range(len(parts))]
            rows = np.concatenate([rms_norm(p, n, v.rms_eps) for p, n in zip(parts, norms, strict=True)], axis=-1)
        return rows @ w["fc.weight"].T + w.get("fc.bias", 0.0)

    def decode(self, tokens: list[int], hidden: Array, pos_first: int, caches: list[list[Array]]) -> Array:
        """Run the layers over slots (token, hidden) from `pos_first` on: the residual stream before the last norm."""
        v, w = self.variant, self.head.weights
        embd = w.get("embed_tokens.weight", self.head.target.weights["model.embed_tokens.weight"])
        pos = np.arange(pos_first, pos_first + len(tokens))
        if self.positions is not None:
            pos = self.positions[:, pos]
        for il, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
            if il == 0:
                normed = block.norm("hidden_norm", hidden)
                x = np.concatenate([block.norm("input_layernorm", embd[np.asarray(tokens)]), normed], axis=-1)
                hidden = normed if v.norm_before_residual else hidden
            else:
                x = block.norm("input_layernorm", hidden)
            hidden = hidden + block.attend(x, pos, cache)
            hidden = hidden + block.mlp(block.norm("post_attention_layernorm", hidden))
        return hidden

    def outputs(self, state: Array) -> tuple[Array, Array]:
        """Return the logits over the draft vocabulary, and the hidden row of the next step."""
        v, w, w_tgt = self.variant, self.head.weights, self.head.target.weights
        normed = rms_norm(state, w["norm.weight"], v.rms_eps)
        shared = w_tgt.get("lm_head.weight", w_tgt["model.embed_tokens.weight"])
        logits = normed @ w.get("lm_head.weight", shared).T * v.logit_scale
        return logits, normed if v.norm_output else state
