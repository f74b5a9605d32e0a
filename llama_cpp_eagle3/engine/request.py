"""Requests to an engine."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from ..errors import ContextFullError
from .arguments import as_type, check_fields
from .media import Media, check_media
from .sampling import Sampling

if TYPE_CHECKING:
    from .._core import Target

DraftMode = Literal["auto", "chain", "tree", "off"]
NGRAM: Final = "ngram"
"""The name of the n-gram drafter among the sources of drafts."""
GRAMMAR: Final = "grammar"
"""The name of what a request's grammar forces among the sources of drafts."""
WITHOUT_MODEL: Final = (NGRAM, GRAMMAR)
"""The sources that need no file."""


_DEFAULT = Sampling()
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How to draft for a sequence. Lengths are in tokens."""

    mode: DraftMode = "auto"
    """ "auto": what pays best, which may be nothing; "chain": n_max tokens; "tree": a tree; "off": nothing."""
    n_max: int = 8
    """Maximum length of a chain of drafted tokens."""
    ngram_n_max: int = 64
    """Maximum length of a draft without a model: n-grams, and what a grammar forces."""
    sources: tuple[str, ...] = ("eagle3", NGRAM, GRAMMAR)
    """The drafters that mode "auto" may ask; in the other modes the first one drafts, and the grammar."""
    n_min: int = 0
    """Shorter chains are not verified."""
    p_min: float = 0.0
    """A chain ends before a token that is less likely than this."""
    tree_depth: int = 4
    """Levels of a tree."""
    tree_topk: int = 3
    """Children of each expanded node."""
    tree_tokens: int = 8
    """Nodes of a tree that are verified."""

    def __post_init__(self) -> None:
        check_fields(self)
        least = {"n_max": 0, "ngram_n_max": 0, "n_min": 0, "tree_depth": 1, "tree_topk": 1, "tree_tokens": 0}
        for name, low in least.items():
            if not low <= getattr(self, name) <= _INT_MAX:
                raise ValueError(f"expected draft_{name} in {low}..{_INT_MAX}, found {getattr(self, name)}")
        if not 0.0 <= self.p_min <= 1.0:
            raise ValueError(f"expected draft_p_min in 0..1, found {self.p_min}")

    @property
    def depth(self) -> int:
        """The greatest length of a path in a draft, in tokens."""
        return self.tree_depth if self.mode == "tree" else self.n_max


@dataclass(frozen=True, slots=True)
class Shift:
    """What to do when the context is full: cut tokens out of the middle, and evaluate those after them again."""

    n_keep: int
    """Tokens at the beginning that stay."""
    n_discard: int = 0
    """Tokens after these that are cut out; 0 = half of what is left."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.n_keep < 0 or self.n_discard < 0:
            raise ValueError(f"expected n_keep and n_discard to be 0 or more, found {self.n_keep}, {self.n_discard}")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how to continue it. Immutable."""

    tokens: SequenceOf[int]
    """The prompt."""
    sampling: Sampling = _DEFAULT
    """How tokens are sampled."""
    max_tokens: int | None = None
    """Maximum number of generated tokens; None = until the context is full."""
    stop: SequenceOf[str] = ()
    """Strings that end the text; they are cut off."""
    kept_stop: SequenceOf[str] = ()
    """Strings that end the text, and stay in it."""
    stop_tokens: Collection[int] = ()
    """Tokens that end the text, beside the model's own; they are cut off."""
    keeps_stop_tokens: bool = False
    """Whether the text of such a token stays."""
    draft: DraftSettings | None = None
    """How to draft; None = by the engine's settings."""
    logprobs: int | None = None
    """Keep the log-probabilities of each token and of so many of the most probable ones; None = of none."""
    seq_id: int | None = None
    """The slot to run in, and to continue the cached prefix of; None = any. A paced sequence continues any prefix."""
    cache_prompt: bool = True
    """Whether the prompt may begin with a cached prefix."""
    special: Collection[int] = ()
    """Special tokens whose text is part of the output."""
    exact: bool = False
    """Never exceed max_tokens, not even to complete a character."""
    media: SequenceOf[Media] = ()
    """Images in the prompt, whose rows have the prompt's negative tokens."""
    n_indent: int = 0
    """End the text at a line after the first that has fewer leading blanks than this; 0 = never."""
    shift: Shift | None = None
    """What to do when the context is full; None ends the text then."""
    boundaries: SequenceOf[int] = ()
    """Indices in the prompt at which messages begin, the answer's last: other prompts may go on differently there."""
    thought_ends: SequenceOf[SequenceOf[int]] = ()
    """Token sequences that may end the answer's thought: some clients send back the text after it changed."""
    prompt_logprobs: bool = False
    """Keep log-probabilities of the prompt's tokens too, with as many others; all of it is evaluated for that."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def reuses_prefix(self) -> bool:
        """Whether the prompt may begin with a cached prefix."""
        return self.cache_prompt and not self.prompt_logprobs

    def check(self, n_vocab: int, n_ctx: int, n_batch: int, target: Target) -> None:
        """Raise ValueError or ContextFullError for a request that cannot be run."""
        check_prompt(self.tokens, n_vocab, n_ctx, self.media)
        if self.media:
            check_media(self.tokens, self.media, n_batch, target.n_ubatch)
        if self.media and (self.shift is not None or self.prompt_logprobs):
            raise ValueError("a prompt with images has no log-probabilities, and its context cannot be shifted")
        if self.seq_id is not None and not 0 <= self.seq_id < target.n_seq:
            raise ValueError(f"expected seq_id in 0..{target.n_seq - 1}, found {self.seq_id}")
        if self.prompt_logprobs and self.logprobs is None:
            raise ValueError("prompt_logprobs needs logprobs")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"expected logprobs to be 0 or more, found {self.logprobs}")


class RequestOptions(TypedDict, total=False):
    """The fields of `Request` after the first two, for type checkers."""

    max_tokens: int | None
    stop: SequenceOf[str]
    kept_stop: SequenceOf[str]
    stop_tokens: Collection[int]
    keeps_stop_tokens: bool
    draft: DraftSettings | None
    logprobs: int | None
    seq_id: int | None
    cache_prompt: bool
    special: Collection[int]
    exact: bool
    media: SequenceOf[Media]
    n_indent: int
    shift: Shift | None
    boundaries: SequenceOf[int]
    thought_ends: SequenceOf[SequenceOf[int]]
    prompt_logprobs: bool


def token_list(tokens: Any, n_vocab: int) -> list[int]:
    """Tokens as a user gives them, negative ones of images (media.py). Raises ValueError: they are no tokens."""
    found = [*as_type("tokens", tokens, SequenceOf[int])]
    if found and not ~_INT_MAX <= min(found) <= max(found) < n_vocab:
        raise ValueError(f"expected tokens in 0..{n_vocab - 1}, found {min(found)} to {max(found)}")
    return found


def check_prompt(tokens: SequenceOf[int], n_vocab: int, n_ctx: int, media: SequenceOf[Media] = ()) -> None:
    """Raise ValueError or ContextFullError for a prompt that cannot be evaluated."""
    if not tokens:
        raise ValueError("expected at least one token, found none")
    if len(tokens) > n_ctx:
        raise ContextFullError(f"{len(tokens)} tokens do not fit: the context holds {n_ctx}. Use a larger n_ctx.")
    if (min(tokens) < 0 and not media) or max(tokens) >= n_vocab:
        raise ValueError(f"expected tokens in 0..{n_vocab - 1}, found {min(tokens)} to {max(tokens)}")
