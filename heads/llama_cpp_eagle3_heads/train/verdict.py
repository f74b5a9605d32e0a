"""Whether a trained head helps, in plain words."""

from __future__ import annotations

import math

_USEFUL = 1.05
"""The least speed, as a multiple of plain decoding, at which a head is worth its memory."""
_WANTED = 1.1
"""The speed, as a multiple of plain decoding, for which a longer training's time is estimated."""
_PER_DOUBLING = 0.215
"""Tokens a step gained by each doubling of the answers' tokens: SmolLM2's head grew from 1.59 to 2.86 from 52,343 to
3,132,154 of them (docs/training-notes.md)."""
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
    """Say in one line whether to use the head.

    Args:
        plain: Tokens/s without a head.
        chain: Tokens/s with the head and chains of n_max tokens, capped at plain times the tokens of a step.
        auto: Tokens/s with the head and draft="auto", capped likewise.
        length: Mean acceptance length of the chains.
        n_max: Tokens of a chain.
        hours: Hours that this run took.
        n_tokens: Tokens of answers that a fresh head learned from; None = the head is --init's, trained further.
        before: Tokens/s with --init's head, the faster of both ways; None = there is none.
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
    """Say what could help. cost: the time of a step with a chain, as a multiple of one without."""
    needed = _WANTED * cost
    if needed > 0.9 * (n_max + 1):
        return (
            f"a step with such a chain takes {cost:.1f} times as long as one without on this machine, so that hardly "
            "any head would help: shorter drafts or another machine (docs/why.md)"
        )
    doublings = max(0.0, needed - length) / _PER_DOUBLING
    if n_tokens:  # a head's first doublings gain more than its later ones
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
