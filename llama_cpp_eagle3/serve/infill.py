"""Fill-in-the-middle: `suffix` of /v1/completions, and llama-server's /infill."""

from __future__ import annotations

from typing import Any

from ..engine.fim import FimTokens
from .api_errors import invalid
from .tokenizer import Tokenizer

_SEPARATOR = "\n\n--- snippet ---\n\n"  # between files, for models that have no token for it
_PROJECT, _FILE = "myproject\n", "filename\n"  # llama-server's


class Infill:
    """Prompts for fill-in-the-middle, with the model's special tokens."""

    def __init__(self, tokenizer: Tokenizer, spm_infill: bool):
        """spm_infill: the suffix comes before the prefix."""
        self._tokenizer, self._spm_infill = tokenizer, spm_infill
        self._fim = FimTokens.of(tokenizer.vocab)

    @property
    def is_there(self) -> bool:
        """Whether the model supports such prompts."""
        return not self.missing

    @property
    def missing(self) -> str:
        """Names of the necessary tokens that the vocabulary lacks."""
        return self._fim.missing

    def prompt(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """Tokens of the whole prompt. The prefix may begin with the token that begins all texts."""
        return self._fim.prompt(prefix, suffix, spm=self._spm_infill)

    def files(self, chunks: list[tuple[str, str]], n_max: int) -> list[int]:
        """The last n_max tokens of other files, (name, text), which come before a prompt.

        Raises:
            ApiError: a file that is needed cannot fit into the context.
        """
        tokenizer = self._tokenizer

        def tokens_of(text: str) -> list[int]:
            return tokenizer.tokenize(text, parse_special=False)

        parts = [[self._fim.sep, *tokens_of(_FILE)]] if self._fim.sep >= 0 else []
        n_left = n_max - sum(map(len, parts))
        for name, text in reversed(chunks):
            if n_left <= 0:
                break
            head = [self._fim.sep, *tokens_of(f"{name}\n")] if self._fim.sep >= 0 else tokens_of(_SEPARATOR)
            parts.append([*head, *tokens_of(text)])
            n_left -= len(parts[-1])
        if self._fim.rep >= 0:
            parts.append([self._fim.rep, *tokens_of(_PROJECT)])
        tokens = [token for part in reversed(parts) for token in part]
        return tokens[max(0, len(tokens) - n_max) :]

    def request(self, body: dict[str, Any], n_batch: int, n_predict: int, n_ctx: int) -> list[int]:
        """The prompt of a request to /infill: as much of each text as llama-server takes.

        Raises:
            ApiError: the request is invalid.
        """
        prompt = body.get("prompt", "")
        if not isinstance(prompt, str):
            raise invalid('"prompt" must be a string')
        for name in ("input_prefix", "input_suffix"):
            if body.get(name) is None:
                raise invalid(f'"{name}" is required')
        chunks = _chunks(body.get("input_extra"))
        tokenizer = self._tokenizer
        middle = tokenizer.tokenize(prompt)
        prefix = tokenizer.mixed(body["input_prefix"], False, False, "input_prefix")
        suffix = tokenizer.mixed(body["input_suffix"], False, False, "input_suffix")
        n_suffix = max(0, n_batch // 4 - (2 + len(middle)))
        n_extra = max(0, n_ctx - n_batch - 2 * max(0, n_predict))
        return [
            *self.files(chunks, n_extra),
            *self.prompt([*prefix[-3 * (n_batch // 4) :], *middle], suffix[:n_suffix]),
        ]


def _chunks(value: Any) -> list[tuple[str, str]]:
    """(name, text) of other files."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid('"input_extra" must be an array of {"filename": string, "text": string}')
    chunks = []
    for chunk in value:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise invalid('extra_context chunk must contain a "text" field with a string value')
        if not isinstance(chunk.get("filename", ""), str):
            raise invalid('extra_context chunk\'s "filename" field must be a string')
        chunks.append((chunk.get("filename", "tmp"), chunk["text"]))
    return chunks
