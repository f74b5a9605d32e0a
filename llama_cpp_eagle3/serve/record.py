"""`--record`: prompts and answers as JSON Lines, from which `train -f` takes its prompts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ..files.line_file import LineFile, LineWriter
from .answer import Answer
from .api_errors import ApiError
from .tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_FLAG = "--record-max-size"
LEFT_OUT = "requests with images, errors, and answers that were cancelled or are empty are left out"


def open_record(path: Path, n_bytes_max: int, tokenizer: Tokenizer) -> LineWriter[Answer]:
    """Open the file, and log that prompts and answers are recorded in it.

    Raises:
        OSError: see `LineFile`.
    """
    file = LineFile(path, n_bytes_max)
    _log.info(
        "prompts and answers are recorded in '%s': %.1f MiB of at most %.1f (%s); %s",
        *(file.path, file.n_bytes / 2**20, n_bytes_max / 2**20, _FLAG, LEFT_OUT),
    )

    def line_of(answer: Answer) -> bytes | None:
        if not _is_whole(answer):
            return None
        # a text may hold half of a surrogate pair, which JSON can escape and UTF-8 cannot encode
        return json.dumps({"text": prompt_text(tokenizer, answer.prompt), "answer": answer.text}).encode() + b"\n"

    return LineWriter(file, line_of, _FLAG, "recorded")


def _is_whole(answer: Answer) -> bool:
    """Whether an answer is recorded: it is complete and not empty, and its prompt has no images."""
    has_ended = answer.end is not None and answer.end.finish_reason in ("stop", "length")
    return has_ended and bool(answer.text) and min(answer.prompt) >= 0  # images are tokens below 0


def prompt_text(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text that is tokenized to a prompt: special tokens included, BOS left out."""
    text = tokenizer.detokenize(tokens[1:] if tokens[0] == tokenizer.vocab.bos else tokens)
    spaceless = text.removeprefix(" ")  # SentencePiece adds a space
    if spaceless != text:
        try:
            if tokenizer.tokenize(spaceless, True) == tokens:
                return spaceless
        except (ApiError, ValueError):  # the prompt was given as tokens that no text gives
            pass
    return text
