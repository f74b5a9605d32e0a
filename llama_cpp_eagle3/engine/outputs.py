"""What a step gives: sampled tokens with all that goes with them, and ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from .sequence import FinishReason, Sequence, TokenLogprob


@dataclass(slots=True)
class Output:
    """A sampled token, or the end of a sequence that ended without one."""

    sequence: Sequence
    token: int | None
    text: str = ""
    """Detokenized output that is safe to emit: whole characters that no stop string can take back."""
    drafted: bool = False
    """Whether the token had been drafted."""
    logprob: TokenLogprob | None = None
    """Of the token, if the sequence keeps them."""
    finish_reason: FinishReason = ""
    """Why the sequence ended with this; empty: it goes on."""


class Outputs(list[Output]):
    """The outputs that no caller has taken yet. They outlive a step that failed."""

    def take(self, sequences: Collection[Sequence] | None = None) -> list[Output]:
        """Those of some sequences, or all of them, in order; the others are left."""
        outputs = self[:]
        if sequences is None:
            self.clear()
            return outputs
        self.drop(sequences)
        return [output for output in outputs if output.sequence in sequences]

    def drop(self, sequences: Collection[Sequence]) -> None:
        """Drop the outputs of these sequences."""
        self[:] = [output for output in self if output.sequence not in sequences]

    def end(self, sequence: Sequence, reason: Literal["length", "cancelled", "error"]) -> None:
        """End a sequence without a token."""
        sequence.result.finish_reason = reason
        text = "" if sequence.detokenizer is None else sequence.detokenizer.release(at_end=True)
        self.append(Output(sequence, None, text, finish_reason=reason))

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence with an error."""
        sequence.result.error = error
        self.end(sequence, "error")
