"""A conversation becomes a request: the one door for the server, `create_chat_completion` and the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..engine import Vocab
from ..engine.request import RequestOptions
from ..media import TIMEOUT_S, Projector, Prompt, take_media
from .blocks import LeftOut
from .boundaries import message_boundaries, thought_ends
from .history import read_messages
from .request import apply_request
from .structured_output import structured_output
from .templates import ChatParams, ChatTemplates

_LEFT_OUT = LeftOut()


class Tokenize(Protocol):
    """Tokens of a text, special ones parsed."""

    def __call__(self, text: str, add_special: bool = False) -> list[int]:
        """add_special: with those that the model wants before and after a text."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation as the engine takes it."""

    tokens: list[int]
    """The prompt."""
    sampling: dict[str, Any]
    """Options of `Sampling`: grammar, triggers, a limit of the reasoning."""
    options: RequestOptions
    """Others of `Request`: media, special tokens, where messages begin, what ends a thought."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a prompt, with rules for its answer."""

    params: ChatParams
    files: Sequence[bytes] = ()
    """Images and sounds; a marker stands for each in the prompt."""
    projector: Projector | None = None

    def prompt(self, tokenize: Tokenize) -> Prompt:
        """Its tokens, and its images.

        Raises:
            ValueError: an image cannot be used.
        """
        if self.projector is not None and self.files:
            return self.projector.prompt(self.params.prompt, self.files)
        return Prompt(tokenize(self.params.prompt, True), [])

    def request(self, tokenize: Tokenize, vocab: Vocab, budget: int = -1, message: str = "") -> ChatRequest:
        """The request for an answer.

        Args:
            tokenize: the model's.
            vocab: the same.
            budget: tokens that the reasoning may have; -1: no limit.
            message: written before its end when the budget is spent.

        Raises:
            ValueError: it cannot be generated.
        """
        params, prompt = self.params, self.prompt(tokenize)
        rules = structured_output(
            params,
            tokenize,
            lambda token: vocab.piece(token, True),
            reasoning_budget=budget,
            reasoning_message=message,
        )
        options: RequestOptions = {
            "media": prompt.media,
            "special": rules.special,
            "boundaries": message_boundaries(params, prompt.tokens, tokenize),
            "thought_ends": thought_ends(params, tokenize),
        }
        return ChatRequest(prompt.tokens, rules.options, options)


def _no_file(source: Any, deadline: float) -> bytes:
    raise ValueError("files are not read here")


def read_conversation(
    body: Mapping[str, Any],
    templates: ChatTemplates,
    *,
    projector: Projector | None = None,
    load: Callable[[Any, float], bytes] = _no_file,
    left_out: LeftOut = _LEFT_OUT,
    **defaults: Any,
) -> Conversation:
    """Read a request's messages and files, and render them.

    Args:
        body: the request in OpenAI's form, or with messages in Anthropic's; see `apply_request`.
        templates: the model's.
        projector: encodes files; None: messages may not name any.
        load: a file, by what a message says of it, until a time of `time.monotonic`.
        left_out: is told the types of blocks that are left out; by default one of the process.
        **defaults: options of `apply_request` for what the request leaves open.

    Raises:
        MediaError: a file cannot be read.
        ValueError: something is not as it should be; the message is for the client.
    """
    messages: Any = read_messages(body.get("messages"), left_out)
    files: list[bytes] = []
    if projector is not None and isinstance(messages, list):
        deadline = time.monotonic() + TIMEOUT_S
        messages, files = take_media(messages, projector.marker, lambda source: load(source, deadline))
    given = {name: value for name, value in body.items() if value is not None}
    params = apply_request(templates, {**given, "messages": messages}, has_markers=bool(files), **defaults)
    return Conversation(params, files, projector)
