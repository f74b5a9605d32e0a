"""The EAGLE-3 head in PyTorch, run as test-time training runs it: several draft steps from every row at once."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .model import MLP, Attention, Config, Llama, RMSNorm, rope_table


class Head(nn.Module):
    """One layer that reads (next token's embedding, fused target rows); own lm_head over a draft vocabulary.

    The embedding is the target's and frozen.
    """

    def __init__(self, target: Llama, d2t: Tensor, n_ff: int, n_steps: int) -> None:
        super().__init__()
        cfg: Config = target.cfg
        self.cfg, self.n_ff = cfg, n_ff
        self.register_buffer("tok_embd", target.tok_embd.weight.detach().clone())
        self.register_buffer("d2t", d2t)
        self.fc = nn.Linear(len(cfg.boundaries) * cfg.n_embd, cfg.n_embd, bias=False)
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
            # start from the target's rows nearest its output, read as the target reads its own
            self.lm_head.weight.copy_(self.tok_embd[d2t])
            self.norm.weight.copy_(target.norm.weight)
            self.fc.weight[:, -cfg.n_embd :] += torch.eye(cfg.n_embd)

    def inputs(self, tokens: Tensor, state: Tensor) -> Tensor:
        """[norm(embedding) ; norm(state)], the attention's input."""
        return torch.cat((self.attn_norm(self.tok_embd[tokens]), self.hidden_norm(state)), dim=-1)

    def tail(self, state: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Residual, feed-forward and logits: (next recurrent state, logits over the draft vocabulary)."""
        x = state + y
        x = x + self.ffn(self.ffn_norm(x))
        return x, self.lm_head(self.norm(x))

    def steps(self, tokens: Tensor, rows: Tensor, n_steps: int, anchors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Run ``n_steps`` draft steps with the text's own tokens; yield (positions compared with, logits) of each step.

        ``tokens`` (n_batch, n_tokens); ``rows`` (n_batch, n_tokens, n_boundaries * n_embd). Step 0 runs at all rows but
        the last, causally. Step i > 0 runs at ``anchors`` only: each attends to the step-0 keys up to its own row, and
        to the keys of its own earlier steps. Row p of step i has RoPE position p + i and predicts what the target says
        at position p + 1 + i, so its logits are to be compared with the target's there: these positions are yielded.
        """
        n = tokens.shape[1] - 1
        attn = self.attn
        state = self.fc(rows[:, :n])
        q, k0, v0 = attn.qkv(self.inputs(tokens[:, 1:], state), self.cos[:n], self.sin[:n])
        k0, v0 = attn.repeat(k0), attn.repeat(v0)
        y = attn.out(F.scaled_dot_product_attention(q, k0, v0, is_causal=True))
        state, logits = self.tail(state, y)
        yield torch.arange(1, n + 1), logits

        state = state[:, anchors]
        later = torch.arange(n)[None, :] > anchors[:, None]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for i in range(1, n_steps):
            at = anchors + i
            q, k, v = attn.qkv(self.inputs(tokens[:, at + 1], state), self.cos[at], self.sin[at])
            keys.append(attn.repeat(k))
            values.append(attn.repeat(v))
            scale = self.cfg.n_embd_head**-0.5
            prefix = (q @ k0.transpose(-1, -2) * scale).float().masked_fill(later, -torch.inf)
            own = torch.stack([(q * key).sum(-1) * scale for key in keys], dim=-1).float()
            weights = torch.cat((prefix, own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :n] @ v0
            for j, value in enumerate(values):
                y = y + weights[..., n + j, None] * value
            state, logits = self.tail(state, attn.out(y))
            yield at + 1, logits
