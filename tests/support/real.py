"""Widely used models, their drafters, and prompts for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import code_prompts
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.chat import apply_request
from loading import cheap_rows

N_CTX = 1024
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
SEED = 39
OPTIONS: dict[str, Any] = {"n_ctx": N_CTX, "verbose": False}
"""Options of every model that is loaded; conftest.py adds the threads that were asked for."""


@dataclass(frozen=True)
class Real:
    """A model of models/files.json, and its drafters."""

    name: str
    draft: str | None = None
    """The value of -md: another of these models, or the bundled head."""
    drafters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Test's name of a drafter -> arguments of Eagle3Llama; with `draft` unless they name only n-grams."""

    @property
    def path(self) -> str:
        """Return the model's file, which is fetched if it is missing."""
        return str(models.fetched(self.name, print))

    @property
    def draft_path(self) -> str | None:
        """Return the drafter's file."""
        if self.draft is None:
            return None
        return str(models.fetched(self.draft, print))

    def load(self, drafter: str | None = None, **options: Any) -> Eagle3Llama:
        """Load the model with a drafter of `drafters`, or without; "ngram" drafts whatever its rows cost."""
        with_draft: dict[str, Any] = {"draft_sources": ()}
        if drafter is not None:
            with_draft = dict(self.drafters[drafter])
            if with_draft.get("draft_sources") != ("ngram",):
                with_draft["draft_model_path"] = self.draft_path
        llm = Eagle3Llama(self.path, **OPTIONS | with_draft | options)
        if drafter == "ngram":
            cheap_rows(llm)
        return llm


_NGRAM = {"ngram": {"draft": "auto", "draft_sources": ("ngram",), "draft_ngram_n_max": 5}}
_AUTO = {"auto": {"draft": "auto", "draft_sources": ("ngram",)}}
_FILE = {"auto": {}, "chain": {"draft": "chain", "draft_n_max": 4}, "tree": {"draft": "tree"}}
REAL = {
    real.name: real
    for real in (
        Real("smollm2-135m", "smollm2-135m-eagle3", _NGRAM | _FILE),
        Real("gemma-3-270m", None, _NGRAM | _AUTO),
        Real("qwen2.5-coder-0.5b", None, _NGRAM | _AUTO),
        Real("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", _NGRAM | _FILE),
    )
}


@cache
def bodies(n: int) -> list[dict[str, Any]]:
    """Return requests: `messages`, or the `text` around a hole."""
    return list(islice(code_prompts.prompts(4 * n, SEED), n))


def prompts(llm: Eagle3Llama, n: int, n_max: int) -> list[list[int]]:
    """Return the tokens of n prompts, in the chat template of a model that has one; n_max: tokens of each."""
    has_template = "tokenizer.chat_template" in llm.metadata
    found = []
    for body in bodies(n):
        text = body.get("text") or body["messages"][-1]["content"]
        if has_template and "messages" in body:
            text = apply_request(llm.chat_templates, body).prompt
        found.append(llm.tokenize(text.encode(), add_bos=True, special=has_template)[:n_max])
    return found


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the beginning that two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
