"""Tokenize the prompts of requests."""

from __future__ import annotations

from typing import Any

from .._core import tokenize
from ..engine.vocab import Vocab
from ..errors import ContextFullError, ModelFileError
from .api_errors import invalid, too_long


def n_prompts(value: Any) -> int:
    """Return the number of prompts in a request's `prompt`, without tokenizing them."""
    return len(value) if _is_list_of_prompts(value) else 1


def _is_list_of_prompts(value: Any) -> bool:
    return isinstance(value, list) and not any(type(item) is int for item in value)


class Tokenizer:
    """A model's tokenizer. From any thread."""

    def __init__(self, vocab: Vocab, n_ctx: int):
        """Wrap a vocabulary; n_ctx: tokens of the context that texts must fit into."""
        self.vocab, self.n_ctx = vocab, n_ctx

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Tokenize a text; add_special: add the tokens that the model wants before and after it.

        Raises:
            ApiError: the text cannot be tokenized, or cannot fit into the context.
        """
        self.check_length(text)
        try:
            data = text.encode()
        except UnicodeEncodeError as e:
            raise invalid(f"the text is not Unicode: {e}") from None
        try:
            tokens = tokenize(self.vocab.pointer, data, add_special, parse_special) if data else []
        except ModelFileError:
            raise  # the model's file is at fault, not the text
        except ValueError as e:
            raise invalid(str(e)) from None
        return tokens or ([self.vocab.bos] if add_special and self.vocab.bos >= 0 else [])

    def check_length(self, text: str) -> None:
        """Refuse a text that cannot fit into the context, before it is tokenized.

        Raises:
            ApiError: the text is too long.
        """
        try:
            self.vocab.check_length(text, self.n_ctx)
        except ContextFullError:
            raise too_long(self.vocab.n_tokens_least(text), self.n_ctx) from None

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens, special ones included; images have none."""
        return b"".join(self.vocab.piece(token, True) for token in tokens if token >= 0).decode(
            "utf-8", errors="replace"
        )

    def mixed(self, value: Any, add_special: bool, parse_special: bool, field: str = "content") -> list[int]:
        """Tokenize a text, or a list of texts and tokens.

        field: the request's field, for errors.

        Raises:
            ApiError: the value is neither, or cannot fit into the context.
        """
        if isinstance(value, str):
            return self.tokenize(value, add_special, parse_special)
        if not isinstance(value, list):
            raise invalid(f"{field}: expected a string or a list of strings and tokens, found {type(value).__name__}")
        tokens: list[int] = []
        for i, item in enumerate(value):
            if isinstance(item, str):
                if len(tokens) > self.n_ctx:
                    raise too_long(len(tokens), self.n_ctx)
                tokens += self.tokenize(item, add_special and i == 0, parse_special)
            else:
                tokens.append(self.check(item, field))
        return tokens

    def check(self, token: Any, field: str) -> int:
        """Return the token if it is one of the vocabulary, else raise ApiError; field: the request's, for errors."""
        if type(token) is not int or not 0 <= token < self.vocab.n_tokens:
            raise invalid(f"{field}: expected tokens in 0..{self.vocab.n_tokens - 1}, found {str(token)[:40]}")
        return token

    def prompts(self, value: Any) -> list[list[int]]:
        """Tokenize the prompts of a request's `prompt`: one, or a list."""
        if value is None:
            raise invalid('"prompt" is required')
        found = [self._prompt(item) for item in (value if _is_list_of_prompts(value) else [value])]
        if not found:
            raise invalid('"prompt" must not be empty')
        for tokens in found:
            if not tokens:
                raise invalid('"prompt" must not be empty: the model has no token that begins a text')
        return found

    def _prompt(self, value: Any) -> list[int]:
        if isinstance(value, dict) and "prompt_string" in value:
            if value.get("multimodal_data"):
                raise invalid("Multimodal data provided, but model does not support multimodal requests.")
            value = value["prompt_string"]
        if not isinstance(value, (str, list)):
            raise invalid(
                '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a '
                "list of mixed strings & tokens."
            )
        return self.mixed(value, add_special=True, parse_special=True, field="prompt")
