"""llama.cpp's chat code: templates, grammars for tool calls and JSON schemas, parsers of answers."""

from collections.abc import Sequence
from typing import Any

class TemplateLimitError(ValueError):
    """A template takes too long for a conversation, or too much memory."""

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
    """Parses one answer, as a whole or as it grows: llama.cpp's `common_chat_parse`. Made by `ChatParams.new_parser`.

    `update` is for one thread at a time.
    """

    def __init__(self, format: int, generation_prompt: str, parser: str, is_continuation: bool, begun: str) -> None: ...
    def parse(self, text: str, is_partial: bool = False) -> dict[str, Any]:
        """Return the message that a text stands for, in OpenAI's form.

        Args:
            text: the whole answer, with the special tokens that the request preserves.
            is_partial: more is to come: what may still turn out to be markup is left out.

        Raises:
            ValueError: the text is not what the request's format allows, or nested too deep.
        """
    def is_straight(self, text: str) -> bool:
        """Return whether the message of a whole text has all calls and thoughts that the parser has begun to read."""
    def update(self, text_added: str, is_partial: bool = True) -> list[dict[str, Any]]:
        """Add text to the answer, and return what is new in its message.

        Args:
            text_added: whole characters.
            is_partial: more is to come; False once, with the last text, which may be empty.

        Returns:
            OpenAI's deltas, in order; one has reasoning_content, content, or one piece of one of the tool_calls.

        Raises:
            ValueError: as `parse`; the parser is of no use then.
        """
    @property
    def message(self) -> dict[str, Any]:
        """The message so far, with the ids of tool calls that the deltas had."""

def size_of_json(text: bytes | str) -> tuple[int, int, int, int]:
    """Return what a text of JSON asks of a parser.

    These are the levels of brackets within brackets, the number of commas and opening brackets, that of names and of
    numbers with a fraction, and the digits of the longest number.
    """

def without_halves(text: bytes) -> bytes:
    """Return a text of JSON in which half a pair of surrogates is a replacement character."""

def parsed_levels(text: bytes | str) -> tuple[bool, int]:
    """Return whether llama.cpp parses a text as JSON, and the levels of brackets before that ends."""

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
