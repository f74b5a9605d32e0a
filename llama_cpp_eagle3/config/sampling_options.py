"""The options of samplers that flags and requests set: `engine.Sampling` has their names, types, defaults and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from ..engine.sampling import RNGS, Sampling
from .flag import Flag, flag, one_of

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingOption:
    """Everything about an option that is not in `Sampling`."""

    flag: Flag | None = None
    clamp: tuple[float, float] | None = None
    """(least, greatest): a request's number outside of this range becomes the nearer one."""
    limits: Mapping[str, Any] | None = None
    """Limits (ge, gt, le) of a request's number; beyond them the request is refused."""
    name: str = ""
    """The name in `Sampling`; empty: it is that in requests."""


_COUNT = {"ge": 0, "le": _INT_MAX}
_SHARE = (0.0, 1.0)

SAMPLING_OPTIONS: Mapping[str, SamplingOption] = {
    "rng": SamplingOption(
        flag(
            "--rng NAME",
            "noise of sampling: gumbel (default), which drafts use too, or llama: llama.cpp's generator and its texts",
            one_of(RNGS),
            is_ours=True,
        )
    ),
    "ignore_eos": SamplingOption(flag("--ignore-eos", "never end the text before -n tokens")),
    "temperature": SamplingOption(
        flag("--temp --temperature T LLAMA_ARG_TEMPERATURE", "(default: 0.8, 0 = greedy)", float), clamp=(0.0, 1e9)
    ),
    "top_k": SamplingOption(flag("--top-k N LLAMA_ARG_TOP_K", "(default: 40, 0 = off)", int), clamp=(0, _INT_MAX)),
    "top_p": SamplingOption(flag("--top-p P LLAMA_ARG_TOP_P", "(default: 0.95, 1 = off)", float), clamp=_SHARE),
    "min_p": SamplingOption(flag("--min-p P LLAMA_ARG_MIN_P", "(default: 0.05, 0 = off)", float), clamp=_SHARE),
    "top_n_sigma": SamplingOption(flag("--top-nsigma --top-n-sigma X", "(default: -1, off)", float)),
    "xtc_probability": SamplingOption(flag("--xtc-probability P", "(default: 0, off)", float), clamp=_SHARE),
    "xtc_threshold": SamplingOption(flag("--xtc-threshold P", "(default: 0.1)", float), clamp=_SHARE),
    "typical_p": SamplingOption(flag("--typical --typical-p P", "(default: 1, off)", float)),
    "repeat_last_n": SamplingOption(
        flag("--repeat-last-n N", "tokens that penalties look back at (default: 64, 0 = off)", int), limits=_COUNT
    ),
    "repeat_penalty": SamplingOption(
        flag("--repeat-penalty X LLAMA_ARG_REPEAT_PENALTY", "(default: 1, off)", float), limits={"gt": 0.0}
    ),
    "presence_penalty": SamplingOption(
        flag("--presence-penalty X LLAMA_ARG_PRESENCE_PENALTY", "(default: 0, off)", float)
    ),
    "frequency_penalty": SamplingOption(
        flag("--frequency-penalty X LLAMA_ARG_FREQUENCY_PENALTY", "(default: 0, off)", float)
    ),
    "dry_multiplier": SamplingOption(flag("--dry-multiplier X", "(default: 0, off)", float)),
    "dry_base": SamplingOption(flag("--dry-base X", "(default: 1.75)", float)),
    "dry_allowed_length": SamplingOption(flag("--dry-allowed-length N", "(default: 2)", int), limits=_COUNT),
    "dry_penalty_last_n": SamplingOption(flag("--dry-penalty-last-n N", "(default: 64, 0 = off)", int), limits=_COUNT),
    "adaptive_target": SamplingOption(
        flag("--adaptive-target P", "with the sampler adaptive_p (default: -1, off)", float), clamp=(-1e9, 1.0)
    ),
    "adaptive_decay": SamplingOption(
        flag("--adaptive-decay X", "(default: 0.9)", float), limits={"ge": 0.0, "le": 0.99}
    ),
    "dynatemp_range": SamplingOption(flag("--dynatemp-range X", "(default: 0, off)", float)),
    "dynatemp_exponent": SamplingOption(flag("--dynatemp-exp X", "(default: 1)", float)),
    "mirostat": SamplingOption(
        flag("--mirostat N", "1 or 2 (default: 0, off)", int), clamp=(0, 2), name="mirostat_mode"
    ),
    "mirostat_eta": SamplingOption(flag("--mirostat-lr X", "eta (default: 0.1)", float)),
    "mirostat_tau": SamplingOption(flag("--mirostat-ent X", "tau (default: 5)", float)),
    "min_keep": SamplingOption(limits=_COUNT),
}
"""Options by their names in requests; those that have another form there (seed, samplers, grammar, ...) are missing."""


_CHARS = {
    "d": "dry",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "m": "min_p",
    "t": "temperature",
    "x": "xtc",
    "i": "infill",
    "e": "penalties",
    "a": "adaptive_p",
}
"""llama.cpp's samplers by the letters of llama-server's flags."""
_NAMES = {
    **{name.replace("_", ""): name for name in _CHARS.values()},
    "typicalp": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
}
"""llama.cpp's samplers by their names in requests and flags, in lower case and without underscores."""


def names_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names in `Sampling`. given: options by their names in requests."""
    options = SAMPLING_OPTIONS
    return {(options[name].name or name) if name in options else name: value for name, value in given.items()}


def types_and_defaults() -> dict[str, tuple[Any, Any]]:
    """Name in requests -> type and default of `Sampling`."""
    types, defaults = get_type_hints(Sampling), {f.name: f.default for f in fields(Sampling)}
    return {
        field: (types[option.name or field], defaults[option.name or field])
        for field, option in SAMPLING_OPTIONS.items()
    }


def samplers_of(value: list[str] | str) -> list[str]:
    """llama.cpp's names of samplers that are given by llama-server's names or letters.

    Raises:
        ValueError: there is no such sampler.
    """
    words = value if isinstance(value, str) else [name.lower().replace("_", "").replace("-", "") for name in value]
    known = _CHARS if isinstance(value, str) else _NAMES
    unknown = [given for given, word in zip(value, words, strict=True) if word not in known]
    if unknown:
        names = _CHARS if isinstance(value, str) else _CHARS.values()
        raise ValueError(f"there is no sampler {unknown[0]!r:.40}: expected some of {', '.join(names)}")
    return [known[word] for word in words]
