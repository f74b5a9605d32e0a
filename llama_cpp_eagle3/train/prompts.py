"""Cut the prompts for acceptance figures from the held-out modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import corpus

N_PROMPTS = 40


def cut(tokenizer: Any, n_prompts: int = N_PROMPTS, n_tokens: int = 192) -> list[dict[str, str]]:
    """Prompts of about ``n_tokens`` tokens, taken in turn from every held-out module at even distances.

    A prompt starts and ends with whole lines. The newline at its end is left out: the tokenizer joins it with the
    next line's indent.
    """
    files = corpus.sources()[1]
    per_file = -(-n_prompts // len(files))
    prompts: list[dict[str, str]] = []
    for source in files:
        lines = source.text.splitlines(keepends=True)
        for i in range(per_file):
            first = len(lines) * (2 * i + 1) // (2 * per_file + 1)
            while first < len(lines) - 1 and not lines[first].strip():
                first += 1
            text = ""
            for line in lines[first:]:
                if text and len(tokenizer.encode(text + line).ids) > n_tokens:
                    break
                text += line
            prompts.append({"module": source.name, "text": text.rstrip()})
    # the second prompt of the last modules falls away
    first_ones, second_ones = prompts[::per_file], [p for i, p in enumerate(prompts) if i % per_file]
    return (first_ones + second_ones)[:n_prompts]


def write(tokenizer: Any, path: Path) -> list[dict[str, str]]:
    """Write the prompts as JSON and return them."""
    prompts = cut(tokenizer)
    path.write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
    return prompts
