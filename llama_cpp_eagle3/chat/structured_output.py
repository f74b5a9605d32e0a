"""Grammar, triggers and reasoning budget of a request, as options of the engine's `Sampling`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..engine import Reasoning
from .templates import ChatParams

_log = logging.getLogger("llama_cpp_eagle3")
_SPECIAL = re.compile(r"[.^$|()*+?\[\]{}\\]")

Tokenize = Callable[[str], list[int]]
"""Tokens of a text, special ones parsed, nothing put before or after it."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Constraints on the sampling of an answer."""

    options: dict[str, Any]
    """Of `Sampling`; without a grammar the one of the sampling stays, if it has any."""
    special: frozenset[int]
    """Special tokens that are part of its text, for `Engine.add`."""


def structured_output(
    params: ChatParams,
    tokenize: Tokenize,
    piece: Callable[[int], bytes],
    *,
    reasoning_budget: int = -1,
    reasoning_message: str = "",
) -> StructuredOutput:
    """Constrain the sampling of an answer as llama-server does.

    Args:
        params: the request.
        tokenize: the model's.
        piece: text of a token, a special one too.
        reasoning_budget: tokens that the reasoning may have; -1: no limit.
        reasoning_message: written before its end when the budget is spent.

    Raises:
        ValueError: a trigger is not among the preserved tokens.
    """
    preserved = frozenset(t[0] for t in map(tokenize, params.preserved_tokens) if len(t) == 1)
    patterns, tokens = _triggers(params, tokenize, preserved)
    options: dict[str, Any] = {
        "grammar_root": params.grammar_root,
        "grammar_lazy": params.grammar_lazy,
        "grammar_triggers": patterns,
        "grammar_trigger_tokens": tokens,
        "grammar_prefill": (),
        "reasoning": None,
        **({"grammar": params.grammar} if params.grammar else {}),
    }
    is_whole = bool(params.grammar) and not (params.grammar_lazy or params.grammar_begins_in_prompt)
    if is_whole and reasoning_budget >= 0:
        _warn_no_budget()
    elif params.thinking_start_tag and params.thinking_end_tags and (params.grammar_lazy or reasoning_budget >= 0):
        ends = [tokenize(tag) for tag in params.thinking_end_tags]
        options["reasoning"] = Reasoning(
            start=tokenize(params.thinking_start_tag),
            ends=ends,
            forced=[*(tokenize(reasoning_message) if reasoning_message else ()), *ends[0]],
            budget=reasoning_budget,
        )
    if params.grammar_begins_in_prompt or options["reasoning"] is not None:
        options["grammar_prefill"] = _prefill(params.generation_prompt, tokenize, piece)
    return StructuredOutput(options, preserved)


@cache  # once
def _warn_no_budget() -> None:
    _log.warning("the reasoning budget has no effect on requests whose `grammar` is the whole answer's")


def _triggers(params: ChatParams, tokenize: Tokenize, preserved: frozenset[int]) -> tuple[list[str], list[int]]:
    """Regular expressions and tokens that a lazy grammar waits for."""
    patterns, tokens = [], []
    for trigger in params.grammar_triggers:
        if trigger.type == "pattern":
            patterns.append(trigger.value)
        elif trigger.type == "pattern_full":
            start = "" if trigger.value.startswith("^") else "^"
            end = "" if trigger.value.endswith("$") else "$"
            patterns.append(start + trigger.value + end)
        else:
            found = tokenize(trigger.value)
            if len(found) != 1:
                patterns.append(_SPECIAL.sub(r"\\\g<0>", trigger.value))
            elif found[0] in preserved:
                tokens.append(found[0])
            else:
                raise ValueError(f"the trigger {trigger.value!r} is a token, but not among those that are preserved")
    return patterns, tokens


def _prefill(text: str, tokenize: Tokenize, piece: Callable[[int], bytes]) -> Sequence[int]:
    """Tokens of the end of the prompt that belongs to the answer."""
    tokens = tokenize(text) if text else []
    if tokens and piece(tokens[0])[:1].isspace() and not text[:1].isspace():
        return tokens[1:]  # some tokenizers put a space before a special token
    return tokens
