"""Cut prompts from the library's files: from held-out modules for figures, from the others for the head's training."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.files.whole_file import write_whole

from . import corpus

N_PROMPTS = 40
N_BEGINNINGS = 4000
N_TOKENS_MAX = 256
"""The longest beginning, in tokens: half of the context, since the target writes the other half."""


def cut(tokenizer: Any, n_prompts: int = N_PROMPTS, n_tokens: int = 192) -> list[dict[str, str]]:
    """Cut prompts of about ``n_tokens`` tokens, taken in turn from every held-out module at even distances."""
    files = corpus.sources()[1]
    per_file = -(-n_prompts // len(files))
    prompts: list[dict[str, str]] = []
    for source in files:
        lines = source.text.splitlines(keepends=True)
        for i in range(per_file):
            first = len(lines) * (2 * i + 1) // (2 * per_file + 1)
            prompts.append({"module": source.name, "text": _lines_from(lines, first, tokenizer, n_tokens)})
    # the second prompt of the last modules falls away
    first_ones, second_ones = prompts[::per_file], [p for i, p in enumerate(prompts) if i % per_file]
    return (first_ones + second_ones)[:n_prompts]


def _lines_from(lines: Sequence[str], first: int, tokenizer: Any, n_tokens: int) -> str:
    """Return whole lines from the next one with code on: at most ``n_tokens`` tokens, unless one line has more.

    The newline at the end is left out: the tokenizer joins it with the next line's indent.
    """
    while first < len(lines) - 1 and not lines[first].strip():
        first += 1
    text = ""
    for line in lines[first:]:
        if text and len(tokenizer.encode(text + line).ids) > n_tokens:
            break
        text += line
    return text.rstrip()


def beginnings(tokenizer: Any, n: int = N_BEGINNINGS, seed: int = 1) -> list[dict[str, str]]:
    """Cut texts of random length from random lines of the training files, which the target is to continue."""
    rng = random.Random(seed)
    files = corpus.sources()[0]
    chosen = rng.choices(files, [len(source.text) for source in files], k=n)
    found = []
    for source in chosen:
        lines = source.text.splitlines(keepends=True)
        first, n_tokens = rng.randrange(len(lines)), rng.randint(16, N_TOKENS_MAX)
        found.append({"text": _lines_from(lines, first, tokenizer, n_tokens)})
    return [beginning for beginning in found if beginning["text"]]


def write(tokenizer: Any, path: Path) -> list[dict[str, str]]:
    """Write the prompts as JSON and return them."""
    prompts = cut(tokenizer)
    write_whole(path, json.dumps(prompts, indent=1) + "\n")
    return prompts


def write_beginnings(tokenizer: Any, path: Path, n: int = N_BEGINNINGS) -> None:
    """Write the beginnings as JSON Lines, for ``train -f``."""
    write_whole(path, "".join(json.dumps(line) + "\n" for line in beginnings(tokenizer, n)))
