"""Block drafters (GGUF architecture dflash): a small model that drafts a block of tokens in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from ..._core import DflashDrafter, TargetInfo, read_dflash
from .fit import check_boundaries, check_generates, check_vocabulary, check_width
from .kind import DrafterFile, Place
from .llama_context import load_model, make_context, set_cache_types

_N_BATCH = 128, 256
"""Least and greatest number of rows of a pass, which has as many blocks as fit. llama.cpp makes logits of all rows, for
which it keeps memory."""


class BlockDrafter(DrafterFile):
    """DFlash, DSpark or DFlash2."""

    source = "dflash"
    spec_types = ("draft-dflash", "draft-dspark")
    title = "block drafter"
    archs = ("dflash",)
    why_no_target = "a block drafter"
    n_max_auto = 16  # a block of any length is one pass
    is_model = takes_type = True
    has_own_rotation = True

    def __init__(self, path: str):
        """Read the header."""
        self.path, self.file = path, read_dflash(path)
        self.n_embd_tgt, self.boundaries = self.file.n_embd, tuple(self.file.boundaries)
        self.n_draft_max, self.n_vocab = self.file.n_draft_max, self.file.n_vocab

    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check width, tokens and layers."""
        check_generates(model_path, target, target.why_no_target)
        check_width(model_path, target, self.path, self.file.n_embd)
        # its matrices have a row for each token, and the output may be the target's
        self.vocabulary = check_vocabulary(model_path, target, self.path, self.file.n_vocab, is_exact=True)
        check_boundaries(model_path, target, f"the draft '{self.path}'", self.boundaries)
        return self.boundaries

    def describe(self) -> str:
        """The file, which of the three it is, and what it drafts."""
        return f"{self.title} '{self.path}': {self.file.kind}, {self.n_draft_max} tokens in one pass"

    def make(self, place: Place, draft_type: int | None) -> DflashDrafter:
        """Load it, with a context beside the target's."""
        model = load_model(self.weights, place)
        params = self._context_params(place)
        ctx = make_context(model, params, place, f"'{self.path}' (the {self.title})", owns_model=True)
        model_tgt = int(lib.llama_get_model(place.ctx))
        return DflashDrafter(self.file, model, ctx, model_tgt, n_ctx=place.n_ctx, n_seq_max=place.n_seq)

    def _context_params(self, place: Place) -> Any:
        """RoPE's parameters are the file's own: those of the target's context are reset."""
        own = lib.llama_context_default_params()
        for name in ("flash_attn_type", "offload_kqv", "op_offload", "no_perf"):
            setattr(own, name, getattr(place.context_params, name))
        n_seq, n_rows = place.n_seq, self.file.block_size
        own.ctx_other = place.ctx
        own.n_seq_max, own.kv_unified = n_seq, place.is_pooled
        own.n_ctx = place.n_ctx + n_seq * n_rows if place.is_pooled else (place.n_ctx + n_rows) * n_seq
        least, most = _N_BATCH
        own.n_batch = own.n_ubatch = max(n_rows, least, min(most, n_seq * n_rows))
        own.swa_full = True  # it goes back with every draft
        set_cache_types(own, place.type_k, place.type_v)
        return own
