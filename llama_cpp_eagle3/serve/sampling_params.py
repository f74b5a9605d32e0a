"""A request's sampling parameters for the engine, and as llama-server's `generation_settings`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..chat import json_schema_to_grammar
from ..config.sampler_names import samplers_of
from ..config.sampling import SAMPLING_OPTIONS, names_of
from ..draft.kinds import KINDS
from ..engine import NGRAM, DraftSettings, Sampling
from .errors import invalid
from .schema import Completion, Speculative
from .tokenizer import Tokenizer

SEED_RANDOM = 0xFFFFFFFF


def sampling_of(c: Completion, tokenizer: Tokenizer, **more: Any) -> Sampling:
    """The engine's `Sampling` of a request; more: options that a chat template has set.

    Raises:
        ApiError: a schema or grammar cannot be used.
    """
    if "grammar" not in more:
        more["grammar"] = grammar_of(c)
    options = names_of({name: getattr(c, name) for name in SAMPLING_OPTIONS})
    if options["dry_base"] < 1.0:  # llama-server takes its default then
        del options["dry_base"]
    try:
        return Sampling(
            samplers=samplers_of(c.samplers),
            dry_sequence_breakers=c.dry_sequence_breakers,
            seed=c.seed & 0xFFFFFFFF,
            logit_bias=_logit_bias(c.logit_bias, tokenizer),
            keeps_probs=c.post_sampling_probs and c.n_probs > 0,
            **options,
            **more,
        )
    except ValueError as e:
        raise invalid(str(e)) from None


def grammar_of(c: Completion) -> str | None:
    """The grammar that a request asks for itself."""
    if c.json_schema is not None and not c.grammar:
        try:
            return json_schema_to_grammar(c.json_schema)
        except ValueError as e:
            raise invalid(f'"json_schema": {e}') from None
    return c.grammar or None


def _logit_bias(value: list[Any] | dict[str, Any], tokenizer: Tokenizer) -> dict[int, float]:
    """Tokens, or texts all of whose tokens are meant; false forbids. Anything else is left out, as by llama-server."""
    bias: dict[int, float] = {}
    pairs = value.items() if isinstance(value, dict) else [p for p in value if isinstance(p, list) and len(p) == 2]
    for key, amount in pairs:
        if amount is False:
            x = -math.inf
        elif isinstance(amount, (int, float)) and not isinstance(amount, bool):
            x = float(amount)
        else:
            continue
        if isinstance(key, str) and not (isinstance(value, dict) and key.lstrip("-").isdigit()):
            bias |= dict.fromkeys(tokenizer.tokenize(key, parse_special=False), x)
        elif isinstance(key, (int, str)) and 0 <= int(key) < tokenizer.vocab.n_tokens:
            bias[int(key)] = x
    return bias


def draft_of(speculative: bool | Speculative, base: DraftSettings) -> DraftSettings:
    """How to draft: the server's settings, with those of the request.

    Raises:
        ApiError: it asks for what cannot be.
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
    """The drafters, by llama.cpp's names."""
    names = {kind.source: kind.spec_types[0] for kind in KINDS} | {NGRAM: "ngram-simple"}
    if draft.mode != "auto":
        first = next((names[source] for source in draft.sources if source != NGRAM), names[KINDS[0].source])
        return "none" if draft.mode == "off" else first
    return ",".join(names[source] for source in draft.sources) or "none"


def stops_of(c: Completion) -> list[str]:
    """Strings that end the text."""
    return [c.stop] if isinstance(c.stop, str) else [word for word in c.stop if word]


def generation_settings(c: Completion, sampling: Sampling | None, draft: DraftSettings) -> dict[str, Any]:
    """All options of a request as llama-server names them. sampling: None leaves out what is long."""
    names = (
        *SAMPLING_OPTIONS,
        *("n_predict", "n_keep", "n_discard", "n_indent"),
        *("stream", "n_probs", "timings_per_token", "post_sampling_probs"),
    )
    settings: dict[str, Any] = {
        "seed": c.seed & 0xFFFFFFFF,
        **{name: getattr(c, name) for name in names},
        "max_tokens": c.n_predict,
        "samplers": samplers_of(c.samplers),
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
            "stop": stops_of(c),
            "grammar": sampling.grammar or "",
            "grammar_lazy": sampling.grammar_lazy,
            "grammar_triggers": list(sampling.grammar_triggers),
            "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias.items()],
        }
    return settings
