"""The fields of requests: llama-server's and OpenAI's, their limits, and the engine's options that they set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from ..chat import CONSTRAINTS, LeftOut
from ..config.sampling_options import SAMPLING_OPTIONS, samplers_of, types_and_defaults
from ..draft.kinds import KINDS
from ..engine.request import GRAMMAR, NGRAM, WITHOUT_MODEL, DraftSettings
from ..engine.sampling import SAMPLERS, Sampling
from .api_errors import invalid
from .tokenizer import Tokenizer

SEED_RANDOM = 0xFFFFFFFF
"""The seed that means a random one; seeds have these bits."""
_INT_MAX = 2**31 - 1
M = TypeVar("M", bound=BaseModel)


def _clamp(low: float, high: float) -> AfterValidator:
    return AfterValidator(lambda x: type(x)(min(max(x, low), high)))


Count = Annotated[int, Field(ge=0, le=_INT_MAX)]
CountOrAll = Annotated[int, Field(ge=-1, le=_INT_MAX)]

ALIASES = {
    "n_predict": ("max_completion_tokens", "max_tokens", "max_new_tokens"),
    "min_tokens": ("min_new_tokens",),
    "stop": ("stop_sequences",),
    "n": ("n_cmpl",),
    "n_probs": ("logprobs",),
    "repeat_penalty": ("repetition_penalty",),
    "include_stop_str_in_output": ("no_stop_trim",),
}
"""Field -> other names for it; the first one that a request has counts."""
MESSAGE_ALONE = ("n", *ALIASES["n"])
"""Fields that are missing in APIs whose answer is one message."""


def _words(value: str | list[str]) -> list[str]:
    """Strings that end a text: one, or a list."""
    return [value] if isinstance(value, str) else [word for word in value if word]


if TYPE_CHECKING:
    Words: TypeAlias = list[str]
    Samplers: TypeAlias = list[str]
else:
    Words = Annotated[str | list[str], AfterValidator(_words)]
    Samplers = Annotated[list[str] | str, AfterValidator(samplers_of)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class StreamOptions(_Request):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Speculative(_Request):
    """How to draft for one request; fields that are left out are the server's."""

    n_max: Annotated[int, Field(ge=0, le=64)] | None = None
    n_min: Annotated[int, Field(ge=0, le=64)] | None = None
    p_min: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    mode: Literal["auto", "chain", "tree", "off"] | None = None


class _Completion(_Request):
    """The options of all requests that generate, without those of samplers."""

    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    verbose: bool = False
    timings_per_token: bool = False
    cache_prompt: bool = True
    return_tokens: bool = False
    return_progress: bool = False
    response_fields: list[str] = []
    id_slot: CountOrAll = -1
    echo: bool = False
    suffix: str | None = None

    n_predict: CountOrAll = -1
    n: Annotated[int, Field(ge=1)] = 1
    n_keep: CountOrAll = 0
    n_discard: Count = 0
    n_indent: Count = 0
    t_max_predict_ms: Annotated[int, Field(ge=-1)] = -1
    stop: Words = []
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] = []
    min_tokens: Count = 0
    bad_words: list[str] = []
    allowed_token_ids: Annotated[list[int], Field(min_length=1)] | None = None

    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] = -1
    dry_sequence_breakers: Annotated[list[str], Field(min_length=1)] = ["\n", ":", '"', "*"]
    n_probs: Count = 0
    post_sampling_probs: bool = False
    samplers: Samplers = list(SAMPLERS)
    logit_bias: list[Any] | dict[str, Any] = []
    grammar: str = ""
    grammar_lazy: bool = False
    lora: list[Any] = []

    ignore_eos: bool  # of samplers too; here for type checkers

    speculative: bool | Speculative = True


def _field(name: str, hint: Any, default: Any) -> tuple[Any, Any]:
    option = SAMPLING_OPTIONS[name]
    if option.clamp is not None:
        return Annotated[hint, _clamp(*option.clamp)], default
    return (hint if option.limits is None else Annotated[hint, Field(**option.limits)]), default


if TYPE_CHECKING:
    Completion = _Completion
else:
    Completion = create_model(
        "Completion",
        __base__=_Completion,
        __doc__="The options of everything that generates. Defaults are llama-server's.",
        **{name: _field(name, *known) for name, known in types_and_defaults().items()},
    )


COMPLETION_FIELDS = (
    CONSTRAINTS | Completion.model_fields.keys() | {name for names in ALIASES.values() for name in names}
)
"""Fields that all requests which generate have."""


def parse(kind: type[M], body: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> M:
    """Parse a request's options, by any of their names, with the server's defaults. Fields that are null are missing.

    Raises:
        ApiError: what is wrong with which field.
    """
    given = {name: value for name, value in body.items() if value is not None}
    asked = {}
    for name, aliases in ALIASES.items():
        asked[name] = next((alias for alias in (name, *aliases) if alias in given), name)
        value = given.get(asked[name])
        for alias in (name, *aliases):
            given.pop(alias, None)
        if value is not None:
            given[name] = value
    if asked["repeat_penalty"] == "repetition_penalty" and given["repeat_penalty"] != 1.0:
        given.setdefault("repeat_last_n", _INT_MAX)  # vLLM's penalty looks at the whole text
    dotted = {name.removeprefix("speculative."): given[name] for name in given if name.startswith("speculative.")}
    if dotted and isinstance(given.get("speculative", {}), dict):
        given["speculative"] = dotted | given.get("speculative", {})
    return parse_object(kind, {**(defaults or {}), **given}, asked)


def parse_object(kind: type[M], given: Mapping[str, Any], asked: Mapping[str, str] | None = None) -> M:
    """Parse fields that are not null. asked: the names that the request uses, if it uses others.

    Raises:
        ApiError: what is wrong with which field.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as e:
        errors = e.errors(include_url=False)
        places = [_place(given, error) for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
        field, *inner = max(places, key=len)  # of the types that a field may have, the one that the value is most like
        said = [error["msg"] for error, place in zip(errors, places, strict=False) if place == [field, *inner]]
        message = ", or ".join([said[0], *(text.removeprefix("Input should be ") for text in dict.fromkeys(said[1:]))])
        name = ".".join(((asked or {}).get(field, field), *inner))
        raise invalid(f"Field '{name}': {message}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def _place(given: Any, error: ErrorDetails) -> list[str]:
    """Where in a request an error is, without pydantic's names of the types that were tried."""
    place: list[str] = []
    value, is_missing = given, error["type"] == "missing"
    for key in error["loc"]:
        if isinstance(value, Mapping) and (key in value or (is_missing and key == error["loc"][-1])):
            place, value = [*place, str(key)], value.get(key)
        elif isinstance(value, list) and type(key) is int and key < len(value):
            place, value = [*place, str(key)], value[key]
    return place or [""]


def sampling_of(c: Completion, tokenizer: Tokenizer, ignored: LeftOut, **more: Any) -> Sampling:
    """The engine's `Sampling` of a request.

    ignored: is told what has no effect. more: options that a chat template has set.

    Raises:
        ApiError: an option cannot be used.
    """
    options = {option.name or name: getattr(c, name) for name, option in SAMPLING_OPTIONS.items()}
    if options["dry_base"] < 1.0:  # llama-server takes its default then
        del options["dry_base"]
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in getattr(c, name) or ():
            tokenizer.check(token, f"Field '{name}'")
    try:
        return Sampling(
            samplers=c.samplers,
            dry_sequence_breakers=c.dry_sequence_breakers,
            seed=c.seed & SEED_RANDOM,
            logit_bias=_logit_bias(c.logit_bias, tokenizer, ignored) if c.logit_bias else {},
            keeps_probs=c.post_sampling_probs and c.n_probs > 0,
            min_tokens=c.min_tokens,
            bad_words=_tokens_of_words(c.bad_words, tokenizer),
            allowed_tokens=c.allowed_token_ids,
            **options,
            **{"grammar": c.grammar or None, **more},
        )
    except ValueError as e:
        raise invalid(str(e)) from None


def _logit_bias(value: list[Any] | dict[str, Any], tokenizer: Tokenizer, ignored: LeftOut) -> dict[int, float]:
    """Biases of tokens, or of all tokens of texts; false forbids. Some clients send those of another vocabulary."""
    bias: dict[int, float] = {}
    for pair in value.items() if isinstance(value, dict) else value:
        key, amount = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else (None, None)
        if not isinstance(amount, (int, float)) or not isinstance(key, (int, str)) or amount is True or key is True:
            raise invalid(f"Field 'logit_bias': expected tokens or texts with numbers or false, found {pair!r:.80}")
        x = -math.inf if amount is False else float(amount)
        if isinstance(key, str) and not (isinstance(value, dict) and key.removeprefix("-").isdecimal()):
            bias |= dict.fromkeys(tokenizer.tokenize(key, parse_special=False), x)
        elif int(key) >= tokenizer.vocab.n_tokens:
            ignored.tell(["logit_bias of tokens that the vocabulary lacks"])
        else:
            bias[tokenizer.check(int(key), "Field 'logit_bias'")] = x
    return bias


def _tokens_of_words(words: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Tokens of each word, at the beginning of a text and after a blank, as in vLLM."""
    found = []
    for word in words:
        for text in (word.lstrip(), f" {word.lstrip()}"):
            tokens = tokenizer.tokenize(text, parse_special=False)
            if tokens and tokens not in found:
                found.append(tokens)
    return found


def draft_of(speculative: bool | Speculative, base: DraftSettings) -> DraftSettings:
    """How to draft: the server's settings, with those of the request.

    Raises:
        ApiError: n_min is more than n_max.
    """
    if speculative is True:
        return base
    if speculative is False or speculative.n_max == 0:
        return replace(base, mode="off")
    asked = {name: value for name, value in speculative.model_dump().items() if value is not None}
    draft = replace(base, **asked)
    if "n_max" in asked:
        draft = replace(draft, ngram_n_max=draft.n_max)
    if draft.n_min > draft.n_max:
        raise invalid(f"Field 'speculative': n_min {draft.n_min} is more than n_max {draft.n_max}")
    return draft


def _types(draft: DraftSettings) -> str:
    """The drafters, by llama.cpp's names; it has none for what a grammar forces."""
    names = {kind.source: kind.spec_types[0] for kind in KINDS} | {NGRAM: "ngram-simple"}
    if draft.mode != "auto":
        first = next((names[source] for source in draft.sources if source not in WITHOUT_MODEL), names[KINDS[0].source])
        return "none" if draft.mode == "off" else first
    return ",".join(names[source] for source in draft.sources if source != GRAMMAR) or "none"


def generation_settings(c: Completion, sampling: Sampling | None, draft: DraftSettings) -> dict[str, Any]:
    """All options of a request as llama-server names them. sampling: None leaves out what is long."""
    names = (
        *SAMPLING_OPTIONS,
        *("n_predict", "n_keep", "n_discard", "n_indent"),
        *("stream", "n_probs", "timings_per_token", "post_sampling_probs"),
    )
    settings: dict[str, Any] = {
        "seed": c.seed & SEED_RANDOM,
        **{name: getattr(c, name) for name in names},
        "max_tokens": c.n_predict,
        "samplers": c.samplers,
        "speculative.types": _types(draft),
        "speculative.mode": draft.mode,
        "speculative.n_max": draft.n_max,
        "speculative.n_min": draft.n_min,
        "speculative.p_min": draft.p_min,
        "chat_format": "Content-only",
        "lora": [],
    }
    if sampling is not None:
        settings |= {
            "dry_sequence_breakers": c.dry_sequence_breakers,
            "stop": c.stop,
            "grammar": sampling.grammar or "",
            "grammar_lazy": sampling.grammar_lazy,
            "grammar_triggers": list(sampling.grammar_triggers),
            "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias.items()],
        }
    return settings
