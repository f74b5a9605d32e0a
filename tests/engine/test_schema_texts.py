"""Texts of random schemas: valid or said, and those without drafts, whatever samples and whatever drafts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from any_schemas import documents, unsaid
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import schema_grammar
from llama_cpp_eagle3.engine import SAMPLERS, Sampling
from llama_cpp_eagle3.engine import Sequence as Text
from llama_cpp_eagle3.models import bundled_pair
from loading import cheap_rows, finish, load

pytestmark = pytest.mark.usefixtures("no_clock")

PROMPT = b'import json\n\nA = {"a": "ab", "b": [1, 2, 2], "x1": {"a": null}}\nB = '
N = 40
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "as it is": {"temperature": -1.0},
    "hot": {"temperature": 1.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5, "top_k": 0},
    "min_p": {"min_p": 0.3},
    "typical_p": {"typical_p": 0.5},
    "repeat_penalty": {"repeat_penalty": 1.4, "temperature": 0.0},
    "other penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repeat_last_n": 20},
    "logit_bias": {"logit_bias": {40: 3.0, 41: -3.0}},
    "mirostat 1": {"mirostat_mode": 1},
    "mirostat 2": {"mirostat_mode": 2},
    "unknown dice": {"rng": "llama"},
    "in order": {"samplers": SAMPLERS},
    "in order, greedy": {"samplers": SAMPLERS, "temperature": 0.0},
    "backwards": {"samplers": SAMPLERS[::-1], "top_k": 20},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "adaptive_p": {"samplers": (*SAMPLERS[:-1], "adaptive_p"), "adaptive_target": 0.3},
    "infill": {"samplers": ("top_k", "infill", "temperature"), "top_k": 20},
}
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"draft_n_max": 4},
    "tree": {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 3, "draft_tree_tokens": 8},
    "auto": {"draft": "auto"},
    "ngram": {"draft": "auto", "draft_sources": ("ngram",)},
}


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Eagle3Llama]]:
    """The same model without drafts and with each way to draft, in kernels that round alike for any number of rows."""
    with ExitStack() as stack:
        found = {"": stack.enter_context(load(bundled_pair()[0], cpu_kernels="on"))}
        for way, options in WAYS.items():
            found[way] = stack.enter_context(load(*bundled_pair(), cpu_kernels="on", **options))
            if options.get("draft") == "auto":
                cheap_rows(found[way])
        yield found


def write(llm: Eagle3Llama, options: dict[str, Any]) -> Text:
    """Return a finished text."""
    text = llm.engine.add(llm.tokenize(PROMPT), Sampling(**options), max_tokens=N)
    finish(llm)
    assert text.result.error is None
    return text


def test_schemas_samplers_and_drafts(models: dict[str, Eagle3Llama]) -> None:
    """Every sampler with every way to draft, each with a few schemas; enough texts end to be judged."""
    cases, counts = list(product(SAMPLINGS, WAYS)), Counter[str]()

    @settings(
        max_examples=len(cases) + 20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schema=documents(), seed=st.integers(0, 2**30))
    def each(schema: Any, seed: int) -> None:
        try:
            grammar = schema_grammar(schema)
        except ValueError:
            return
        name, way = cases[counts["texts"] % len(cases)]
        counts["texts"] += 1
        options = {"grammar": grammar.text, "seed": seed} | SAMPLINGS[name]
        plain, drafted = write(models[""], options), write(models[way], options)
        assert drafted.generated == plain.generated, (name, way)
        counts["accepted"] += drafted.result.stats.accepted
        if plain.result.finish_reason == "stop":
            counts["ended"] += 1
            value = json.loads(models[""].detokenize(plain.generated))
            assert unsaid(schema, value, grammar.loosened) == [], (name, value)

    each()
    assert counts["texts"] >= len(cases), counts
    assert counts["ended"] > counts["texts"] // 3, counts
    assert counts["accepted"] > counts["texts"], counts
