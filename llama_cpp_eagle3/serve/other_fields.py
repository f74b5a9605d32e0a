"""Fields that requests bring and this server does not have: the one table of what happens to each.

A field that is in no table is ignored, and the log names it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..chat import LeftOut
from .api_errors import invalid

NOTHING = "nothing depends on it"
_ON_THE_ANSWER = "another answer would come without it"


@dataclass(frozen=True, slots=True)
class OtherField:
    """A field, and what happens to it."""

    why: str
    """What happens if it is ignored, for the log, errors and docs."""
    is_refused: bool = False
    """Whether a request with it is a 400; else it is ignored, and the log says so once."""
    plain: tuple[Any, ...] = ()
    """Values that ask for nothing: they are taken without a word."""
    same_as: str = ""
    """A field whose value asks for nothing here either."""


def _silent(*names: str) -> dict[str, OtherField]:
    return dict.fromkeys(names, OtherField(NOTHING))


def _ignored(*names: str, why: str, plain: tuple[Any, ...] = ()) -> dict[str, OtherField]:
    return dict.fromkeys(names, OtherField(why, plain=plain))


def _refused(*names: str, why: str = _ON_THE_ANSWER, plain: tuple[Any, ...] = ()) -> dict[str, OtherField]:
    return dict.fromkeys(names, OtherField(why, is_refused=True, plain=plain))


OTHER_FIELDS: dict[str, OtherField] = {
    **_silent("model", "user", "metadata", "store", "service_tier", "safety_identifier", "request_id", "rid"),
    **_silent("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_salt", "client_metadata"),
    "best_of": OtherField("one text is generated for each choice", is_refused=True, plain=(1,), same_as="n"),
    **_refused("use_beam_search", plain=(False,), why="texts are sampled"),
    **_refused("truncate_prompt_tokens", plain=(-1,), why="a prompt is not cut"),
    **_refused("stop_regex", "banned_strings", "logits_processors", "custom_logit_processor", plain=("", [])),
    **_refused("no_repeat_ngram_size", plain=(0,)),
    **_refused("documents", plain=([],), why="texts to answer from belong into a message"),
    **_refused("system", "system_prompt", "instructions", plain=("", []), why="they are a message of the role system"),
    **_refused("dimensions", why="vectors have the size of the model"),
    **_refused("conversation", "previous_response_id", why="answers are not kept: send the whole conversation"),
    **_refused("background", plain=(False,), why="answers are not kept"),
    **_ignored("length_penalty", plain=(1.0,), why="it belongs to beam search"),
    **_ignored("early_stopping", plain=(False,), why="it belongs to beam search"),
    **_ignored("skip_special_tokens", plain=(True,), why="special tokens have no text"),
    **_ignored("spaces_between_special_tokens", plain=(True,), why="special tokens have no text"),
    **_ignored("include_reasoning", "separate_reasoning", "stream_reasoning", plain=(True,), why="thoughts are sent"),
    **_ignored(
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_hidden_states",
        plain=(False,),
        why="only text is sent",
    ),
    **_ignored("prompt_logprobs", why="`echo` with `logprobs` of /v1/completions gives them"),
    **_ignored("priority", plain=(0,), why="the queue is first come, first served"),
    **_ignored("truncation", plain=("disabled",), why="a prompt is not cut"),
    **_ignored("verbosity", plain=("medium",), why="templates know no such thing"),
    **_ignored("n", "n_cmpl", plain=(1,), why="an answer is one message here"),
}
"""Field -> what happens to it."""

INNER: dict[str, frozenset[str]] = {
    "output_config": frozenset({"format", "effort"}),
    "reasoning": frozenset({"effort", "max_tokens", "enabled", "summary", "generate_summary"}),
    "speculative": frozenset({"n_max", "n_min", "p_min", "mode"}),
    "stream_options": frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"}),
    "text": frozenset({"format"}),
    "thinking": frozenset({"type", "budget_tokens"}),
}
"""Field -> the fields in it that are read, or on which nothing depends."""
_DOTTED = frozenset(f"speculative.{name}" for name in INNER["speculative"])


def _all(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a request, and those inside of some that are not read, by their paths."""
    for name, value in body.items():
        yield name, value
        if name in INNER and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", value[key]) for key in value if key not in INNER[name])


def check_others(body: Mapping[str, Any], known: Collection[str], ignored: LeftOut) -> None:
    """Look at the fields of a request that nothing reads.

    known: the fields that are read. ignored: is told the names of those that are ignored.

    Raises:
        ApiError: a field cannot be ignored.
    """
    names = []
    for name, value in _all(body):
        if value is None or name in known or name in _DOTTED:
            continue
        field = OTHER_FIELDS.get(name)
        if field is not None and (field.why == NOTHING or value in (*field.plain, body.get(field.same_as))):
            continue
        if field is not None and field.is_refused:
            raise invalid(f"Field '{name}' is not supported: {field.why}")
        names.append(name)
    if names:
        ignored.tell(names)
