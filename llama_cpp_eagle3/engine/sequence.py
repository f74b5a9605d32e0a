"""One text on its way: what was asked for, how far it is, and its share of the pass that is open."""

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

DraftMode = Literal["auto", "chain", "tree", "off"]
DraftSource = Literal["head", "mtp", "ngram"]
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
    """What to do when the context is full: cut tokens out of the middle, and read what came behind them again."""

    n_keep: int
    """Tokens at the beginning that stay."""
    n_discard: int = 0
    """Tokens behind them that go; 0 = half of what is left."""


class State(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    """It has no slot yet, or lost it to others that were there before, and gets one when there is room."""
    RUNNING = "running"
    IDLE = "idle"
    """It has a slot, which others may take: nothing runs at the moment."""
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
    """A text: tokens that are known, and how many of them target and draft have taken in.

    What lies between, `tokens[n_past:]`, is pending: a prompt that is being read, or the one token that was sampled
    last. Made by `Engine.add`.
    """

    __slots__ = (
        *("cache_prompt", "chain", "detokenizer", "draft", "drafted", "error", "finish_reason"),
        *("is_cancelled", "is_dirty", "logits_all", "logprobs", "max_tokens", "media", "n_cached"),
        *("n_cut", "n_foreign", "n_logprobs", "n_own", "n_past", "n_prompt", "n_save", "part"),
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
        """Tokens that were given; what lies behind was generated."""
        self.chain = chain
        self.max_tokens = max_tokens
        self.draft = draft
        self.detokenizer = detokenizer
        self.n_logprobs = logprobs
        self.wants_logits = logprobs is not None
        """Whether somebody looks at the logits of its rows, so that they must not stay on a device."""
        self.logits_all = False
        """Whether rows of prompts have logits too."""
        self.media: list[Media] = []
        """Images in its prompt, in order. What was taken in is needed again only if memory goes back before it."""
        self.n_save = -1
        """Position at which its state is kept to go back to, if its memory needs that."""

        self.seq_id_wanted: int | None = None
        """The only slot that it may have."""
        self.cache_prompt = True
        """Whether it may begin with what others left behind."""
        self.special: frozenset[int] = frozenset()
        """Special tokens that are part of its text."""
        self.shift: Shift | None = None
        """How it goes on when the context is full; None: it ends then."""
        self.prompt_logprobs: list[TokenLogprob] | None = None
        """Of the prompt's tokens from the second one on, if they were asked for; that needs `logits_all`."""

        self.state = State.WAITING
        self.n_cached = -1
        """Tokens of the prompt that did not have to be read, since others had left them behind; -1 before it runs."""
        self.seq_id = -1
        """Of target and draft; -1 without a slot."""
        self.n_cut = 0
        """Generated tokens that were cut out of the context."""
        self.n_past = 0
        """Tokens that target and draft have taken in; while a round is open, those of it that were accepted too."""
        self.part: ScheduledSequence | None = None
        self.rows: list[int] = []
        """Rows of the target's last decode that belong to the last of tokens[:n_past], while they are there; -1 is the
        last one of a decode that was not the engine's."""
        self.saved: Saved | None = None
        """What target and draft held when it was put aside."""
        self.is_dirty = False
        """A pass was begun and not settled: what target and draft hold has to be looked at."""
        self.is_cancelled = False
        # of a text that others decode into, such as images
        self.n_own = 0
        """Where the engine's own last decode ended; what lies behind is somebody else's."""
        self.n_foreign = 0
        """Tokens before this position may be such, and cannot be evaluated again."""

        self.drafted = False
        """Whether the token that came last had been drafted."""
        self.logprobs: list[TokenLogprob] = []
        self.stats = Stats()
        self.error: BaseException | None = None
        self.finish_reason: Literal["", "stop", "length", "cancelled", "error"] = ""
        """Why it ended: the model or a stop string ended it, max_tokens or the context was reached, ..."""

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
        """Tokens that target and draft have not taken in."""
        return len(self.tokens) - self.n_past

    def next_media(self) -> Media | None:
        """The image that stands where it goes on, or the first one behind that."""
        return next((m for m in self.media if m.end > self.n_past), None)

    @property
    def lacks_media(self) -> bool:
        """Whether an image is pending that nobody has."""
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
            f"{self.n_past} taken in, seq_id {self.seq_id}{', ' + self.finish_reason if self.finish_reason else ''}>"
        )


@dataclass(slots=True)
class ScheduledSequence:
    """A sequence's share of a pass: pending tokens from `n_past` on, and what was drafted behind the only one."""

    sequence: Sequence
    n_past: int
    tokens: list[int]
    """What was pending; empty if the row of an earlier pass is used again."""
    is_prefill: bool
    """Whether it belongs to a prompt, rather than to a round of generation."""
    media: Media | None = None
    """The image that its tokens are rows of."""
    root: int = -1
    """Row of the pass that says what follows the pending tokens; those of the draft come next."""
    draft: Draft = NO_DRAFT
    path: list[int] = field(default_factory=list)
    """Rows of accepted tokens, counted from the part's first one: those of `tokens`, 1 + i for token i of the draft."""
    sampled: list[int] = field(default_factory=list)
    """What the target said: the drafted tokens that were accepted, and the one behind them."""
    has_logits: bool = True
    """Whether its last row has logits: that of a piece of a prompt has none."""
    row: int = -1
    """Row that was sampled last."""
    node: int = -1
    """Token of the draft that was sampled last and is not in the path yet; -1: none."""
    ended: bool = False
    """Nothing more can be sampled from its rows."""
    sample_ns: int = 0

    @property
    def first_row(self) -> int:
        """Of the pass."""
        return self.root + 1 - len(self.tokens)

    @property
    def rows(self) -> list[int]:
        """Those of the path, of the pass."""
        first = self.root + 1 - len(self.tokens)
        return [first + row for row in self.path]


@dataclass(slots=True)
class Step:
    """One pass of the target, from its drafts to its end."""

    parts: list[ScheduledSequence]
    by_hand: bool
    """Whether it is for a held sequence alone."""
    n_rows: int
    """Of the pass, with tokens that it evaluates once more."""
    prefill_budget: int
    """Of them, of prompts."""
    n_part_rows: int = 0
    """Of them, of the parts themselves, drafts included."""
    draft_ns: int = 0
    verify_ns: int = 0


def check_prompt(tokens: SequenceOf[int], n_vocab: int, n_ctx: int, media: SequenceOf[Media] = ()) -> None:
    """Raise what `Engine.add` raises for a prompt that cannot be read."""
    if not tokens:
        raise ValueError("expected at least one token, found none")
    if len(tokens) > n_ctx:
        raise ContextFullError(f"{len(tokens)} tokens do not fit: the context holds {n_ctx}. Use a larger n_ctx.")
    if (min(tokens) < 0 and not media) or max(tokens) >= n_vocab:
        raise ValueError(f"expected tokens in 0..{n_vocab - 1}, found {min(tokens)} to {max(tokens)}")
