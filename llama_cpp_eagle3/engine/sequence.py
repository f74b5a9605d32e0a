"""Sequences: what was asked for, their state in a slot, what was generated; and what a step does for them."""

from __future__ import annotations

import enum
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

from ..draft import Draft
from ..errors import ContextFullError
from ..stats import Stats
from .detokenizer import Detokenizer
from .media import Media
from .sampling import Chain

FinishReason = Literal["", "stop", "length", "cancelled", "error"]
DraftMode = Literal["auto", "chain", "tree", "off"]
DraftSource = Literal["head", "ngram"]
NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """What is drafted for a sequence."""

    mode: DraftMode = "auto"
    """ "auto": what pays best, which may be nothing; "chain": n_max tokens; "tree": a tree; "off": nothing."""
    n_max: int = 8
    """Drafted tokens that follow each other, at most."""
    n_max_ngram: int = 32
    """The same of the n-gram drafter."""
    sources: tuple[DraftSource, ...] = ("head", "ngram")
    """What may draft in mode "auto"; the other modes are the head's."""
    n_min: int = 0
    """Shorter chains are dropped."""
    p_min: float = 0.0
    """A chain ends before a token that is less likely than this."""
    tree_depth: int = 4
    tree_topk: int = 3
    tree_tokens: int = 8

    @property
    def depth(self) -> int:
        """Tokens that can follow each other in a draft at most."""
        return self.tree_depth if self.mode == "tree" else self.n_max


@dataclass(frozen=True, slots=True)
class Shift:
    """What to do when the context is full: cut tokens out of the middle, and evaluate those behind them again."""

    n_keep: int
    """Tokens at the beginning that stay."""
    n_discard: int = 0
    """Tokens behind them that go; 0 = half of what is left."""


class State(enum.Enum):
    """Whether a sequence has a slot."""

    WAITING = "waiting"
    """Waiting for a slot, or preempted."""
    RUNNING = "running"
    IDLE = "idle"
    """Has a slot that others may take: of `Llama`'s own context, between two calls."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Saved:
    """What target and draft hold of a sequence, in host memory."""

    target: bytes
    draft: bytes
    """Empty without a head."""
    n_past: int
    n_heads: int
    """Which head it was, counted from the first one that was loaded."""

    @property
    def n_bytes(self) -> int:
        """Of both sides."""
        return len(self.target) + len(self.draft)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities behind one token: of the target's logits as they are, or of what the samplers left of them."""

    token: int
    logprob: float
    top: dict[int, float]
    """The most probable tokens, as many as were asked for."""


class Sequence:
    """A prompt and the tokens generated behind it, of which target and draft have evaluated the first `n_past`.

    The rest, `tokens[n_past:]`, is pending: what is left of the prompt, or the token that was sampled last. Made by
    `Engine.add`.
    """

    __slots__ = (
        *("cache_prompt", "chain", "detokenizer", "draft", "error", "finish_reason"),
        *("is_cancelled", "is_dirty", "logits_all", "logprobs", "max_tokens", "media", "n_cached"),
        *("n_cut", "n_foreign", "n_logprobs", "n_own", "n_past", "n_prompt", "n_save", "scheduled"),
        *("prompt_logprobs", "rows", "saved", "seq_id", "seq_id_wanted", "shift", "special", "state"),
        *("stats", "tokens", "wants_logits"),
    )

    def __init__(
        self,
        tokens: SequenceOf[int],
        chain: Chain | None,
        *,
        max_tokens: int,
        draft: DraftSettings,
        detokenizer: Detokenizer | None = None,
        logprobs: int | None = None,
    ):
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        """Tokens of the prompt; those behind it were generated."""
        self.chain = chain
        self.max_tokens = max_tokens
        self.draft = draft
        self.detokenizer = detokenizer
        self.n_logprobs = logprobs
        self.wants_logits = logprobs is not None
        """Whether the logits of its rows are needed on the host."""
        self.logits_all = False
        """Whether rows of prompts have logits too."""
        self.media: list[Media] = []
        """Images in its prompt, in order. One that was evaluated is needed again only if memory goes back before it."""
        self.n_save = -1
        """Position at which its state is kept to go back to, if its memory needs that."""

        self.seq_id_wanted: int | None = None
        """The only slot that it may have."""
        self.cache_prompt = True
        """Whether its prompt may begin with a cached prefix."""
        self.special: frozenset[int] = frozenset()
        """Special tokens whose text is part of the output."""
        self.shift: Shift | None = None
        """What to do when the context is full; None: it ends then."""
        self.prompt_logprobs: list[TokenLogprob] | None = None
        """Of the prompt's tokens from the second one on, if they were asked for; that needs `logits_all`."""

        self.state = State.WAITING
        self.n_cached = -1
        """Tokens of the prompt that came from the prefix cache; -1 before it runs."""
        self.seq_id = -1
        """Its slot; -1 without one."""
        self.n_cut = 0
        """Generated tokens that were cut out of the context."""
        self.n_past = 0
        """Tokens that target and draft have evaluated; while a step is open, those accepted in it too."""
        self.scheduled: ScheduledSequence | None = None
        """Its share of the open step."""
        self.rows: list[int] = []
        """Rows of the target's last batch that belong to the last of tokens[:n_past], while they are there; -1 is the
        last one of a batch that was not the engine's."""
        self.saved: Saved | None = None
        """What target and draft held when it was preempted."""
        self.is_dirty = False
        """A step was begun and not committed: what target and draft hold has to be settled."""
        self.is_cancelled = False
        # of a sequence that code outside of the engine decodes into
        self.n_own = 0
        """Where the engine's own last batch ended; what lies behind was decoded elsewhere."""
        self.n_foreign = 0
        """Tokens before this position may have been decoded elsewhere, and cannot be evaluated again."""

        self.logprobs: list[TokenLogprob] = []
        self.stats = Stats()
        self.error: BaseException | None = None
        self.finish_reason: FinishReason = ""
        """Why it ended; empty: it has not."""

    @property
    def generated(self) -> list[int]:
        """The tokens that were generated, and not cut out of the context."""
        return self.tokens[self.n_prompt :]

    @property
    def n_generated(self) -> int:
        """All tokens that were generated."""
        return len(self.tokens) - self.n_prompt + self.n_cut

    @property
    def n_pending(self) -> int:
        """Tokens that target and draft have not evaluated."""
        return len(self.tokens) - self.n_past

    def next_chunk(self, n_max: int) -> list[int]:
        """The next tokens of a prompt: up to an image, or to the position at which the state is saved."""
        media = self.next_media()
        n_end = min(len(self.tokens) if media is None else media.first, self.n_past + n_max)
        if self.n_past < self.n_save < n_end:
            n_end = self.n_save
        return self.tokens[self.n_past : n_end]

    def next_media(self) -> Media | None:
        """The image at `n_past`, or the first one behind."""
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
        """Whether nothing more will come."""
        return self.state is State.DONE

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.state.value}: {self.n_prompt} + {self.n_generated} tokens, "
            f"{self.n_past} evaluated, seq_id {self.seq_id}{', ' + self.finish_reason if self.finish_reason else ''}>"
        )


@dataclass(slots=True)
class ScheduledSequence:
    """A sequence's share of a step: the tokens from `n_past` on that it evaluates, and the draft behind the last."""

    sequence: Sequence
    n_past: int
    tokens: list[int]
    """Pending tokens; empty if a row of the last step is sampled again."""
    is_prefill: bool
    """Whether the tokens are a chunk of a prompt."""
    media: Media | None = None
    """The image that the tokens are rows of."""
    root: int = -1
    """Row of the batch that predicts what follows the tokens; the draft's rows come next."""
    draft: Draft = NO_DRAFT
    path: list[int] = field(default_factory=list)
    """Accepted rows, counted from the sequence's first one: of `tokens`, then of accepted drafted tokens."""
    sampled: list[int] = field(default_factory=list)
    """Sampled tokens: the accepted drafted ones, and the one behind them."""
    has_logits: bool = True
    """Whether the last row has logits; not if more of the prompt follows."""
    row: int = -1
    """Row that was sampled last."""
    node: int = -1
    """The drafted token that was sampled last, and is not in the path yet; -1: the last one was not drafted."""
    is_done: bool = False
    """Whether its rows have given all that they can."""
    sample_ns: int = 0

    @property
    def first_row(self) -> int:
        """Of the batch."""
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
    """Of the batch, tokens that are evaluated again and padding included."""
    n_prefill_rows: int = 0
    """Of them, of prompts."""
    n_own_rows: int = 0
    """Of them, of the scheduled tokens and drafts."""
    only: Sequence | None = None
    """The sequence of `Llama`'s own context, if the step is for it alone."""
    candidates: list[Sequence] = field(default_factory=list)
    """The sequences that might have been scheduled, oldest first."""
    may_draft: bool = True
    draft_ns: int = 0
    verify_ns: int = 0


def check_prompt(tokens: SequenceOf[int], n_vocab: int, n_ctx: int, media: SequenceOf[Media] = ()) -> None:
    """Raise what `Engine.add` raises for a prompt that cannot be evaluated."""
    if not tokens:
        raise ValueError("expected at least one token, found none")
    if len(tokens) > n_ctx:
        raise ContextFullError(f"{len(tokens)} tokens do not fit: the context holds {n_ctx}. Use a larger n_ctx.")
    if (min(tokens) < 0 and not media) or max(tokens) >= n_vocab:
        raise ValueError(f"expected tokens in 0..{n_vocab - 1}, found {min(tokens)} to {max(tokens)}")
