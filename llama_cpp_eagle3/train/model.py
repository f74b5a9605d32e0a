"""The target: a Llama in plain PyTorch, with the residual stream of every layer boundary at hand."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """Sizes of the target; the defaults are the bundled one's."""

    n_vocab: int = 4096
    n_ctx: int = 512
    n_embd: int = 256
    n_layer: int = 10
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 704
    rms_eps: float = 1e-5
    rope_base: float = 10000.0
    layers: tuple[int, ...] = ()
    """Boundaries that a head reads; none: the usual three."""

    @property
    def n_embd_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def boundaries(self) -> tuple[int, ...]:
        """What a head reads: EAGLE-3's usual three boundaries, if nothing else was said."""
        return self.layers or (2, self.n_layer // 2, self.n_layer - 3)


def rope_table(n_ctx: int, n_rot: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of shape (n_ctx, n_rot), for half-rotation as in Hugging Face's Llama."""
    freq = base ** (-torch.arange(0, n_rot, 2, dtype=torch.float32) / n_rot)
    angle = torch.outer(torch.arange(n_ctx, dtype=torch.float32), freq)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last dimension of ``x`` (..., n_tokens, n_rot)."""
    lo, hi = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-hi, lo), dim=-1) * sin).to(x.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, n_embd: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        y = x.float()
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention; ``n_in`` differs from ``n_embd`` in the head's first layer."""

    def __init__(self, cfg: Config, n_in: int | None = None) -> None:
        super().__init__()
        n_in = n_in or cfg.n_embd
        self.n_head, self.n_head_kv, self.n_embd_head = cfg.n_head, cfg.n_head_kv, cfg.n_embd_head
        self.q = nn.Linear(n_in, cfg.n_embd, bias=False)
        self.k = nn.Linear(n_in, cfg.n_head_kv * cfg.n_embd_head, bias=False)
        self.v = nn.Linear(n_in, cfg.n_head_kv * cfg.n_embd_head, bias=False)
        self.o = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries (n_batch, heads, n_tokens, n_embd_head)."""
        return rope(self._heads(self.q(x), self.n_head), cos, sin)

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, each (n_batch, heads, n_tokens, n_embd_head), not repeated."""
        return rope(self._heads(self.k(x), self.n_head_kv), cos, sin), self._heads(self.v(x), self.n_head_kv)

    def _heads(self, x: Tensor, n_head: int) -> Tensor:
        b, t, _ = x.shape
        return x.view(b, t, n_head, self.n_embd_head).transpose(1, 2)

    def repeat(self, kv: Tensor) -> Tensor:
        """One copy of K or V per query head."""
        return kv.repeat_interleave(self.n_head // self.n_head_kv, dim=1)

    def out(self, y: Tensor) -> Tensor:
        """Merge the heads and project."""
        b, _, t, _ = y.shape
        return self.o(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal self-attention over a whole window."""
        q, (k, v) = self.queries(x, cos, sin), self.keys_and_values(x, cos, sin)
        return self.out(F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), is_causal=True))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, n_embd: int, n_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(n_embd, n_ff, bias=False)
        self.up = nn.Linear(n_embd, n_ff, bias=False)
        self.down = nn.Linear(n_ff, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x))."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.attn = Attention(cfg)
        self.ffn_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.ffn = MLP(cfg.n_embd, cfg.n_ff)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Residual stream in, residual stream out."""
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """Decoder with tied embeddings."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tok_embd = nn.Embedding(cfg.n_vocab, cfg.n_embd)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        cos, sin = rope_table(cfg.n_ctx, cfg.n_embd_head, cfg.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention):
            nn.init.normal_(module.o.weight, std=0.02 / (2 * self.cfg.n_layer) ** 0.5)
        if isinstance(module, MLP):
            nn.init.normal_(module.down.weight, std=0.02 / (2 * self.cfg.n_layer) ** 0.5)

    def hidden(self, tokens: Tensor) -> list[Tensor]:
        """Residual stream at every boundary 0..n_layer, for tokens (n_batch, n_tokens)."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.tok_embd(tokens)
        rows = [x]
        for block in self.blocks:
            x = block(x, cos, sin)
            rows.append(x)
        return rows

    def head(self, x: Tensor) -> Tensor:
        """Logits of rows at the last boundary."""
        return F.linear(self.norm(x), self.tok_embd.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n_batch, n_tokens, n_vocab)."""
        return self.head(self.hidden(tokens)[-1])
