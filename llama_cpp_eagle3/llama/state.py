"""Saved states that include the drafters' state."""

from __future__ import annotations

import numpy as np
from llama_cpp.llama import LlamaState

from ..errors import IncompatibleDraftError


class Eagle3State(LlamaState):  # type: ignore[misc]
    """A `llama_cpp.LlamaState` with the drafter's state. Can be pickled, and lives in Llama's caches."""

    draft_state: bytes
    """The drafter's state of the same tokens; empty without a draft."""
    pair: tuple[str, str]
    """Fingerprints of the target and the draft that made it; the draft's is empty without one."""
    spans: list[tuple[int, int, int]]
    """Where images are: `Target.spans`."""

    def __init__(self, state: LlamaState, draft_state: bytes, pair: tuple[str, str], spans: list[tuple[int, int, int]]):
        self.__dict__.update(vars(state))
        self.draft_state = draft_state
        self.pair = pair
        self.spans = spans
        # the size that Llama's caches count
        self.llama_state_size = state.llama_state_size

    @property
    def size(self) -> int:
        """Bytes of both sides."""
        return int(self.llama_state_size) + len(self.draft_state)


def check_state(state: LlamaState, pair: tuple[str, str], n_ctx: int) -> None:
    """Raise for a state that is damaged, belongs to another pair or does not fit the context; changes nothing.

    Raises:
        TypeError, ValueError: it is no state.
        IncompatibleDraftError: it does not belong here.
    """
    if not isinstance(state, LlamaState):
        raise TypeError(f"expected what save_state() returns, found {type(state).__name__}")
    ids = np.asarray(state.input_ids)
    if (
        not isinstance(state.llama_state, bytes)
        or not state.llama_state
        or state.llama_state_size != len(state.llama_state)
        or not isinstance(getattr(state, "draft_state", b""), bytes)
        or ids.ndim != 1
        or ids.dtype.kind not in "iu"
        or not 0 <= state.n_tokens <= len(ids)
    ):
        raise ValueError("expected what save_state() returns: this state is damaged, its parts do not fit together")
    if isinstance(state, Eagle3State):
        for name, mine, other in zip(("target", "draft"), pair, state.pair, strict=True):
            # a state without a draft's side is fine: drafting then pauses until the next prompt
            if mine and other and mine != other:
                raise IncompatibleDraftError(
                    f"the state was saved with another {name}: fingerprint {other[:12]}, this one has {mine[:12]}. "
                    "Load states only into the pair that saved them."
                )
    if state.n_tokens > n_ctx:
        raise IncompatibleDraftError(
            f"the state holds {state.n_tokens} tokens, the context {n_ctx}. Create the model with a larger n_ctx."
        )
