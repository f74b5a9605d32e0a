"""EAGLE-3 heads as drafters, P-EAGLE and MLA among them."""

from __future__ import annotations

from collections.abc import Sequence

from ..._core import Eagle3Drafter, TargetInfo, check_head, read_head
from ...errors import IncompatibleDraftError
from .fit import check_boundaries, check_generates, check_vocabulary, check_width, offer
from .kind import DrafterFile, Place

_N_BATCH_MAX = 512


class Eagle3Head(DrafterFile):
    """A head that reads hidden states of its target."""

    source = "eagle3"
    spec_types = ("draft-eagle3",)
    title = "head"
    archs = ("eagle3", "eagle3-ext")
    why_no_target = "an EAGLE-3 head"
    takes_type = takes_layers = True
    has_own_rotation = True
    needs_file = False  # ("eagle3", "ngram") is for files with and without a head

    def __init__(self, path: str):
        """Read the header."""
        self.path, self.head = path, read_head(path)
        self.n_embd_tgt, self.note = self.head.n_embd_tgt, self.head.boundaries_why
        self.boundaries, self.n_vocab = tuple(self.head.boundaries), self.head.n_vocab
        self._layers: list[int] | None = None

    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check width, tokens and layers."""
        head = self.head
        # without auxiliary hidden states a head reads the target's final normed one
        boundaries = self.boundaries if head.use_aux_hidden_state else (target.n_layer + 1,)
        if layers is not None:
            boundaries, self._layers, self.note = tuple(layers), list(layers), "draft_target_layers"
        check_generates(model_path, target, target.why_no_target)
        check_width(model_path, target, self.path, head.n_embd_tgt)
        self.vocabulary = check_vocabulary(model_path, target, self.path, head.n_vocab)
        if head.use_aux_hidden_state and len(boundaries) != len(head.boundaries):
            raise IncompatibleDraftError(
                f"the draft '{self.path}' reads {len(head.boundaries)} hidden states, draft_target_layers names "
                f"{len(boundaries)}: {list(boundaries)}. Name as many layers as the head reads. {offer(target)}"
            )
        check_boundaries(model_path, target, f"the draft '{self.path}'", boundaries)
        return boundaries

    def check(self, target: TargetInfo | None, checked: bool, is_all: bool) -> None:
        """Check the tensors."""
        if checked:
            head = self.head
            n_vocab, n_embd = (head.n_vocab, head.n_embd_tgt) if target is None else (target.n_vocab, target.n_embd)
            n_layer = max(self.boundaries, default=0) if target is None else target.n_layer
            check_head(self.path, n_vocab or max(1, head.n_vocab_dft), n_embd, n_layer)

    def describe(self) -> str:
        """The file and its dialect."""
        return f"head '{self.path}': {self.head.dialect} dialect"

    def make(self, place: Place, draft_type: int | None) -> Eagle3Drafter:
        """Load it."""
        return Eagle3Drafter(
            self.path,
            int(place.model),
            place.n_ctx,
            n_seq_max=place.n_seq,
            boundaries=self._layers,
            device=place.device,
            n_gpu_layers=place.n_gpu_layers,
            type=draft_type,
            type_k=place.type_k,
            type_v=place.type_v,
            n_threads=place.n_threads,
            n_batch=min(place.context_params.n_batch, _N_BATCH_MAX),
        )
