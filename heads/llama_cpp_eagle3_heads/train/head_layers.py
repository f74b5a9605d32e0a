"""A layer of an EAGLE-3 head in PyTorch, with either kind of attention, and the keys and values of its draft steps."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..convert.mla import Mla
from .head_config import HeadConfig
from .model import MLP, Attention, RMSNorm, rope


class LatentAttention(nn.Module):
    """DeepSeek's multi-head latent attention (arXiv 2405.04434): keys and values unfolded from a compressed row.

    Weights are laid out as in checkpoints and GGUFs, where RoPE rotates pairs of neighbouring values.
    """

    def __init__(self, n_embd: int, n_in: int, mla: Mla, norm_eps: float) -> None:
        super().__init__()
        self.mla = mla

        def linear(n: int, m: int) -> nn.Linear:
            return nn.Linear(n, m, bias=False)

        n_q = mla.n_head * mla.head_dim
        if mla.q_lora_rank:
            self.q_a, self.q_a_norm = linear(n_in, mla.q_lora_rank), RMSNorm(mla.q_lora_rank, norm_eps)
            self.q_b = linear(mla.q_lora_rank, n_q)
        else:
            self.q = linear(n_in, n_q)
        self.kv_a = linear(n_in, mla.kv_lora_rank + mla.n_rot)
        self.kv_a_norm = RMSNorm(mla.kv_lora_rank, norm_eps)
        self.kv_b = linear(mla.kv_lora_rank, mla.n_head * (mla.n_nope + mla.n_value))
        self.o = linear(mla.n_head * mla.n_value, n_embd)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries (n_batch, heads, n_tokens, head_dim), the last n_rot values of which are rotated."""
        q = self.q_b(self.q_a_norm(self.q_a(x)).to(x.dtype)) if self.mla.q_lora_rank else self.q(x)
        plain, rotated = self._heads(q).split((self.mla.n_nope, self.mla.n_rot), dim=-1)
        return torch.cat((plain, _rope_of_neighbours(rotated, cos, sin)), dim=-1)

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (n_batch, heads, n_tokens, head_dim), whose rotated part all heads share, and values."""
        row, rotated = self.kv_a(x).split((self.mla.kv_lora_rank, self.mla.n_rot), dim=-1)
        unfolded = self._heads(self.kv_b(self.kv_a_norm(row).to(x.dtype)))
        keys, values = unfolded.split((self.mla.n_nope, self.mla.n_value), dim=-1)
        turned = _rope_of_neighbours(rotated, cos, sin)[:, None].expand(-1, self.mla.n_head, -1, -1)
        return torch.cat((keys, turned), dim=-1), values

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.mla.n_head, -1)).transpose(1, 2)

    def repeat(self, kv: Tensor) -> Tensor:
        """Return K or V unchanged: every head has keys and values of its own."""
        return kv

    def out(self, y: Tensor) -> Tensor:
        """Merge the heads and project."""
        return self.o(y.transpose(1, 2).flatten(2))


def _rope_of_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbours as pairs of halves: q and k are permuted alike, so that their products stay."""
    return rope(torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1), cos, sin)


class HeadLayer(nn.Module):
    """Attention and feed-forward; the first layer reads the next token's embedding beside the state."""

    def __init__(self, cfg: HeadConfig, number: int) -> None:
        super().__init__()
        self.cfg = cfg
        n_embd, eps = cfg.n_embd, cfg.rms_eps
        n_in = n_embd if number else 2 * n_embd
        self.attn_norm = RMSNorm(n_embd, eps)
        if number == 0:
            self.hidden_norm = RMSNorm(n_embd, eps)
        biases = [name.removeprefix(f"layers.{number}.") for name in cfg.biases if name.startswith(f"layers.{number}.")]
        if cfg.mla:
            self.attn: Attention | LatentAttention = LatentAttention(n_embd, n_in, cfg.mla, eps)
        else:
            self.attn = Attention(
                n_embd, cfg.n_head, cfg.n_head_kv, cfg.n_embd_head, n_in,
                _of("attn", biases), eps if cfg.qk_norm else None,
            )  # fmt: skip
        self.ffn_norm = RMSNorm(n_embd, eps)
        self.ffn = MLP(n_embd, cfg.n_ff, _of("ffn", biases), cfg.hidden_act)

    def first_inputs(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input [norm(embedding) ; norm(state)], and the residual that the layer adds to."""
        normed = self.hidden_norm(state)
        x = torch.cat((self.attn_norm(embedding), normed), dim=-1)
        return x, normed if self.cfg.norm_before_residual else state

    def add(self, residual: Tensor, y: Tensor) -> Tensor:
        """Add the attention's output y to the residual, then the feed-forward's."""
        x = residual + self.attn.out(y)
        return x + self.ffn(self.ffn_norm(x))


class Past:
    """The keys and values of one layer: those of the texts' rows in step 0, and of each anchor's own later steps."""

    def __init__(self, layer: HeadLayer, x: Tensor, cos: Tensor, sin: Tensor, n_rows: Sequence[int]) -> None:
        """Compute step 0's keys and values from x, the attention's input at the texts' rows, n_rows of each text."""
        self.layer, self.scale = layer, layer.cfg.attn_scale
        self.window = layer.cfg.sliding_window
        k0, v0 = (layer.attn.repeat(kv).split(list(n_rows), dim=2) for kv in layer.attn.keys_and_values(x, cos, sin))
        self.texts = list(zip(k0, v0, strict=True))
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend_first(self, q: Tensor, firsts: Sequence[int]) -> Tensor:
        """Step 0: the queries of each text's rows from `firsts` on attend to the text's rows up to their own."""
        n_queries = [k.shape[2] - first for (k, _), first in zip(self.texts, firsts, strict=True)]
        found = []
        for q_text, (k, v), first in zip(q.split(n_queries, dim=2), self.texts, firsts, strict=True):
            seen = torch.ones(q_text.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(first)
            if self.window:
                seen = seen.triu(first + 1 - self.window)
            found.append(F.scaled_dot_product_attention(q_text, k, v, attn_mask=seen, scale=self.scale))
        return torch.cat(found, dim=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, anchors: Sequence[Tensor]) -> Tensor:
        """The next step: each anchor attends to its text's rows up to its own, and to its own later steps."""
        self.keys.append(self.layer.attn.repeat(k))
        self.values.append(self.layer.attn.repeat(v))
        i = len(self.keys)
        first_own = max(0, i - self.window) if self.window else 0  # the window has left the own steps before it
        own = torch.stack([(q * key).sum(-1) * self.scale for key in self.keys[first_own:]], dim=-1).float()
        n_anchors = [len(at) for at in anchors]
        found, weights_own = [], []
        for q_text, own_text, (k0, v0), at in zip(
            q.split(n_anchors, dim=2), own.split(n_anchors, dim=2), self.texts, anchors, strict=True
        ):
            row = torch.arange(k0.shape[2], device=q.device)[None, :]
            unseen = row > at[:, None]
            if self.window:
                unseen = unseen | (row <= at[:, None] + i - self.window)
            prefix = (q_text @ k0.transpose(-1, -2) * self.scale).float().masked_fill(unseen, -torch.inf)
            weights = torch.cat((prefix, own_text), dim=-1).softmax(-1).to(v.dtype)
            found.append(weights[..., : k0.shape[2]] @ v0)
            weights_own.append(weights[..., k0.shape[2] :])
        y, weights = torch.cat(found, dim=2), torch.cat(weights_own, dim=2)
        for j, value in enumerate(self.values[first_own:]):
            y = y + weights[..., j, None] * value
        return y


def _of(module: str, biases: Collection[str]) -> list[str]:
    """Return the names of a module's parts that have a bias."""
    return [name.removeprefix(f"{module}.") for name in biases if name.startswith(f"{module}.")]
