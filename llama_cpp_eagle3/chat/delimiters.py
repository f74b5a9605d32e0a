"""What messages begin with, by rendering: for templates of which llama.cpp does not say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TEXTS = ("aaq0", "bbq1", "ccq2", "ddq3", "eeq4")
"""That no template has, the same in no other place."""


def find_beginnings(render: Callable[[list[dict[str, Any]]], str]) -> dict[str, str]:
    """[role]: all that stands before the text of its messages, of users and assistants.

    Empty where a template shows messages otherwise.

    Args:
        render: a conversation, without the beginning of an answer. It raises ValueError for what it refuses.
    """
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(_TEXTS)]
    try:
        prompt = render(messages)
    except ValueError:
        return {}
    before, at = [], 0
    for text in _TEXTS:
        found = prompt.find(text, at)
        if found < 0:
            return {}
        before.append(prompt[at:found])
        at = found + len(text)
    # what ends a user's message does not belong to the next one
    assistant = _common_end(before[1::2]).removeprefix(prompt[at:])
    return {"user": _common_end(before[0::2]), "assistant": assistant}


def common_begin(a: str, b: str) -> str:
    """What two texts both begin with."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _common_end(texts: list[str]) -> str:
    first, n = texts[0], 0
    while n < len(first) and all(text.endswith(first[len(first) - n - 1 :]) for text in texts):
        n += 1
    return first[len(first) - n :]
