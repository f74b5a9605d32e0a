"""A target whose next token depends only on the last one, and heads that know it: all drafts are accepted.

The printable tokens form one cycle of N in random order. The token at index s of it is embedded as
`[1, 0, cos(2 pi f s / N), sin(2 pi f s / N), ...]` over several whole frequencies f. "The next token" is then a
rotation R of the embedding, a linear map. Row `u` of the output matrix is the code of u turned back by one step, so
that the largest logit belongs to the next token of the cycle. Blocks of the target only add a little noise.

The head uses the same output matrix and needs a state that is the code of the token *after* row p:

* kind "token" copies it from the embedding of token p + 1 (through attention to its own slot only);
* kind "row" rotates row p by one step (through the MLP) and does not read the token. Its later states rotate likewise.
  This one is plain EAGLE-3, so that llama.cpp's own draft-eagle3 runs it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .head import Head, write_head
from .target import Target, write_target
from .vocab import printable_tokens
from .weights import Weights


def _cycle_codes(n_cycle: int, n_embd: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [n_cycle, n_embd] of the cycle's tokens, and the rotation [n_embd, n_embd] to the next one."""
    n_freq = n_embd // 2 - 1
    freqs = rng.choice(np.arange(1, (n_cycle + 1) // 2), n_freq, replace=False)
    angles = 2 * np.pi * np.outer(np.arange(n_cycle), freqs) / n_cycle
    codes = np.zeros((n_cycle, n_embd))
    codes[:, 0] = 1.0
    codes[:, 2::2], codes[:, 3::2] = np.cos(angles), np.sin(angles)
    rotation = np.eye(n_embd)
    for i, step in enumerate(angles[1]):
        block = [[np.cos(step), -np.sin(step)], [np.sin(step), np.cos(step)]]
        rotation[2 + 2 * i : 4 + 2 * i, 2 + 2 * i : 4 + 2 * i] = block
    return codes, rotation


def write_perfect_pair(
    path_target: str | Path,
    path_head: str | Path,
    *,
    kind: str = "row",
    arch: str = "llama",
    n_layer: int = 4,
    n_embd: int = 64,
    n_vocab: int = 320,
    noise: float = 0.05,
    seed: int = 3,
    **head_variant: Any,
) -> tuple[Target, Head]:
    """Write a target and a head that always drafts the target's greedy token. See the module for `kind`."""
    if kind not in ("row", "token"):
        raise ValueError(f"kind must be 'row' or 'token', not {kind!r}")
    rng = np.random.default_rng(seed)
    cycle = rng.permutation(printable_tokens(n_vocab))
    codes, rotation = _cycle_codes(len(cycle), n_embd, rng)
    place = rng.integers(0, len(cycle), n_vocab)  # tokens outside the cycle share the code of one inside
    place[cycle] = np.arange(len(cycle))

    output = np.zeros((n_vocab, n_embd))
    output[cycle] = codes @ rotation  # rows: R^T code, the code one step back
    embd = codes[place]
    target = write_target(path_target, arch, n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab, seed=seed)
    weights = {k: w * noise for k, w in target.weights.items() if "o_proj" in k or "down_proj" in k}
    weights |= {"model.embed_tokens.weight": embd, "model.norm.weight": np.ones(n_embd), "lm_head.weight": output}
    target = write_target(
        path_target, arch, n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab, seed=seed, weights=weights
    )

    rms = np.sqrt(np.mean(codes[0] ** 2))
    variant: dict[str, Any] = {
        "norm_before_residual": True,
        "n_vocab_dft": None,
        "own_output": True,
        "boundaries": (1, n_layer // 2, n_layer - 1),
        "n_ff": 2 * n_embd,
    }
    if kind == "row":
        weights = _row_head(n_embd, len(variant["boundaries"]), rotation, rms)
    else:
        variant |= {"sliding_window": 1, "n_head_kv": 4}
        weights = _token_head(n_embd)
    weights |= {"norm.weight": np.ones(n_embd), "lm_head.weight": output}
    variant |= head_variant
    return target, write_head(path_head, target, weights=weights, **variant)


def _row_head(n_embd: int, n_aux: int, rotation: np.ndarray, rms: float) -> Weights:
    """Return z = y + (R - I) y with y = the row. Two hidden units make one linear one: silu(a) - silu(-a) = a."""
    turn = rotation - np.eye(n_embd)
    one = np.zeros((n_embd, n_embd))
    one[:, 0] = 1.0  # the component that is 1 in every code
    return {
        "fc.weight": np.tile(np.eye(n_embd) / n_aux, (1, n_aux)),
        "layers.0.hidden_norm.weight": np.full(n_embd, rms),
        "layers.0.post_attention_layernorm.weight": np.full(n_embd, rms),
        "layers.0.self_attn.o_proj.weight": np.zeros((n_embd, n_embd)),
        "layers.0.mlp.gate_proj.weight": np.vstack([turn, -turn]),
        "layers.0.mlp.up_proj.weight": np.vstack([one, -one]),
        "layers.0.mlp.down_proj.weight": np.hstack([np.eye(n_embd), np.eye(n_embd)]),
    }


def _token_head(n_embd: int) -> Weights:
    """Return weights without residual and MLP; attention over one slot passes the normed embedding on."""
    eye = np.eye(n_embd)
    return {
        "layers.0.input_layernorm.weight": np.ones(n_embd),
        "layers.0.hidden_norm.weight": np.zeros(n_embd),
        "layers.0.self_attn.v_proj.weight": np.hstack([eye, np.zeros((n_embd, n_embd))]),
        "layers.0.self_attn.o_proj.weight": eye,
        "layers.0.mlp.down_proj.weight": np.zeros((n_embd, 2 * n_embd)),
    }
