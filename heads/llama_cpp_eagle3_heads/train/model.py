"""The target: a Llama in plain PyTorch, with the residual stream of every layer boundary at hand."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

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

    @property
    def n_embd_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


def rope_table(n_ctx: int, n_rot: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of shape (n_ctx, n_rot), for half-rotation as in Hugging Face's Llama."""
    freq = base ** (-torch.arange(0, n_rot, 2, dtype=torch.float32) / n_rot)
    angle = torch.outer(torch.arange(n_ctx, dtype=torch.float32), freq)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first n_rot values of the last dimension of ``x`` (..., n_tokens, n_embd_head) by halves."""
    n_rot = cos.shape[-1]
    turned, rest = x[..., :n_rot], x[..., n_rot:]
    lo, hi = turned.chunk(2, dim=-1)
    turned = (turned * cos + torch.cat((-hi, lo), dim=-1) * sin).to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


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
    """Grouped-query attention; in a head ``n_in`` is twice ``n_embd``, and there may be biases and norms of q and k."""

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        n_head_kv: int,
        n_embd_head: int,
        n_in: int,
        biases: Collection[str] = (),
        norm_eps: float | None = None,
    ) -> None:
        """biases: of q, k, v and o; norm_eps: None = q and k are not normed."""
        super().__init__()
        self.n_head, self.n_head_kv, self.n_embd_head = n_head, n_head_kv, n_embd_head
        self.q = nn.Linear(n_in, n_head * n_embd_head, bias="q" in biases)
        self.k = nn.Linear(n_in, n_head_kv * n_embd_head, bias="k" in biases)
        self.v = nn.Linear(n_in, n_head_kv * n_embd_head, bias="v" in biases)
        self.o = nn.Linear(n_head * n_embd_head, n_embd, bias="o" in biases)
        if norm_eps is not None:
            self.q_norm, self.k_norm = RMSNorm(n_embd_head, norm_eps), RMSNorm(n_embd_head, norm_eps)
        self.has_norms = norm_eps is not None

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries (n_batch, heads, n_tokens, n_embd_head)."""
        q = self._heads(self.q(x), self.n_head)
        return rope(self.q_norm(q).to(q.dtype) if self.has_norms else q, cos, sin)

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, each (n_batch, heads, n_tokens, n_embd_head), not repeated."""
        k, v = (self._heads(project(x), self.n_head_kv) for project in (self.k, self.v))
        return rope(self.k_norm(k).to(k.dtype) if self.has_norms else k, cos, sin), v

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


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class MLP(nn.Module):
    """SwiGLU, or with another activation."""

    def __init__(self, n_embd: int, n_ff: int, biases: Collection[str] = (), act: str = "silu") -> None:
        """biases: of gate, up and down."""
        super().__init__()
        self.gate = nn.Linear(n_embd, n_ff, bias="gate" in biases)
        self.up = nn.Linear(n_embd, n_ff, bias="up" in biases)
        self.down = nn.Linear(n_ff, n_embd, bias="down" in biases)
        self.act = _ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        """down(act(gate(x)) * up(x))."""
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.attn = Attention(cfg.n_embd, cfg.n_head, cfg.n_head_kv, cfg.n_embd_head, cfg.n_embd)
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
