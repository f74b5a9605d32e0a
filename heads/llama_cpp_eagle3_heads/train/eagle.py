"""The EAGLE-3 head in PyTorch, run as test-time training runs it: several draft steps from every row at once."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from .head_config import HeadConfig
from .head_layers import HeadLayer, Past
from .model import RMSNorm
from .packing import PackedTexts


def _power_of_2(x: Tensor) -> Tensor:
    """The nearest one; multiplying with it and back changes no bit."""
    return x.clamp_min(2.0**-20).log2().round().exp2()


class Head(nn.Module):
    """Layers that read (next token's embedding, fused target rows); an lm_head over a draft vocabulary.

    The embedding is frozen, and so is an lm_head that is the target's.
    """

    def __init__(self, cfg: HeadConfig, tok_embd: Tensor, d2t: Tensor, n_steps: int) -> None:
        """Make one with random weights.

        Args:
            cfg: its sizes and parts.
            tok_embd: the embedding (n_vocab, n_embd).
            d2t: the tokens that the head can draft, ascending.
            n_steps: draft steps in training.
        """
        super().__init__()
        self.cfg = cfg
        n_embd, eps = cfg.n_embd, cfg.rms_eps
        self.register_buffer("tok_embd", tok_embd.detach().clone(), persistent=False)
        self.register_buffer("d2t", d2t)
        self.input_norm = nn.ModuleList(RMSNorm(cfg.n_feat, eps) for _ in range(cfg.norm_before_fc))
        n_fc_norm = len(cfg.boundaries) if cfg.fc_norm else 0
        self.fc_norm = nn.ModuleList(RMSNorm(cfg.n_embd_tgt, eps) for _ in range(n_fc_norm))
        if cfg.has_fc:
            self.fc = nn.Linear(cfg.n_feat, n_embd, bias="fc" in cfg.biases)
        if cfg.is_parallel:
            self.mask_hidden = nn.Parameter(torch.zeros(cfg.n_feat))
        self.register_buffer("row_scale", torch.ones(cfg.n_feat))
        self.layers = nn.ModuleList(HeadLayer(cfg, number) for number in range(cfg.n_layer))
        self.norm = RMSNorm(n_embd, eps)
        self.lm_head = nn.Linear(n_embd, len(d2t), bias=False)
        self.lm_head.weight.requires_grad_(cfg.own_output)
        cos, sin = cfg.rotation.table(cfg.n_ctx + n_steps)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5 / 2)

    @torch.no_grad()
    def start_as_target(self, norm: Tensor | None) -> None:
        """Begin as the target's own output: read its last state, with branches that add nothing, and less confidently.

        Less so, as that state predicts the next token, and the head the one after.

        norm: weight of the target's final norm.
        """
        self.lm_head.weight.copy_(self.tok_embd[self.d2t])
        if norm is not None:
            self.norm.weight.copy_(norm * 0.3)
        self.fc.weight.zero_()
        self.fc.weight[:, -self.cfg.n_embd :] = torch.eye(self.cfg.n_embd)
        for layer in self.layers:
            layer.attn.o.weight.zero_()
            layer.ffn.down.weight.zero_()

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.norm.weight.device

    @property
    def fc_weight(self) -> Tensor:
        """The weight of fc for the target's unscaled rows; exact, since scales are powers of two."""
        return self.fc.weight.detach() * self.row_scale

    @property
    def mask_row(self) -> Tensor:
        """P-EAGLE: the row in place of those that the target has not computed, scaled as the target's rows."""
        return self.mask_hidden / self.row_scale

    @torch.no_grad()
    def scale_rows(self, rows: Tensor) -> None:
        """Let fc read values of about size 1, as all other weights do; its results do not change by a bit.

        A target's boundaries differ tenfold in size, and their values a hundredfold. With one learning rate for all
        weights, a head would learn late to read the small ones. A fresh head's states, too, become of size 1, or
        attention and feed-forward would have to grow large before they matter beside them. Without an fc there
        is nothing to scale.

        rows: some of the target, (n_rows, n_boundaries * n_embd_tgt).
        """
        if not self.cfg.has_fc:
            return
        if not self.cfg.norms_rows:
            scale = _power_of_2(rows.pow(2).mean(0).sqrt()).reciprocal()
            self.fc.weight.mul_(self.row_scale / scale)
            if self.cfg.is_parallel:
                self.mask_hidden.mul_(scale / self.row_scale)
            self.row_scale.copy_(scale)
        # if all branches add nothing, the norms after cancel the size of states
        if not any(layer.attn.o.weight.any() or layer.ffn.down.weight.any() for layer in self.layers):
            self.fc.weight.div_(_power_of_2(self.fuse(rows).pow(2).mean(-1).sqrt().median()))

    def fuse(self, rows: Tensor) -> Tensor:
        """The target's rows (..., n_boundaries * n_embd_tgt) as a state."""
        if not self.cfg.has_fc:
            return rows
        for norm in self.input_norm:
            rows = norm(rows)
        if len(self.fc_norm):
            parts = rows.split(self.cfg.n_embd_tgt, dim=-1)
            rows = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(rows * self.row_scale).float()  # what steps add to stays f32 where products are bf16

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(input of the next step, input of the lm_head), from the last layer's states."""
        normed = self.norm(x)
        return normed if self.cfg.norm_output else x, normed

    def logits(self, normed: Tensor) -> Tensor:
        """Logits over the draft vocabulary. normed: from `outputs` or `steps`."""
        logits = self.lm_head(normed)
        return logits if self.cfg.logit_scale == 1 else logits * self.cfg.logit_scale

    def steps(self, texts: PackedTexts, n_steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Run ``n_steps`` draft steps with the texts' own tokens; yield (indices, what `logits` reads) of each step.

        Step 0 runs at all rows but the last of each text, causally. Step i > 0 runs at the anchors only: each attends
        to the step-0 keys of its text up to its own row, and to the keys of its own earlier steps. Row p of step i has
        RoPE position p + i and predicts what the target samples at position p + 1 + i, so its logits are to be compared
        with the target's there: the indices of these tokens in ``texts.tokens`` are yielded. P-EAGLE's later steps read
        the mask token and `mask_row` instead of the text and the last step's state, which makes them one pass when
        drafting.
        """
        device = texts.tokens.device

        def each(first_of: Sequence[int], n_of: Sequence[int], offset_of: Sequence[int]) -> Tensor:
            """Of each text the numbers from offset + first to offset + n."""
            parts = zip(first_of, n_of, offset_of, strict=True)
            return torch.cat([torch.arange(offset + first, offset + n, device=device) for first, n, offset in parts])

        n_rows, zeros = texts.n_rows, [0] * len(texts.lengths)
        index, position = each(zeros, n_rows, texts.starts), each(zeros, n_rows, zeros)
        x, residual = self.layers[0].first_inputs(self.tok_embd[texts.tokens[index + 1]], self.fuse(texts.rows[index]))
        x, residual = x[None], residual[None]
        cos, sin = self.cos[position], self.sin[position]
        # all rows' states are the next layer's keys; after the last layer those before `firsts` are not needed
        asked = each(texts.firsts, n_rows, [0, *accumulate(n_rows)][:-1])
        pasts: list[Past] = []
        for number, layer in enumerate(self.layers):
            if number:
                x = layer.attn_norm(residual)
            pasts.append(past := Past(layer, x, cos, sin, n_rows))
            if number < len(self.layers) - 1:
                y = past.attend_first(layer.attn.queries(x, cos, sin), zeros)
            else:
                y = past.attend_first(layer.attn.queries(x[:, asked], cos[asked], sin[asked]), texts.firsts)
                residual = residual[:, asked]
            residual = layer.add(residual, y)
        state, normed = self.outputs(residual)
        yield index[asked] + 1, normed

        n_asked = [n - first for n, first in zip(n_rows, texts.firsts, strict=True)]
        starts = [0, *accumulate(n_asked)]
        of_text = list(zip(texts.anchors, texts.firsts, starts, strict=False))
        state = state[:, torch.cat([anchors - first + start for anchors, first, start in of_text])]
        anchor = torch.cat([*texts.anchors])
        begin = torch.cat([torch.full_like(a, start) for a, start in zip(texts.anchors, texts.starts, strict=True)])
        for i in range(1, n_steps):
            at = anchor + i
            following = texts.tokens[begin + at + 1][None]
            if self.cfg.is_parallel:
                following = torch.full_like(following, self.cfg.mask_token)
                state = self.fuse(self.mask_row).expand(*following.shape, -1)
            x, residual = self.layers[0].first_inputs(self.tok_embd[following], state)
            cos, sin = self.cos[at], self.sin[at]
            for layer, past in zip(self.layers, pasts, strict=True):
                if past is not pasts[0]:
                    x = layer.attn_norm(residual)
                keys, values = layer.attn.keys_and_values(x, cos, sin)
                y = past.attend(layer.attn.queries(x, cos, sin), keys, values, texts.anchors)
                residual = layer.add(residual, y)
            state, normed = self.outputs(residual)
            yield begin + at + 1, normed
