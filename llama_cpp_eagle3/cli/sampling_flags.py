"""Turns the flags of sampling into the engine's options: llama.cpp's samplers, in its order."""

from __future__ import annotations

import argparse
from typing import Any

from ..chat import json_schema_to_grammar
from ..config.sampling_options import names_of
from ..engine import SAMPLERS, Engine, SamplerChain, Sampling
from .flags import SAMPLING


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a request that the flags set.

    Raises:
        ValueError: a schema cannot become a grammar, or there is a grammar too.
    """
    names = {flag.attribute for flag in SAMPLING}
    found = {
        name: value for name, value in vars(args).items() if name in names and value is not None and value is not False
    }
    if "dry_sequence_breakers" in found:
        found["dry_sequence_breakers"] = [text for text in found["dry_sequence_breakers"] if text != "none"]
    if "json_schema" in found:
        if "grammar" in found:
            raise ValueError("--grammar and --json-schema exclude each other")
        found["grammar"] = json_schema_to_grammar(found.pop("json_schema"))
    return found


def sampling_of(args: argparse.Namespace) -> Sampling:
    """How tokens are drawn.

    Raises:
        ValueError: an option is invalid.
    """
    options = names_of(given(args))
    options["seed"] = options.get("seed", -1) & 0xFFFFFFFF
    options["logit_bias"] = dict(options.get("logit_bias", ()))
    return Sampling(**{"samplers": SAMPLERS, **options})


def sampling_for(engine: Engine, args: argparse.Namespace) -> Sampling:
    """The same, for a model that is loaded.

    Raises:
        ValueError: it cannot sample so: the grammar cannot be used, or an option names tokens that it does not have.
    """
    sampling = sampling_of(args)
    SamplerChain(sampling, engine.vocab, engine.n_ctx)
    return sampling
