"""Text that the target writes itself: what the head meets at inference."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from . import corpus
from .model import Llama


class Generator:
    """Batched decoding with a K/V cache; every sequence of a batch has the same length."""

    def __init__(self, model: Llama, dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        self.cfg = model.cfg
        self.dtype = dtype

    @torch.no_grad()
    def __call__(self, prompts: Tensor, n_predict: int, temperature: float = 0.0) -> Tensor:
        """Append ``n_predict`` tokens to each of ``prompts`` (n_batch, n_prompt), never BOS; 0 means greedily."""
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype != torch.float32):
            return self._generate(prompts, n_predict, temperature)

    def _generate(self, prompts: Tensor, n_predict: int, temperature: float) -> Tensor:
        cfg, model = self.cfg, self.model
        n_batch, n_past = prompts.shape[0], 0
        shape = (cfg.n_layer, n_batch, cfg.n_head_kv, prompts.shape[1] + n_predict, cfg.n_embd_head)
        cache_k, cache_v = torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype)
        tokens, fresh = prompts, prompts
        for _ in range(n_predict):
            n = fresh.shape[1]
            cos, sin = model.cos[n_past : n_past + n], model.sin[n_past : n_past + n]
            x = model.tok_embd(fresh)
            for il, block in enumerate(model.blocks):
                q, k, v = block.attn.qkv(block.attn_norm(x), cos, sin)
                cache_k[il, :, :, n_past : n_past + n] = k
                cache_v[il, :, :, n_past : n_past + n] = v
                keys, values = cache_k[il, :, :, : n_past + n], cache_v[il, :, :, : n_past + n]
                if n_past == 0:
                    q, k = q.to(v.dtype), k.to(v.dtype)
                    y = F.scaled_dot_product_attention(q, block.attn.repeat(k), block.attn.repeat(v), is_causal=True)
                else:
                    # one query per sequence: the query heads of a group become rows, so that K and V are not repeated
                    group = q.to(self.dtype).view(n_batch, cfg.n_head_kv, -1, cfg.n_embd_head)
                    scores = group @ keys.transpose(-1, -2) * cfg.n_embd_head**-0.5
                    y = (scores.softmax(-1).to(self.dtype) @ values).view(n_batch, cfg.n_head, 1, cfg.n_embd_head)
                x = x + block.attn.out(y)
                x = x + block.ffn(block.ffn_norm(x))
            logits = model.head(x[:, -1]).float()
            logits[:, corpus.BOS] = -torch.inf
            if temperature > 0:
                fresh = torch.multinomial((logits / temperature).softmax(-1), 1)
            else:
                fresh = logits.argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, fresh), dim=1)
            n_past += n
        return tokens


def continuations(
    model: Llama,
    stream: np.ndarray,
    n_windows: int,
    rng: np.random.Generator,
    *,
    n_batch: int = 96,
    greedy: float = 0.75,
) -> np.ndarray:
    """Windows of ``n_ctx`` tokens: BOS, training text of random length, then the target's own continuation.

    ``greedy`` is the share of batches continued greedily; the others are sampled at temperature 0.8.
    """
    generator = Generator(model, torch.bfloat16)  # this text need not be the target's to the last bit
    n_ctx = model.cfg.n_ctx
    out = np.empty((n_windows, n_ctx), dtype=np.uint16)
    for first in tqdm(range(0, n_windows, n_batch), desc="continuations", unit="batch"):
        n = min(n_batch, n_windows - first)
        n_prompt = int(rng.integers(n_ctx // 8, n_ctx * 3 // 4))
        starts = rng.integers(0, len(stream) - n_prompt, size=n)
        prompts = np.stack([stream[s : s + n_prompt] for s in starts]).astype(np.int64)
        prompts[:, 0] = corpus.BOS
        temperature = 0.0 if rng.random() < greedy else 0.8
        out[first : first + n] = generator(torch.from_numpy(prompts), n_ctx - n_prompt, temperature).numpy()
    return out
