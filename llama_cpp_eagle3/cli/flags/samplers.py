"""Flags of sampling. Attributes have the names of a request's fields; None: llama.cpp's default."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ...config.flag import flag, json_of, logit_bias, text_of
from ...config.sampling_options import SAMPLING_OPTIONS, samplers_of


def _letters(value: list[str] | str) -> list[str]:
    try:
        return samplers_of(value)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _samplers(text: str) -> list[str]:
    return _letters([name for name in text.split(";") if name])


def _schema_of(path: str) -> Any:
    text = text_of(path)
    try:
        return json_of(text)
    except argparse.ArgumentTypeError as e:
        raise argparse.ArgumentTypeError(f"'{path}': {e}") from None


def _breaker(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


SAMPLING = (
    flag("--samplers NAMES", "in their order, separated by ;", _samplers),
    flag("--sampler-seq --sampling-seq LETTERS", "the same by letters (default: edskypmxt)", _letters, dest="samplers"),
    flag("-s --seed N", "(default: -1, random)", int),
    *(replace(option.flag, dest=name) for name, option in SAMPLING_OPTIONS.items() if option.flag is not None),
    flag(
        "--dry-sequence-breaker TEXT",
        "instead of the default ones; may be repeated, none = none",
        _breaker,
        dest="dry_sequence_breakers",
        repeats=True,
    ),
    flag("-l --logit-bias TOKEN_ID(+/-)BIAS", "may be repeated", logit_bias, repeats=True),
    flag("--grammar GBNF", "what the text must be"),
    flag("--grammar-file FNAME", "the same from a file", text_of, dest="grammar"),
    flag("-j --json-schema SCHEMA", "the text is JSON of this schema", json_of),
    flag("-jf --json-schema-file FNAME", "the same from a file", _schema_of, dest="json_schema"),
)
