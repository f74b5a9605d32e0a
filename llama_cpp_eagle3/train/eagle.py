"""The EAGLE-3 head in PyTorch, run as test-time training runs it: several draft steps from every row at once."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .head_config import HeadConfig
from .model import MLP, Attention, RMSNorm


def _power_of_2(x: Tensor) -> Tensor:
    """The nearest one; multiplying with it and back changes no bit."""
    return x.clamp_min(2.0**-20).log2().round().exp2()


class Head(nn.Module):
    """One layer that reads (next token's embedding, fused target rows); an lm_head over a draft vocabulary.

    The embedding is frozen, and so is an lm_head that is the target's.
    """

    def __init__(
        self, cfg: HeadConfig, tok_embd: Tensor, d2t: Tensor, n_steps: int, norm: Tensor | None = None
    ) -> None:
        """Make a fresh head.

        Args:
            cfg: what it looks like.
            tok_embd: the embedding (n_vocab, n_embd).
            d2t: the tokens that the head can draft, ascending.
            n_steps: draft steps in training.
            norm: weight of the target's final norm, to start from.
        """
        super().__init__()
        self.cfg = cfg
        n_embd, eps = cfg.n_embd, cfg.rms_eps
        self.register_buffer("tok_embd", tok_embd.detach().clone(), persistent=False)
        self.register_buffer("d2t", d2t)
        self.input_norm = nn.ModuleList(RMSNorm(cfg.n_feat, eps) for _ in range(cfg.norm_before_fc))
        n_fc_norm = len(cfg.boundaries) if cfg.fc_norm else 0
        self.fc_norm = nn.ModuleList(RMSNorm(cfg.n_embd_tgt, eps) for _ in range(n_fc_norm))
        self.fc = nn.Linear(cfg.n_feat, n_embd, bias="fc" in cfg.biases)
        self.register_buffer("row_scale", torch.ones(cfg.n_feat))
        self.attn_norm = RMSNorm(n_embd, eps)
        self.hidden_norm = RMSNorm(n_embd, eps)
        self.attn = Attention(
            n_embd, cfg.n_head, cfg.n_head_kv, cfg.n_embd_head, 2 * n_embd,
            _of("attn", cfg.biases), eps if cfg.qk_norm else None,
        )  # fmt: skip
        self.ffn_norm = RMSNorm(n_embd, eps)
        self.ffn = MLP(n_embd, cfg.n_ff, _of("ffn", cfg.biases), cfg.hidden_act)
        self.norm = RMSNorm(n_embd, eps)
        self.lm_head = nn.Linear(n_embd, len(d2t), bias=False)
        self.lm_head.weight.requires_grad_(cfg.own_output)
        cos, sin = cfg.rotation.table(cfg.n_ctx + n_steps)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5 / 2)
        if cfg.n_embd == cfg.n_embd_tgt and not cfg.own_embd:
            self._start_as_target(norm)

    @torch.no_grad()
    def _start_as_target(self, norm: Tensor | None) -> None:
        """Read the target's last state as it does, with branches that add nothing yet, and less sure of it.

        What follows the next token is not what that state says.
        """
        self.lm_head.weight.copy_(self.tok_embd[self.d2t])
        if norm is not None:
            self.norm.weight.copy_(norm * 0.3)
        self.fc.weight.zero_()
        self.fc.weight[:, -self.cfg.n_embd :] = torch.eye(self.cfg.n_embd)
        self.attn.o.weight.zero_()
        self.ffn.down.weight.zero_()

    def inputs(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """([norm(embedding) ; norm(state)], the attention's input; what attention and feed-forward add to)."""
        normed = self.hidden_norm(state)
        x = torch.cat((self.attn_norm(self.tok_embd[tokens]), normed), dim=-1)
        return x, normed if self.cfg.norm_before_residual else state

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

        rows: some of the target, (n_rows, n_boundaries * n_embd_tgt).
        """
        if not self.cfg.norms_rows:
            scale = _power_of_2(rows.pow(2).mean(0).sqrt()).reciprocal()
            self.fc.weight.mul_(self.row_scale / scale)
            self.row_scale.copy_(scale)
        if not self.attn.o.weight.any() and not self.ffn.down.weight.any():  # then the norms behind cancel it
            self.fc.weight.div_(_power_of_2(self.fuse(rows).pow(2).mean(-1).sqrt().median()))

    def fuse(self, rows: Tensor) -> Tensor:
        """The target's rows (..., n_boundaries * n_embd_tgt) as a state."""
        for norm in self.input_norm:
            rows = norm(rows)
        if len(self.fc_norm):
            parts = rows.split(self.cfg.n_embd_tgt, dim=-1)
            rows = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(rows * self.row_scale).float()  # what steps add to stays f32 where products are bf16

    def tail(self, residual: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and feed-forward: (the next recurrent state, logits)."""
        x = residual + y
        x = x + self.ffn(self.ffn_norm(x))
        normed = self.norm(x)
        logits = self.lm_head(normed)
        return (
            normed if self.cfg.norm_output else x,
            logits if self.cfg.logit_scale == 1 else logits * self.cfg.logit_scale,
        )

    def steps(
        self, tokens: Tensor, rows: Tensor, n_steps: int, anchors: Tensor, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Run ``n_steps`` draft steps with the text's own tokens; yield (positions compared with, logits) of each step.

        ``tokens`` (n_batch, n_tokens); ``rows`` (n_batch, n_tokens, n_feat). Step 0 runs at all rows but the last,
        causally. Step i > 0 runs at ``anchors`` only: each attends to the step-0 keys up to its own row, and
        to the keys of its own earlier steps. Row p of step i has RoPE position p + i and predicts what the target says
        at position p + 1 + i, so its logits are to be compared with the target's there: these positions are yielded.
        Of the rows before ``first`` step 0 has keys and values alone.
        """
        n = tokens.shape[1] - 1
        attn, device = self.attn, tokens.device
        window = self.cfg.sliding_window or n + n_steps
        x, residual = self.inputs(tokens[:, 1:], self.fuse(rows[:, :n]))
        k0, v0 = attn.keys_and_values(x, self.cos[:n], self.sin[:n])
        k0, v0 = attn.repeat(k0), attn.repeat(v0)
        q = attn.queries(x[:, first:], self.cos[first:n], self.sin[first:n])
        seen = torch.ones(n - first, n, dtype=torch.bool, device=device).tril(first).triu(first + 1 - window)
        y = attn.out(F.scaled_dot_product_attention(q, k0, v0, attn_mask=seen))
        state, logits = self.tail(residual[:, first:], y)
        yield torch.arange(first + 1, n + 1, device=device), logits

        state = state[:, anchors - first]
        row = torch.arange(n, device=device)[None, :]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for i in range(1, n_steps):
            at = anchors + i
            x, residual = self.inputs(tokens[:, at + 1], state)
            q, (k, v) = attn.queries(x, self.cos[at], self.sin[at]), attn.keys_and_values(x, self.cos[at], self.sin[at])
            keys.append(attn.repeat(k))
            values.append(attn.repeat(v))
            first_own = max(0, i - window)  # of own steps j + 1, those that the window still has
            scale = self.cfg.n_embd_head**-0.5
            unseen = (row > anchors[:, None]) | (row <= at[:, None] - window)
            prefix = (q @ k0.transpose(-1, -2) * scale).float().masked_fill(unseen, -torch.inf)
            own = torch.stack([(q * key).sum(-1) * scale for key in keys[first_own:]], dim=-1).float()
            weights = torch.cat((prefix, own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :n] @ v0
            for j, value in enumerate(values[first_own:]):
                y = y + weights[..., n + j, None] * value
            state, logits = self.tail(residual, attn.out(y))
            yield at + 1, logits


def _of(module: str, biases: Collection[str]) -> list[str]:
    """Names of a module's parts that have a bias."""
    return [name.removeprefix(f"{module}.") for name in biases if name.startswith(f"{module}.")]
