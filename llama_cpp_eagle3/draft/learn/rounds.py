"""What a training learns from and is judged by, and when there is enough for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...files.json_file import read_json
from .folder import Folder, write_json
from .heads import RESULT, Heads
from .texts import TextEntry, Texts

N_ANSWER_MIN = 4000
"""Tokens of answers that no training has seen, from which on one begins."""
N_CONVERSATIONS_MIN = 30
_NEW_SHARE = 0.1
"""And so much of what was learned from before."""
_TOKENS_PER_MINUTE, _MINUTES = 1000, (5.0, 60.0)
_GATE_SHARE, _N_GATE_MIN = 10, 3
"""The gate gets a tenth of the conversations, and at least three: fewer show no error."""
PLAN = "plan.json"


def new_tokens(texts: Texts, heads: Heads) -> int:
    """Tokens of the answers that no training has seen."""
    return sum(entry.n_answer for entry in texts if entry.id > heads.learned_until)


def minutes_of(texts: Texts, heads: Heads) -> float:
    """Minutes of a training: one for each 1,000 tokens of answers that it reads, between 5 and 60."""
    low, high = _MINUTES
    return min(high, max(low, 2 * new_tokens(texts, heads) / _TOKENS_PER_MINUTE))


def why_not_yet(texts: Texts, heads: Heads, folder: Folder) -> str:
    """Why no training begins by itself; empty: one does."""
    if (folder.round / PLAN).exists():
        return ""  # one goes on
    n_new, n_conversations = new_tokens(texts, heads), len(texts.conversations())
    n_learned = texts.n_answer - n_new
    wanted = max(N_ANSWER_MIN, int(_NEW_SHARE * n_learned))
    if n_new < wanted:
        return f"of {wanted} new tokens of answers that make a training worth it there are {n_new}"
    if n_conversations < N_CONVERSATIONS_MIN:
        return f"of {N_CONVERSATIONS_MIN} conversations that judge a head there are {n_conversations}"
    return ""


@dataclass(frozen=True, slots=True)
class Division:
    """Which texts a training uses for what, by their numbers."""

    learned: list[int]
    gate: list[int]
    """The newest tenth of the conversations, and at least three."""
    last_gate: list[int]
    """Those of the last gate: no head has learned from them either."""


def divide(texts: Texts, heads: Heads) -> Division:
    """Divide the texts. Of what was learned from before as many texts stay as are new, evenly over time."""
    conversations = texts.conversations()
    n_gate = max(_N_GATE_MIN, round(len(conversations) / _GATE_SHARE))
    gate = {entry.id for texts_of in conversations[-n_gate:] for entry in texts_of}
    last = {number for number in heads.last_gate if number in texts.by_id} - gate
    roots = {texts.by_id[number].root for number in gate | last}
    left: list[TextEntry] = [entry for entry in texts if entry.root not in roots]
    old = [entry.id for entry in left if entry.id <= heads.learned_until]
    new = [entry.id for entry in left if entry.id > heads.learned_until]
    n_old = max(len(new), 32)
    kept = old if len(old) <= n_old else [old[i * len(old) // n_old] for i in range(n_old)]
    return Division([*kept, *new], sorted(gate), sorted(last))


def read_result(folder: Folder) -> dict[str, Any] | None:
    """What a training has left; None: it has not come to its end."""
    try:
        found: dict[str, Any] = read_json(folder.round / RESULT)
    except (OSError, ValueError):
        return None
    return found


def write_result(folder: Folder, result: dict[str, Any]) -> None:
    """Leave the result of a training, the last of its files."""
    write_json(folder.round / RESULT, result)
