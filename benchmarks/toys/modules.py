"""The trained modules, in PyTorch: an MTP block and a block drafter (DFlash)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_cpp_eagle3_heads.train.model import Attention, Block, Config, Llama, RMSNorm, rope_table


def normed_block(cfg: Config) -> Block:
    """Return a layer whose queries and keys are normed per head, as Qwen3's, Qwen3.5's and DFlash's are."""
    block = Block(cfg)
    block.attn = Attention(cfg.n_embd, cfg.n_head, cfg.n_head_kv, cfg.n_embd_head, cfg.n_embd, norm_eps=cfg.rms_eps)
    return block


def _start(module: nn.Module) -> None:
    """Set random weights; branches add nothing yet."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5 / 2)
    for block in (part for part in module.modules() if isinstance(part, Block)):
        nn.init.zeros_(block.attn.o.weight)
        nn.init.zeros_(block.ffn.down.weight)


class MtpBlock(nn.Module):
    """A layer that reads (the target's state at p, the token at p + 1) and predicts the token at p + 2.

    Embedding and output matrix are the target's.
    """

    def __init__(self, target: Llama, *, n_steps: int) -> None:
        super().__init__()
        cfg = target.cfg
        self.cfg = cfg
        self.register_buffer("tok_embd", target.tok_embd.weight.detach(), persistent=False)
        self.enorm, self.hnorm = RMSNorm(cfg.n_embd, cfg.rms_eps), RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.eh_proj = nn.Linear(2 * cfg.n_embd, cfg.n_embd, bias=False)
        self.block = Block(cfg)
        # the last norm is the target's times a number: so states may be read before it (MiMo) or after it (Qwen3.5)
        self.register_buffer("last_norm", target.norm.weight.detach(), persistent=False)
        self.sharpness = nn.Parameter(torch.tensor([0.5]))
        cos, sin = rope_table(cfg.n_ctx + n_steps, cfg.n_embd_head, cfg.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        _start(self)
        with torch.no_grad():
            self.eh_proj.weight.mul_(0.3)
            self.eh_proj.weight[:, cfg.n_embd :] += torch.eye(cfg.n_embd)

    def _rest(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the state for the next step, logits)."""
        x = x + y
        x = x + self.block.ffn(self.block.ffn_norm(x))
        normed = F.rms_norm(x, x.shape[-1:], self.last_norm * self.sharpness, self.cfg.rms_eps)
        return x, F.linear(normed, self.tok_embd)

    def _input(self, tokens: Tensor, state: Tensor) -> Tensor:
        return self.eh_proj(torch.cat((self.enorm(self.tok_embd[tokens]), self.hnorm(state)), dim=-1))

    def steps(self, tokens: Tensor, rows: Tensor, n_steps: int, anchors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Draft with the text's own tokens; yield (rows of the target to compare with, logits) of each step.

        ``tokens`` (n_batch, n_tokens), ``rows`` (n_batch, n_tokens, n_embd). Step 0 runs at all rows but the last,
        later ones at ``anchors`` only, which attend to the keys of step 0 up to their own row and those of their own
        steps.
        """
        n, attn, norm = tokens.shape[1] - 1, self.block.attn, self.block.attn_norm
        x = self._input(tokens[:, 1:], rows[:, :n])
        normed = norm(x)
        q = attn.queries(normed, self.cos[:n], self.sin[:n])
        k0, v0 = (attn.repeat(part) for part in attn.keys_and_values(normed, self.cos[:n], self.sin[:n]))
        state, logits = self._rest(x, attn.out(F.scaled_dot_product_attention(q, k0, v0, is_causal=True)))
        yield torch.arange(1, n + 1), logits

        state = state[:, anchors]
        later = torch.arange(n)[None, :] > anchors[:, None]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        scale = self.cfg.n_embd_head**-0.5
        for i in range(1, n_steps):
            at = anchors + i
            x = self._input(tokens[:, at + 1], state)
            normed = norm(x)
            q = attn.queries(normed, self.cos[at], self.sin[at])
            k, v = attn.keys_and_values(normed, self.cos[at], self.sin[at])
            keys.append(attn.repeat(k))
            values.append(attn.repeat(v))
            before = (q @ k0.transpose(-1, -2) * scale).float().masked_fill(later, -torch.inf)
            own = torch.stack([(q * key).sum(-1) * scale for key in keys], dim=-1).float()
            weights = torch.cat((before, own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :n] @ v0
            for j, value in enumerate(values):
                y = y + weights[..., n + j, None] * value
            state, logits = self._rest(x, attn.out(y))
            yield at + 1, logits


class BlockDrafter(nn.Module):
    """DFlash: a block of the last token and masks attends to itself and to keys and values of the target's rows."""

    def __init__(
        self, target: Llama, *, boundaries: Sequence[int], n_layer: int, block_size: int, mask_token: int
    ) -> None:
        """boundaries: those whose hidden states of the target the drafter reads."""
        super().__init__()
        cfg = target.cfg
        self.cfg, self.block_size, self.mask_token = cfg, block_size, mask_token
        self.register_buffer("tok_embd", target.tok_embd.weight.detach(), persistent=False)
        self.fc = nn.Linear(len(boundaries) * cfg.n_embd, cfg.n_embd, bias=False)
        self.fc_norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        self.blocks = nn.ModuleList(normed_block(cfg) for _ in range(n_layer))
        self.norm = RMSNorm(cfg.n_embd, cfg.rms_eps)
        cos, sin = rope_table(cfg.n_ctx + block_size, cfg.n_embd_head, cfg.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        _start(self)
        with torch.no_grad():
            self.norm.weight.copy_(target.norm.weight * 0.5)
            for block in self.blocks:  # a mask adds nothing by itself
                nn.init.normal_(block.attn.o.weight, std=cfg.n_embd**-0.5 / 2)

    def forward(self, tokens: Tensor, rows: Tensor, anchors: Tensor) -> Tensor:
        """Return logits (n_batch, anchors, block_size - 1, n_vocab) of the tokens after those at ``anchors``.

        ``rows`` (n_batch, n_tokens, n_boundaries * n_embd): a block attends to those before its first token.
        """
        n_batch, n = tokens.shape
        n_blocks, size = len(anchors), self.block_size
        at = (anchors[:, None] + torch.arange(size)).flatten()
        ids = torch.full((n_batch, n_blocks, size), self.mask_token)
        ids[:, :, 0] = tokens[:, anchors]
        x = self.tok_embd[ids].flatten(1, 2)
        context = self.fc_norm(self.fc(rows))
        hidden = torch.arange(n)[None, :] >= anchors.repeat_interleave(size)[:, None]
        for block in self.blocks:
            attn, normed = block.attn, block.attn_norm(x)
            q = attn.queries(normed, self.cos[at], self.sin[at])
            own = [attn.repeat(part) for part in attn.keys_and_values(normed, self.cos[at], self.sin[at])]
            k, v = (attn.repeat(part) for part in attn.keys_and_values(context, self.cos[:n], self.sin[:n]))
            scale = self.cfg.n_embd_head**-0.5
            before = (q @ k.transpose(-1, -2) * scale).float().masked_fill(hidden, -torch.inf)
            blocks = [part.unflatten(2, (n_blocks, size)) for part in (q, *own)]
            within = (blocks[0] @ blocks[1].transpose(-1, -2) * scale).float().flatten(2, 3)
            weights = torch.cat((before, within), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :n] @ v
            y = y + (weights[..., n:].unflatten(2, (n_blocks, size)) @ blocks[2]).flatten(2, 3)
            x = x + attn.out(y)
            x = x + block.ffn(block.ffn_norm(x))
        x = x.unflatten(1, (n_blocks, size))[:, :, 1:]
        return F.linear(self.norm(x), self.tok_embd)
