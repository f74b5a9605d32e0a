"""A small model of the target's vocabulary as a drafter (llama.cpp's draft-simple)."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp.llama_cpp as lib

from ..._core import SimpleDrafter, TargetInfo, check_header, read_target
from ...errors import IncompatibleDraftError
from .fit import check_generates, check_vocabulary
from .kind import DrafterFile, Place
from .llama_context import context_params, load_model, make_context, n_branches


class SmallModel(DrafterFile):
    """Any model that generates text with the target's tokens; it reads nothing else of the target."""

    source = "simple"
    spec_types = ("draft-simple",)
    title = "small model"
    is_model = takes_type = True
    takes_n_ctx = True
    of_media = (
        "the small model sees placeholder tokens in place of images and sounds: it has no input from what they show"
    )

    @classmethod
    def matches(cls, info: TargetInfo) -> bool:
        """Files that have all layers of a model."""
        return info.has_trunk

    def __init__(self, path: str):
        """Read the header."""
        self.path, self.info = path, read_target(path)
        self.n_vocab = self.info.n_vocab

    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check that both generate text, of the same tokens."""
        path, info = self.path, self.info
        check_generates(model_path, target, target.why_no_text)
        if info.why_no_text:
            raise IncompatibleDraftError(f"the draft '{path}' ({info.arch}) does not generate text: {info.why_no_text}")
        check_header(path, {})
        advice = "Use a small model of the target's own family."
        self.vocabulary = check_vocabulary(model_path, target, path, info.n_vocab, needs_texts=True, advice=advice)
        return ()

    def describe(self) -> str:
        """The file and its size."""
        return f"small model '{self.path}': {self.info.arch}, {self.info.n_layer} layers of width {self.info.n_embd}"

    def make(self, place: Place, draft_type: int | None) -> SimpleDrafter:
        """Load it, with a context of its own."""
        model = load_model(self.weights, place)
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            lib.llama_model_free(model)
            raise IncompatibleDraftError(
                f"the draft '{self.path}' has an encoder: only models that decode alone can draft"
            )
        n_pos_max = min(place.draft_n_ctx or place.n_ctx, place.n_ctx)
        is_pooled = place.is_pooled
        n_ctx = min(place.n_ctx, n_pos_max * place.n_seq) if is_pooled else n_pos_max
        if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
            # each sequence drafts in a copy of its state, which shares the cells of its attention
            n_ctx, is_pooled, n_more = n_ctx if is_pooled else n_ctx * place.n_seq, True, place.n_seq
        else:
            n_more = n_branches(is_pooled=is_pooled, has_trees=place.has_trees)
        params = context_params(
            place.context_params,
            n_ctx=n_ctx,
            n_seq=place.n_seq,
            is_pooled=is_pooled,
            n_branches=n_more,
            type_k=place.type_k,
            type_v=place.type_v,
        )
        ctx = make_context(model, params, place, f"'{self.path}' (the {self.title})", owns_model=True)
        return SimpleDrafter(
            ctx,
            model,
            self.path,
            n_vocab_tgt=place.n_vocab,
            n_ctx=place.n_ctx,
            n_pos_max=n_pos_max,
            n_seq_max=place.n_seq,
            n_outputs_max=params.n_outputs_max,
        )
