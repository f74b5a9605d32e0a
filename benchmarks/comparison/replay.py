"""Replay recorded texts: every pass of the target is computed, only the sampled tokens are replaced.

Drafts are accepted as if a model had written those texts, at real cost and from real hidden states. A
file has one JSON object per line, with the texts `prompt` and `answer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_cpp_eagle3.engine import ScheduledSequence
from llama_cpp_eagle3.files.text_file import read_lines


@dataclass(frozen=True)
class Recorded:
    """A recorded prompt and its answer, as tokens."""

    prompt: list[int]
    answer: list[int]


def read(path: str | Path, n_max: int | None = None) -> list[tuple[str, str]]:
    """Read the first n_max prompts and answers of a file.

    Raises:
        ValueError: a line is no object with these two texts.
    """
    found = []
    for i, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt, answer = entry["prompt"], entry["answer"]
            if not isinstance(prompt, str) or not isinstance(answer, str) or not prompt or not answer:
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f'\'{path}\', line {i}: expected {{"prompt": TEXT, "answer": TEXT}}, found {line[:80]}'
            ) from None
        found.append((prompt, answer))
    if not found:
        raise ValueError(f"'{path}' has no conversations")
    return found[:n_max]


def tokens_of(text: tuple[str, str], tokenize: Callable[[bytes, bool], list[int]], n_max: int) -> Recorded:
    """Tokenize a recorded text, of the answer n_max tokens at most. tokenize: (text, whether it begins the prompt)."""
    prompt, answer = text
    return Recorded(tokenize(prompt.encode(), True), tokenize(answer.encode(), False)[:n_max])


class Replay:
    """A hook for `Stepper.on_sample`: the sequence continues with `answer` after its prompt."""

    def __init__(self) -> None:
        self.answer: Sequence[int] = ()

    def __call__(self, part: ScheduledSequence, token: int) -> int:
        """Return the token to continue with, in place of the drawn one."""
        i = len(part.sequence.tokens) - part.sequence.n_prompt
        return self.answer[i] if i < len(self.answer) else token
