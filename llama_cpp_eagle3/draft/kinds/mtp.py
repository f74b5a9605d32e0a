"""The block for multi-token prediction (MTP, NextN) of a target, in its file or in one of its own, as a drafter."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp.llama_cpp as lib

from ..._core import MtpDrafter, TargetInfo, check_header, read_target
from ...errors import IncompatibleDraftError, ModelFileError
from .fit import check_vocabulary
from .kind import DrafterFile, Place
from .llama_context import context_params, load_model, make_contexts, n_branches


class MtpBlock(DrafterFile):
    """A layer after a target's last one. `path` is the target's file, or the block's own."""

    source = "mtp"
    spec_types = ("draft-mtp",)
    title = "block for multi-token prediction"
    why_no_target = "a block for multi-token prediction alone"
    needs_file = False

    @classmethod
    def matches(cls, info: TargetInfo) -> bool:
        """Files that have such a block and no other layers."""
        return not info.has_trunk

    def __init__(self, path: str, info: TargetInfo | None = None):
        """Read the header, unless it is given."""
        self.path, self.info = path, info or read_target(path)
        self.n_vocab = self.info.n_vocab
        self._is_apart = True
        if self.info.n_layer_nextn > 1:
            self.note = f"{self.info.n_layer_nextn} chained blocks"

    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check that it can be run, and that a file of its own belongs to this target."""
        self._is_apart = self.path != model_path
        if self._is_apart:
            self._check_apart(model_path, target)
        elif why := why_no_block(target):
            raise IncompatibleDraftError(
                f"'{model_path}' cannot draft with a block of its own (draft_sources names 'mtp'): {why}. Leave 'mtp' "
                "out, or give a head as draft_model_path."
            )
        return (self.info.n_layer + self.info.nextn,)

    @property
    def is_in_target(self) -> bool:
        """Whether it is the target's own."""
        return not self._is_apart

    def _check_apart(self, model_path: str, target: TargetInfo) -> None:
        path, info = self.path, self.info
        check_header(path, {})
        facts = {
            "architecture": (target.arch, info.arch),
            "number of layers": (target.n_layer, info.n_layer),
            "width": (target.n_embd, info.n_embd),
            "number of tokens": (target.n_vocab, info.n_vocab),
        }
        for name, (of_target, of_block) in facts.items():
            if of_target != of_block:
                raise IncompatibleDraftError(
                    f"the {self.title} '{path}' belongs to another target than '{model_path}': the {name} is "
                    f"{of_block}, of the target {of_target}"
                )
        self.vocabulary = check_vocabulary(
            model_path, target, path, info.n_vocab, needs_texts=True, is_exact=True, advice="Use the target's own."
        )
        if why := why_no_block(info):
            raise IncompatibleDraftError(f"the {self.title} '{path}' cannot draft: {why}")

    def describe(self) -> str:
        """Whether it is the target's own block, or the file that it is in."""
        return f"{self.title} '{self.path}': {self.info.arch}" if self._is_apart else f"target's own {self.title}"

    def make(self, place: Place, draft_type: int | None) -> MtpDrafter:
        """Make an MTP context of the target's model, or of the block's own."""
        n_blocks = self.info.n_layer_nextn
        params = context_params(
            place.context_params,
            n_ctx=place.n_ctx,
            n_seq=place.n_seq,
            is_pooled=place.is_pooled,
            n_branches=0 if n_blocks > 1 else n_branches(is_pooled=place.is_pooled, has_trees=place.has_trees),
            type_k=place.type_k,
            type_v=place.type_v,
        )
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        own = load_model(self.path, place, load_mtp=True) if self._is_apart else 0
        what = f"'{self.path}' (the {self.title})"
        ctx, *further = make_contexts(own or place.model, params, place, what, n_blocks, owns_model=self._is_apart)
        return MtpDrafter(
            ctx,
            self.path,
            model=own,
            further=further,
            n_ctx=place.n_ctx,
            n_seq_max=place.n_seq,
            n_outputs_max=params.n_outputs_max,
        )


def why_no_block(info: TargetInfo) -> str:
    """Why a target cannot draft with a block of its own; empty if it can."""
    if info.why_no_target:
        return info.why_no_target
    if info.n_layer_gone:
        return (
            f"the file announces a block for multi-token prediction (key {info.arch}.nextn_predict_layers is "
            f"{info.n_layer_gone}), and has no tensor of it: whoever converted it left the block out"
        )
    if info.n_layer_nextn == 0:
        return f"the file has no block for multi-token prediction (key {info.arch}.nextn_predict_layers)"
    if not info.runs_block:
        return f"this release of llama.cpp loads the block of this architecture ({info.arch}), but cannot run it"
    return ""


def has_block(model_path: str) -> bool:
    """Whether a target can draft with a block of its own; False for a file that cannot be read."""
    try:
        return not why_no_block(read_target(model_path))
    except ModelFileError:
        return False
