"""llama.cpp's chat code: templates, grammars for tool calls and JSON schemas, parsers of answers."""

from collections.abc import Sequence
from typing import Any

class Templates:
    """A model's chat templates, or one template. From any thread."""

    def __init__(self, model: int, source: str, bos_token: str, eos_token: str) -> None:
        """model: address of a llama_model, or 0; source: a template instead of the model's own, or "" """
    def apply(self, request: str) -> dict[str, Any]:
        """Render a request, which is JSON; the result has how its answer is sampled and parsed."""
    def source(self, variant: str = "") -> str:
        """Jinja source of the default template, or of the variant "tool_use"; empty if there is no such variant."""
    @property
    def is_explicit(self) -> bool: ...
    @property
    def caps(self) -> dict[str, bool]: ...
    @property
    def supports_thinking(self) -> bool: ...

class Parser:
    """Parses one answer, as a whole or as it grows. `update` is for one thread at a time."""

    def __init__(self, format: int, generation_prompt: str, parser: str, is_continuation: bool) -> None: ...
    def parse(self, text: str, is_partial: bool) -> dict[str, Any]:
        """Return the message that a text stands for, in OpenAI's form."""
    def update(self, text_added: str, is_partial: bool) -> list[dict[str, Any]]:
        """Add text to the answer; return what is new in its message, as OpenAI's deltas."""
    @property
    def message(self) -> dict[str, Any]:
        """The message so far."""

def json_nesting(json: str) -> int:
    """Return how deep the brackets of a JSON text are nested."""

def format_name(format: int) -> str:
    """Return the name of a format of answers, as llama-server writes it."""

def json_schema_to_grammar(schema: str) -> str:
    """Return GBNF of what a JSON schema, given as JSON, allows."""

def reasoning_sampler(
    vocab: int,
    grammar: int,
    lazy: bool,
    start: Sequence[int],
    ends: Sequence[Sequence[int]],
    forced: Sequence[int],
    budget: int,
    prefill: Sequence[int],
) -> int:
    """Return the address of a new llama_sampler, which owns the grammar's at `grammar` (or 0).

    A lazy grammar does not look at what stands between `start` and one of the `ends`; after `budget` tokens there,
    `forced` ends it.
    """

def reasoning_budget_sampler(reasoning: int) -> int:
    """Return the address of a new llama_sampler that applies a reasoning_sampler's budget, and must not outlive it."""
