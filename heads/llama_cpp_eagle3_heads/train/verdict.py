"""Whether a trained head helps, in plain words."""

from __future__ import annotations

import math

_USEFUL = 1.05
"""Times as fast as plain decoding, from which on a head is worth its memory."""
_WANTED = 1.1
"""What the time is told for that a head needs which does not help yet."""
_PER_DOUBLING = 0.215
"""SmolLM2's head grew from 1.59 to 2.86 tokens a step from 52,343 to 3,132,154 tokens of answers: so much for each
doubling (docs/training.md)."""
_LENGTH_THERE, _TOKENS_THERE = 1.59, 52_343
_DAYS_MAX = 30


def verdict(
    plain: float,
    chain: float,
    auto: float,
    *,
    length: float,
    n_max: int,
    hours: float,
    n_tokens: int | None,
    before: float | None = None,
) -> str:
    """One line.

    Args:
        plain: tokens/s without a head.
        chain: with chains of n_max tokens from it; at most as much faster as it has tokens a step.
        auto: with draft="auto", likewise.
        length: mean acceptance length of the chains.
        n_max: length of the chains.
        hours: that this run took.
        n_tokens: of answers that a fresh head learned from; None = it went on from another head.
        before: tokens/s with that one, the better of both ways.
    """
    if not (plain > 0 and chain > 0 and auto > 0):
        return "no verdict: nothing was generated from the held-out prompts"
    told = f"{chain / plain:.2f} of plain with chains of {n_max}, {auto / plain:.2f} with draft='auto'"
    best = max(chain, auto)
    if before is not None:
        told += f"; {best / before:.2f} times the head of --init"
    if best >= _USEFUL * plain and (before is None or best >= before):
        how = "" if auto >= chain else f", with --spec-draft-n-max {n_max} and a fixed draft"
        return f"use this: {best / plain:.2f} times plain{how} ({told})"
    if best >= _USEFUL * plain:
        return f"do not use this, but the head of --init: {told}"
    return f"do not use this: {told}; {_more(plain / chain * length, length, n_max, hours, n_tokens)}"


def _more(cost: float, length: float, n_max: int, hours: float, n_tokens: int | None) -> str:
    """What would have to be done. cost: of a step with a chain, in passes without one."""
    needed = _WANTED * cost
    if needed > 0.9 * (n_max + 1):
        return (
            f"a step with such a chain takes {cost:.1f} times as long as one without on this machine, so that hardly "
            "any head would help: shorter drafts or another machine (docs/why.md)"
        )
    doublings = max(0.0, needed - length) / _PER_DOUBLING
    if n_tokens:  # young heads grow faster at first than they go on
        there = _TOKENS_THERE * 2 ** ((needed - _LENGTH_THERE) / _PER_DOUBLING)
        doublings = max(doublings, math.log2(there / n_tokens))
    more = hours * 2.0**doublings
    if more > 24 * _DAYS_MAX:
        time = f"more than {_DAYS_MAX} days"
    elif more > 48:
        time = f"about {more / 24:.0f} days"
    else:
        time = f"about {more:.1f} hours" if more < 10 else f"about {more:.0f} hours"
    return (
        f"at this rate {time} would give {_WANTED:g} of plain ({needed:.1f} tokens a step instead of {length:.2f}, if "
        "it grows as SmolLM2's head did): --resume --minutes N goes on"
    )
