"""The EAGLE-3 head in PyTorch, run as test-time training runs it: several draft steps from every row at once."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .model import MLP, Attention, Config, RMSNorm, rope_table


@dataclass(frozen=True)
class Norms:
    """What EAGLE-3.1 adds; llama.cpp's own eagle3 cannot run it."""

    fc_norm: bool = False
    """Each boundary's rows are normed before they are fused."""
    norm_output: bool = False
    """The next step reads the state that the lm_head reads, behind the last norm."""


_EAGLE_3 = Norms()


def _power_of_2(x: Tensor) -> Tensor:
    """The nearest one; multiplying with it and back changes no bit."""
    return x.clamp_min(2.0**-20).log2().round().exp2()


class Head(nn.Module):
    """One layer that reads (next token's embedding, fused target rows); own lm_head over a draft vocabulary.

    The embedding is the target's and frozen.
    """

    def __init__(
        self,
        cfg: Config,
        tok_embd: Tensor,
        d2t: Tensor,
        n_ff: int,
        n_steps: int,
        norm: Tensor | None = None,
        norms: Norms = _EAGLE_3,
    ) -> None:
        """Make a fresh head.

        Args:
            cfg: the target's sizes and boundaries.
            tok_embd: the target's embedding (n_vocab, n_embd).
            d2t: the tokens that the head can draft, ascending.
            n_ff: feed-forward size of its layer.
            n_steps: draft steps in training.
            norm: weight of the target's final norm, to start from.
            norms: where it has norms that EAGLE-3 has not.
        """
        super().__init__()
        self.cfg, self.n_ff, self.norms = cfg, n_ff, norms
        self.register_buffer("tok_embd", tok_embd.detach().clone(), persistent=False)
        self.register_buffer("d2t", d2t)
        n_fc_norm = len(cfg.boundaries) if norms.fc_norm else 0
        self.fc_norm = nn.ModuleList(RMSNorm(cfg.n_embd, cfg.rms_eps) for _ in range(n_fc_norm))
        self.fc = nn.Linear(len(cfg.boundaries) * cfg.n_embd, cfg.n_embd, bias=False)
        self.register_buffer("row_scale", torch.ones(self.fc.in_features))
        self.attn_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.hidden_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.attn = Attention(cfg, 2 * cfg.n_embd)
        self.ffn_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.ffn = MLP(cfg.n_embd, n_ff)
        self.norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.lm_head = nn.Linear(cfg.n_embd, len(d2t), bias=False)
        cos, sin = rope_table(cfg.n_ctx + n_steps, cfg.n_embd_head, cfg.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5 / 2)
        with torch.no_grad():
            # start as the target reads its last state here, with branches that add nothing yet, and less sure of it:
            # what follows the next token is not what that state says
            self.lm_head.weight.copy_(self.tok_embd[d2t])
            if norm is not None:
                self.norm.weight.copy_(norm * 0.3)
            self.fc.weight.zero_()
            self.fc.weight[:, -cfg.n_embd :] = torch.eye(cfg.n_embd)
            self.attn.o.weight.zero_()
            self.ffn.down.weight.zero_()

    def inputs(self, tokens: Tensor, state: Tensor) -> Tensor:
        """[norm(embedding) ; norm(state)], the attention's input."""
        return torch.cat((self.attn_norm(self.tok_embd[tokens]), self.hidden_norm(state)), dim=-1)

    @property
    def fc_weight(self) -> Tensor:
        """What fc multiplies rows with that are as the target gives them: exactly, for scales are powers of two."""
        return self.fc.weight.detach() * self.row_scale

    @torch.no_grad()
    def scale_rows(self, rows: Tensor) -> None:
        """Have fc read values of about size 1, as all other weights do; what it makes of rows stays, bit by bit.

        A target's boundaries differ tenfold in size, and their values a hundredfold. With one learning rate for all
        weights, a head would learn late to read the small ones. A fresh head's states, too, become of size 1, or
        attention and feed-forward would have to grow large before they say something beside them.

        rows: some of the target, (n_rows, n_boundaries * n_embd).
        """
        if not self.norms.fc_norm:
            scale = _power_of_2(rows.pow(2).mean(0).sqrt()).reciprocal()
            self.fc.weight.mul_(self.row_scale / scale)
            self.row_scale.copy_(scale)
        if not self.attn.o.weight.any() and not self.ffn.down.weight.any():  # then the norms behind cancel it
            self.fc.weight.div_(_power_of_2(self.fuse(rows).pow(2).mean(-1).sqrt().median()))

    def fuse(self, rows: Tensor) -> Tensor:
        """The target's rows (..., n_boundaries * n_embd) as a state."""
        if self.norms.fc_norm:
            parts = rows.split(self.cfg.n_embd, dim=-1)
            rows = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(rows * self.row_scale).float()  # what steps add to stays f32 where products are bf16

    def tail(self, state: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and feed-forward: (the next recurrent state, what the lm_head reads)."""
        x = state + y
        x = x + self.ffn(self.ffn_norm(x))
        normed = self.norm(x)
        return (normed if self.norms.norm_output else x), normed

    def steps(
        self, tokens: Tensor, rows: Tensor, n_steps: int, anchors: Tensor, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Run ``n_steps`` draft steps with the text's own tokens; yield (positions compared with, logits) of each step.

        ``tokens`` (n_batch, n_tokens); ``rows`` (n_batch, n_tokens, n_boundaries * n_embd). Step 0 runs at all rows but
        the last, causally. Step i > 0 runs at ``anchors`` only: each attends to the step-0 keys up to its own row, and
        to the keys of its own earlier steps. Row p of step i has RoPE position p + i and predicts what the target says
        at position p + 1 + i, so its logits are to be compared with the target's there: these positions are yielded.
        Of the rows before ``first`` step 0 has keys and values alone.
        """
        n = tokens.shape[1] - 1
        attn = self.attn
        state = self.fuse(rows[:, :n])
        x = self.inputs(tokens[:, 1:], state)
        k0, v0 = attn.keys_and_values(x, self.cos[:n], self.sin[:n])
        k0, v0 = attn.repeat(k0), attn.repeat(v0)
        q = attn.queries(x[:, first:], self.cos[first:n], self.sin[first:n])
        seen = torch.ones(n - first, n, dtype=torch.bool, device=tokens.device).tril(first)
        y = attn.out(F.scaled_dot_product_attention(q, k0, v0, attn_mask=seen))
        state, normed = self.tail(state[:, first:], y)
        yield torch.arange(first + 1, n + 1, device=tokens.device), self.lm_head(normed)

        state = state[:, anchors - first]
        later = torch.arange(n, device=anchors.device)[None, :] > anchors[:, None]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for i in range(1, n_steps):
            at = anchors + i
            x = self.inputs(tokens[:, at + 1], state)
            q, (k, v) = attn.queries(x, self.cos[at], self.sin[at]), attn.keys_and_values(x, self.cos[at], self.sin[at])
            keys.append(attn.repeat(k))
            values.append(attn.repeat(v))
            scale = self.cfg.n_embd_head**-0.5
            prefix = (q @ k0.transpose(-1, -2) * scale).float().masked_fill(later, -torch.inf)
            own = torch.stack([(q * key).sum(-1) * scale for key in keys], dim=-1).float()
            weights = torch.cat((prefix, own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :n] @ v0
            for j, value in enumerate(values):
                y = y + weights[..., n + j, None] * value
            state, normed = self.tail(state, attn.out(y))
            yield at + 1, self.lm_head(normed)
