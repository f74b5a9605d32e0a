"""The config of a head: its sizes, its rotation, and its optional parts."""

# mypy: disable-error-code="no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..convert.mla import Mla


@dataclass(frozen=True)
class Rotation:
    """RoPE of the first `n_rot` channels of an attention head, as ggml computes it."""

    n_rot: int
    base: float = 10000.0
    kind: str = "none"
    """none, linear or yarn; or llama3, of which a GGUF has the divisors alone."""
    factor: float = 1.0
    n_ctx_orig: int = 0
    attn_factor: float = 1.0
    """yarn: multiplies cosine and sine besides 1 + 0.1 ln(factor)."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    divisors: tuple[float, ...] = ()
    """llama3: what each frequency is divided by."""
    sections: tuple[int, ...] = ()
    """M-RoPE's sections. In texts all positions of a token are the same, so that it rotates like any other."""
    interleaved: bool = False

    def table(self, n_ctx: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of shape (n_ctx, n_rot), for rotation by halves."""
        freq = self.base ** (-torch.arange(0, self.n_rot, 2, dtype=torch.float32) / self.n_rot)
        scale = 1.0
        if self.divisors:
            freq = freq / torch.tensor(self.divisors)
        elif self.kind == "linear":
            freq = freq / self.factor
        elif self.kind == "yarn":
            ramp = self._yarn_ramp()
            freq = freq / self.factor * ramp + freq * (1.0 - ramp)
            scale = self.attn_factor * self.yarn_scale
        angle = torch.outer(torch.arange(n_ctx, dtype=torch.float32), freq)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos() * scale, angle.sin() * scale

    @property
    def yarn_scale(self) -> float:
        """The factor of cosine and sine by the paper (arXiv 2309.00071), which ggml multiplies by itself."""
        return 1.0 + 0.1 * math.log(self.factor) if self.factor > 1 else 1.0

    def _yarn_ramp(self) -> Tensor:
        """0 where a frequency stays, 1 where positions are interpolated."""

        def channel(n_turns: float) -> float:
            return self.n_rot * math.log(self.n_ctx_orig / (n_turns * 2 * math.pi)) / (2 * math.log(self.base))

        first = max(math.floor(channel(self.beta_fast)), 0)
        last = min(math.ceil(channel(self.beta_slow)), self.n_rot - 1)
        return ((torch.arange(self.n_rot // 2) - first) / max(last - first, 0.001)).clamp(0.0, 1.0)

    def hf_config(self) -> dict[str, Any]:
        """rope_theta, rope_scaling and partial rotation as in transformers' configs, except the head's width."""
        scaling: dict[str, Any] = {}
        if self.kind != "none":
            scaling = {"rope_type": self.kind, "factor": self.factor}
        if self.kind in ("yarn", "llama3"):
            scaling["original_max_position_embeddings"] = self.n_ctx_orig
        if self.kind == "yarn":
            scaling |= {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
            scaling["attention_factor"] = self.attn_factor * self.yarn_scale
        if self.kind == "llama3":
            scaling |= {"low_freq_factor": self.low_freq_factor, "high_freq_factor": self.high_freq_factor}
        if self.sections:
            scaling = {"rope_type": "default", **scaling, "mrope_section": list(self.sections)}
            scaling["mrope_interleaved"] = self.interleaved
        return {"rope_theta": self.base, **({"rope_scaling": scaling} if scaling else {})}


@dataclass(frozen=True)
class HeadConfig:
    """A head. Everything but sizes and rotation is by default what EAGLE-3's paper has."""

    n_vocab: int
    """Size of the target's vocabulary."""
    n_layer_tgt: int
    n_embd_tgt: int
    n_ctx: int
    """Tokens of the longest text."""
    n_embd: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_ff: int
    boundaries: tuple[int, ...]
    rotation: Rotation
    rms_eps: float = 1e-5
    n_layer: int = 1
    has_fc: bool = True
    """If not, its one boundary is the target's state after the final norm, which is the first layer's state."""
    mla: Mla | None = None
    """Multi-head latent attention; its rotation is of `n_rot` values of neighbours."""
    scale: float | None = None
    """Factor of attention's scores, if not 1 / sqrt(n_embd_head): DeepSeek's YaRN changes it."""
    mask_token: int = -1
    """P-EAGLE: the token of rows that the target has not computed; -1 = the head drafts one token after another."""
    norm_before_fc: bool = False
    """The row of all boundaries is normed before they are fused."""
    fc_norm: bool = False
    """EAGLE-3.1: each boundary's rows are normed before they are fused."""
    norm_output: bool = False
    """EAGLE-3.1: the next step reads the state that the lm_head reads, after the last norm."""
    norm_before_residual: bool = False
    """The residual begins at the normed state."""
    qk_norm: bool = False
    biases: frozenset[str] = field(default_factory=frozenset)
    """Modules of `Head` that have a bias."""
    sliding_window: int = 0
    """A token attends to so many tokens, itself included; 0 = to all."""
    hidden_act: str = "silu"
    logit_scale: float = 1.0
    own_embd: bool = False
    """The embedding is the head's; else the target's. It is frozen."""
    own_output: bool = True
    """The lm_head is the head's and learns; else it is the target's."""
    has_d2t: bool = True
    """It drafts a part of the vocabulary."""

    @property
    def n_feat(self) -> int:
        """Values of a row: all boundaries side by side."""
        return len(self.boundaries) * self.n_embd_tgt

    @property
    def attn_scale(self) -> float:
        """The factor of attention's scores."""
        return self.n_embd_head**-0.5 if self.scale is None else self.scale

    @property
    def is_parallel(self) -> bool:
        """Whether all tokens are drafted in one pass (P-EAGLE)."""
        return self.mask_token >= 0

    @property
    def norms_rows(self) -> bool:
        """Whether the target's values are normed before fc reads them, so that their size does not matter."""
        return self.fc_norm or self.norm_before_fc
