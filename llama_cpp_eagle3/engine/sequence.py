"""Sequences: the request, its state in a slot, and its result; a sequence's share of a step, and what a step gives."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._core import SavedState
from .detokenizer import Detokenizer
from .draft import Draft
from .media import Media
from .request import DraftSettings, Request
from .sampler_chain import SamplerChain
from .save_plan import SavePlan
from .stats import Stats

FinishReason = Literal["", "stop", "length", "cancelled", "error"]
NO_DRAFT = Draft()


class State(enum.Enum):
    """Whether a sequence has a slot."""

    WAITING = "waiting"
    """Waiting for a slot, or preempted."""
    RUNNING = "running"
    PAUSED = "paused"
    """Its client takes no token at the moment (`Engine.next`): others may take its slot."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Saved:
    """What target and drafters held of a sequence, in host memory."""

    target: bytes
    draft: bytes
    """Empty without a head."""
    n_past: int
    drafters_id: int
    """Which drafters saved it: 1 for those of the first loading, and one more each time they are replaced."""

    @property
    def n_bytes(self) -> int:
        """Bytes of both sides."""
        return len(self.target) + len(self.draft)


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What target and drafters hold of some tokens, for a file; or only states of these tokens."""

    tokens: list[int]
    target: bytes
    """Empty: it has only states."""
    draft: bytes
    """Empty without a head."""
    states: list[tuple[int, SavedState]]
    """(tokens, state): where its memory can go back to."""
    n_turn: int = 0
    """Where its last answer begins; 0: not known."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities of one token: by the target's unchanged logits, or of the candidates that samplers left."""

    token: int
    logprob: float
    top: dict[int, float]
    """The most probable tokens, as many as were requested."""


@dataclass(slots=True)
class Result:
    """The result of a sequence so far, besides its tokens and their text."""

    finish_reason: FinishReason = ""
    """Why it ended; empty: it has not ended."""
    error: BaseException | None = None
    """The error that ended it, if one did."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the generated tokens, if they were requested."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """Log-probabilities of the prompt's tokens from the second one on, if they were requested."""
    stats: Stats = field(default_factory=Stats)


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """A prompt and the tokens generated after it, of which target and draft have evaluated the first `n_past`.

    The rest, `tokens[n_past:]`, is pending: what is left of the prompt, or the token that was sampled last. Made by
    `Engine.add`.
    """

    request: Request
    max_tokens: int
    draft: DraftSettings
    chain: SamplerChain | None = None
    """Samples tokens; None: only the prompt is evaluated, or the sequence has ended."""
    detokenizer: Detokenizer | None = None
    """Makes the tokens' text."""
    is_paced: bool = False
    """Whether its client takes each token by `Engine.next`; else a step samples all that it can."""
    result: Result = field(init=False)

    # what the next steps evaluate
    tokens: list[int] = field(init=False)
    n_prompt: int = field(init=False)
    """Tokens of the prompt; those after it were generated."""
    media: list[Media] = field(init=False)
    """Images in its prompt, in order. One that was evaluated is needed again only if memory goes back before it."""
    n_cut: int = 0
    """Generated tokens that were cut out of the context."""
    wants_logits: bool = field(init=False)
    """Whether the logits of its rows are needed on the host."""
    logits_all: bool = field(init=False)
    """Whether rows of prompts have logits too."""
    is_cancelled: bool = False
    is_retried: bool = False
    """Whether it was evaluated again because its logits were no numbers, which is tried once."""
    keeps: bool = True
    """Whether its text may be kept for learning, if any are."""
    kept_rows: list[tuple[int, npt.NDArray[np.float16]]] = field(default_factory=list)
    """(position, hidden states from there on) of its text so far, if texts are kept."""

    # its slot
    state: State = field(init=False)
    seq_id: int = -1
    """Its slot; -1 without one."""
    n_past: int = 0
    """Tokens that target and draft have evaluated; while a step is open, those accepted in it too."""
    n_cached: int = -1
    """Tokens of the prompt that came from the prefix cache; -1 before it runs."""
    cached_in: str = ""
    """Where these were: "slot", "host" or "disk"."""
    saves: SavePlan = field(default_factory=SavePlan)
    """Where its state is saved."""
    scheduled: ScheduledSequence | None = None
    """Its share of the open step."""
    rows: list[int] = field(default_factory=list)
    """Rows of the target's last batch for the last of tokens[:n_past], while they exist; -1: the last row of a batch
    that was not the engine's."""
    saved: Saved | None = None
    """What target and drafters held when it was preempted."""
    is_dirty: bool = False
    """A step was begun and not committed: target and drafters must be settled."""

    def __post_init__(self) -> None:
        request = self.request
        self.result = Result(prompt_logprobs=[] if request.prompt_logprobs else None)
        self.tokens, self.n_prompt, self.media = list(request.tokens), len(request.tokens), list(request.media)
        self.wants_logits, self.logits_all = request.logprobs is not None, request.prompt_logprobs
        self.state = State.PAUSED if self.is_paced else State.WAITING

    @property
    def generated(self) -> list[int]:
        """The generated tokens, without those that were cut out of the context."""
        return self.tokens[self.n_prompt :]

    @property
    def n_generated(self) -> int:
        """Number of generated tokens, those that were cut out of the context included."""
        return len(self.tokens) - self.n_prompt + self.n_cut

    @property
    def n_pending(self) -> int:
        """Tokens that target and draft have not evaluated."""
        return len(self.tokens) - self.n_past

    def next_chunk(self, n_max: int) -> list[int]:
        """The next tokens of a prompt: up to an image, or to a position at which the state is saved."""
        media = self.next_media()
        n_end = min(len(self.tokens) if media is None else media.first, self.n_past + n_max)
        n_save = self.saves.next_place(self.n_past)
        return self.tokens[self.n_past : n_end if n_save is None else min(n_end, n_save)]

    def next_media(self) -> Media | None:
        """The image at `n_past`, or the first one after it."""
        return next((m for m in self.media if m.end > self.n_past), None)

    @property
    def lacks_media(self) -> bool:
        """Whether the rows of a pending image are missing."""
        pending = self.tokens[self.n_past : self.n_prompt]
        if min(pending, default=0) >= 0:
            return False
        known = {i for m in self.media for i in range(m.first, m.end)}
        return any(t < 0 and i not in known for i, t in enumerate(pending, self.n_past))

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.state is State.DONE

    def __repr__(self) -> str:
        reason = self.result.finish_reason
        return (
            f"<Sequence {self.state.value}: {self.n_prompt} + {self.n_generated} tokens, "
            f"{self.n_past} evaluated, seq_id {self.seq_id}{', ' + reason if reason else ''}>"
        )


@dataclass(slots=True)
class ScheduledSequence:
    """A sequence's share of a step: the tokens from `n_past` on that it evaluates, and the draft after them."""

    sequence: Sequence
    n_past: int
    tokens: list[int]
    """Pending tokens; empty if a row of the last step is sampled again."""
    is_prefill: bool
    """Whether the tokens are a chunk of a prompt."""
    media: Media | None = None
    """The image that the tokens are rows of."""
    root: int = -1
    """Row of the batch that predicts the token after `tokens`; the draft's rows come next."""
    draft: Draft = NO_DRAFT
    path: list[int] = field(default_factory=list)
    """Accepted rows, counted from the sequence's first row: those of `tokens`, then of accepted drafted tokens."""
    sampled: list[int] = field(default_factory=list)
    """Sampled tokens: the accepted drafted ones, and the one after them."""
    has_logits: bool = True
    """Whether the last row has logits: it has none if more of the prompt follows."""
    row: int = -1
    """Row that was sampled last."""
    node: int = -1
    """Index in the draft of the token that was sampled last, not in `path` yet; -1: that token was not drafted."""
    is_done: bool = False
    """Whether all of its rows that can be sampled are."""
    sample_ns: int = 0

    @property
    def first_row(self) -> int:
        """Its first row in the batch."""
        return self.root + 1 - len(self.tokens)

    @property
    def rows(self) -> list[int]:
        """The path as rows of the batch."""
        first = self.root + 1 - len(self.tokens)
        return [first + row for row in self.path]


@dataclass(slots=True)
class Step:
    """One pass of the target: what is scheduled for it, and how long its parts took."""

    scheduled: list[ScheduledSequence]
    n_rows: int = 0
    """Rows of the batch, tokens that are evaluated again included."""
    n_prefill_rows: int = 0
    """Those of them that belong to prompts."""
    n_own_rows: int = 0
    """Those of them that belong to the scheduled tokens and drafts."""
    candidates: list[Sequence] = field(default_factory=list)
    """The sequences that could have been scheduled, the oldest first."""
    may_draft: bool = True
    draft_ns: int = 0
    verify_ns: int = 0


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
    """The token's log-probability, if the sequence keeps them."""
    finish_reason: FinishReason = ""
    """Why the sequence ended with this output; empty: it goes on."""
    drafted_by: tuple[str, ...] = ()
    """The drafters that had proposed the token, as in `draft_sources`; empty: none of these had."""


class Outputs(list[Output]):
    """The outputs that no caller has taken yet. They outlive a step that failed."""

    def take(self, sequences: Collection[Sequence] | None = None) -> list[Output]:
        """Take the outputs of some sequences, or all, in order; the others are left."""
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
