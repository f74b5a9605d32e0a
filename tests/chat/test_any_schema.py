"""Answers to random schemas of all keywords: each error that jsonschema finds is named in `loosened`."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from any_schemas import documents, unsaid
from grammar_texts import GrammarTexts
from llama_cpp_eagle3.chat import schema_grammar

N_TEXTS = 6


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)  # by hand: thousands, with derandomize=False
@given(schema=documents(), seed=st.integers(0, 2**30))
def test_each_rule_is_held_or_named(schema: Any, seed: int) -> None:
    try:
        grammar = schema_grammar(schema)
    except ValueError as e:
        grammar, reason = None, str(e)
    if grammar is None:
        assert "nothing" in reason
        return
    texts, dice = GrammarTexts(grammar.text), random.Random(seed)
    for _ in range(N_TEXTS):
        text = texts.write(dice)
        assert unsaid(schema, json.loads(text), grammar.loosened) == [], (text, grammar.loosened)
