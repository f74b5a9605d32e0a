"""The schema of requests: the fields of llama-server and OpenAI, with their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from ..config.sampling import SAMPLING_OPTIONS, types_and_defaults
from ..engine.sampling import SAMPLERS
from .errors import invalid

_INT_MAX = 2**31 - 1
M = TypeVar("M", bound=BaseModel)


def _clamp(low: float, high: float) -> AfterValidator:
    return AfterValidator(lambda x: type(x)(min(max(x, low), high)))


Count = Annotated[int, Field(ge=0, le=_INT_MAX)]
CountOrAll = Annotated[int, Field(ge=-1, le=_INT_MAX)]

ALIASES = {
    "n_predict": ("max_completion_tokens", "max_tokens"),
    "n": ("n_cmpl",),
    "n_probs": ("logprobs",),
}
"""Field -> other names for it; the first that is there counts."""
MESSAGE_ALONE = ("n", *ALIASES["n"])
"""What APIs do not have whose answers are one message."""


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
    """The options of everything that generates, without those of samplers."""

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
    stop: str | list[str] = []

    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] = -1
    dry_sequence_breakers: Annotated[list[str], Field(min_length=1)] = ["\n", ":", '"', "*"]
    n_probs: Count = 0
    post_sampling_probs: bool = False
    samplers: list[str] | str = list(SAMPLERS)
    logit_bias: list[Any] | dict[str, Any] = []
    grammar: str = ""
    grammar_lazy: bool = False
    json_schema: dict[str, Any] | bool | None = None
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


def parse(kind: type[M], body: Any, defaults: Mapping[str, Any] | None = None) -> M:
    """Parse a request's options, by any of their names, with the server's defaults.

    Raises:
        ApiError: what is wrong with which field.
    """
    given = _given(body)
    asked = {}
    for name, aliases in ALIASES.items():
        asked[name] = next((alias for alias in (name, *aliases) if alias in given), name)
        value = given.get(asked[name])
        for alias in (name, *aliases):
            given.pop(alias, None)
        if value is not None:
            given[name] = value
    dotted = {name.removeprefix("speculative."): given[name] for name in given if name.startswith("speculative.")}
    if dotted and isinstance(given.get("speculative", {}), dict):
        given["speculative"] = dotted | given.get("speculative", {})
    return parse_object(kind, {**(defaults or {}), **given}, asked)


def parse_object(kind: type[M], body: Any, asked: Mapping[str, str] | None = None) -> M:
    """Parse a request's body. Fields that are null count as missing.

    asked: names of fields by which the request has them, where it has others.

    Raises:
        ApiError: what is wrong with which field.
    """
    try:
        return kind.model_validate(_given(body))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        field, *inner = map(str, first["loc"] or ("",))
        name = ".".join(((asked or {}).get(field, field), *inner))
        raise invalid(f"Field '{name}': {first['msg']}") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def _given(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    return {name: value for name, value in body.items() if value is not None}
