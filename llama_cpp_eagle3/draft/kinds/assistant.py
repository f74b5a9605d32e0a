"""Gemma 4 assistants (GGUF architecture gemma4-assistant): a few layers that attend to the target's K/V."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp.llama_cpp as lib

from ..._core import AssistantDrafter, TargetInfo, check_header, find_kv_difference, read_assistant
from ...errors import IncompatibleDraftError
from .fit import check_generates, check_vocabulary, check_width
from .kind import DrafterFile, Place
from .llama_context import N_SCRATCH, load_model, make_context


class GemmaAssistant(DrafterFile):
    """It reads the target's rows as a block does, and the target's K/V. llama.cpp calls it draft-mtp too."""

    source = "assistant"
    spec_types = ("draft-mtp",)
    title = "Gemma 4 assistant"
    archs = ("gemma4-assistant",)
    why_no_target = "a Gemma 4 assistant"
    is_model = takes_type = True

    def __init__(self, path: str):
        """Read the header."""
        self.path, self.file = path, read_assistant(path)
        self.n_embd_tgt, self.n_vocab = self.file.n_embd_tgt, self.file.n_vocab

    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check width, tokens and K/V."""
        check_generates(model_path, target, target.why_no_target)
        check_width(model_path, target, self.path, self.file.n_embd_tgt)
        self.vocabulary = check_vocabulary(model_path, target, self.path, self.file.n_vocab, is_exact=True)
        if difference := find_kv_difference(model_path, self.path):
            raise IncompatibleDraftError(
                f"the {self.title} '{self.path}' was made for another target than '{model_path}': {difference}"
            )
        check_header(self.path, {})
        return (target.n_layer + target.nextn,)

    def describe(self) -> str:
        """The file and its size."""
        return f"{self.title} '{self.path}': {self.file.n_layer} layers of width {self.file.n_embd}"

    def make(self, place: Place, draft_type: int | None) -> AssistantDrafter:
        """Load it, with a context that has the target's cells.

        Making that context empties the target's cells, so they must be empty.
        """
        memory = lib.llama_get_memory(place.ctx)
        if any(lib.llama_memory_seq_pos_max(memory, i) >= 0 for i in range(place.n_seq)):
            raise IncompatibleDraftError(f"'{self.path}' (the {self.title}): the target has evaluated tokens already")
        model = load_model(self.weights, place)
        own = type(place.context_params).from_buffer_copy(place.context_params)
        # cells, their layout and how sequences share them are the target's
        own.n_ctx, own.n_seq_max = lib.llama_n_ctx(place.ctx), lib.llama_n_seq_max(place.ctx)
        own.ctx_other = place.ctx
        own.n_batch = own.n_ubatch = own.n_outputs_max = max(N_SCRATCH, own.n_seq_max)
        own.n_outputs_max_per_seq = 1
        own.embeddings = False
        own.cb_eval, own.cb_eval_user_data = lib.ggml_backend_sched_eval_callback(), None
        ctx = make_context(model, own, place, f"'{self.path}' (the {self.title})", owns_model=True)
        return AssistantDrafter(
            self.file, model, ctx, n_ctx=place.n_ctx, n_seq_max=place.n_seq, n_outputs_max=own.n_outputs_max
        )
