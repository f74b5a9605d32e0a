"""What becomes of sequences: tokens as text, and ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from .sequence import Sequence
from .vocab import Vocab


@dataclass(slots=True)
class Output:
    """A token as it came, or the end of a sequence that ended without one."""

    sequence: Sequence
    token: int | None
    text: str
    """What is new of the text: whole characters, nothing that a stop string may still take back."""
    drafted: bool = False
    """Whether the token had been drafted."""


class Outputs:
    """What has come of all sequences since somebody took it."""

    def __init__(self, vocab: Vocab):
        self.vocab = vocab
        self._outputs: list[Output] = []

    def __len__(self) -> int:
        return len(self._outputs)

    def take(self) -> list[Output]:
        """All of it, in the order in which it came."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def forget(self, sequences: Collection[Sequence]) -> None:
        """Nothing is told of these."""
        self._outputs = [output for output in self._outputs if output.sequence not in sequences]

    def end(self, sequence: Sequence, reason: Literal["stop", "length", "cancelled", "error"]) -> None:
        """A sequence ends without a token."""
        sequence.finish_reason = reason
        text = "" if sequence.detokenizer is None else sequence.detokenizer.release(at_end=True)
        self._outputs.append(Output(sequence, None, text))

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """An error ends a sequence."""
        sequence.error = error
        self.end(sequence, "error")

    def add(self, s: Sequence, token: int) -> None:
        """A token came: go on, or end the text."""
        text = s.detokenizer
        assert text is not None
        if token in self.vocab.eog:
            s.tokens.pop()
            s.finish_reason = "stop"
        else:
            piece = self.vocab.piece(token, token in s.special)
            n = s.n_generated
            if text.add(piece, may_wait=n < s.max_tokens + text.n_complete):
                if text.stop and text.find_stop():
                    s.finish_reason = "stop"
                elif (text.n_indent and text.find_outdent()) or n >= s.max_tokens:
                    s.finish_reason = "length"
        self._outputs.append(Output(s, token, text.release(at_end=bool(s.finish_reason)), s.drafted))
