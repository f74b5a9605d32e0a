"""Flags of sampling. Attributes are named as a request's fields; None: what llama.cpp does by default."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...config.flag import flag, logit_bias, one_of, text_of
from ...engine import RNGS
from ...sampler_names import samplers_of


def _samplers(text: str) -> list[str]:
    names = [name for name in text.split(";") if name]
    for name in names:
        if not samplers_of([name]):
            raise argparse.ArgumentTypeError(f"there is no sampler {name!r}")
    return samplers_of(names)


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"no JSON: {e}") from None


def _breaker(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


SAMPLING = (
    flag("--samplers", "NAMES", "in their order, separated by ;", _samplers),
    flag(
        "--sampler-seq --sampling-seq",
        "LETTERS",
        "the same by letters (default: edskypmxt)",
        samplers_of,
        dest="samplers",
    ),
    flag("-s --seed", "N", "(default: -1, random)", int),
    flag(
        "--rng",
        "NAME",
        "noise of sampling: gumbel (default), which drafts use too, or llama: llama.cpp's generator and its texts",
        one_of(RNGS),
        is_ours=True,
    ),
    flag("--ignore-eos", help="never end the text before -n tokens", dest="ignore_eos"),
    flag(
        "--temp --temperature",
        "T",
        "(default: 0.8, 0 = greedy)",
        float,
        dest="temperature",
        env="LLAMA_ARG_TEMPERATURE",
    ),
    flag("--top-k", "N", "(default: 40, 0 = off)", int, env="LLAMA_ARG_TOP_K"),
    flag("--top-p", "P", "(default: 0.95, 1 = off)", float, env="LLAMA_ARG_TOP_P"),
    flag("--min-p", "P", "(default: 0.05, 0 = off)", float, env="LLAMA_ARG_MIN_P"),
    flag("--top-nsigma --top-n-sigma", "X", "(default: -1, off)", float, dest="top_n_sigma"),
    flag("--xtc-probability", "P", "(default: 0, off)", float),
    flag("--xtc-threshold", "P", "(default: 0.1)", float),
    flag("--typical --typical-p", "P", "(default: 1, off)", float, dest="typical_p"),
    flag("--repeat-last-n", "N", "tokens that penalties look back at (default: 64, 0 = off)", int),
    flag("--repeat-penalty", "X", "(default: 1, off)", float, env="LLAMA_ARG_REPEAT_PENALTY"),
    flag("--presence-penalty", "X", "(default: 0, off)", float, env="LLAMA_ARG_PRESENCE_PENALTY"),
    flag("--frequency-penalty", "X", "(default: 0, off)", float, env="LLAMA_ARG_FREQUENCY_PENALTY"),
    flag("--dry-multiplier", "X", "(default: 0, off)", float),
    flag("--dry-base", "X", "(default: 1.75)", float),
    flag("--dry-allowed-length", "N", "(default: 2)", int),
    flag("--dry-penalty-last-n", "N", "(default: 64, 0 = off)", int),
    flag(
        "--dry-sequence-breaker",
        "TEXT",
        "instead of the default ones; may be repeated, none = none",
        _breaker,
        dest="dry_sequence_breakers",
        repeats=True,
    ),
    flag("--adaptive-target", "P", "with the sampler adaptive_p (default: -1, off)", float),
    flag("--adaptive-decay", "X", "(default: 0.9)", float),
    flag("--dynatemp-range", "X", "(default: 0, off)", float),
    flag("--dynatemp-exp", "X", "(default: 1)", float, dest="dynatemp_exponent"),
    flag("--mirostat", "N", "1 or 2 (default: 0, off)", int),
    flag("--mirostat-lr", "X", "eta (default: 0.1)", float, dest="mirostat_eta"),
    flag("--mirostat-ent", "X", "tau (default: 5)", float, dest="mirostat_tau"),
    flag("-l --logit-bias", "TOKEN_ID(+/-)BIAS", "may be repeated", logit_bias, repeats=True),
    flag("--grammar", "GBNF", "what the text must be"),
    flag("--grammar-file", "FNAME", "the same from a file", text_of, dest="grammar"),
    flag("-j --json-schema", "SCHEMA", "the text is JSON of this schema", _schema),
    flag(
        "-jf --json-schema-file",
        "FNAME",
        "the same from a file",
        lambda text: _schema(text_of(text)),
        dest="json_schema",
    ),
)
