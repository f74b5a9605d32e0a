"""An answer becomes a message, whole or as it grows: parsed, and in OpenAI's form of a chat."""

from __future__ import annotations

import logging
import math
from typing import Any

from ..engine import TokenLogprob, Vocab
from .templates import ChatParams

_log = logging.getLogger("llama_cpp_eagle3")

Message = dict[str, Any]
"""A message in OpenAI's form: role, content, and reasoning_content and tool_calls if there are any."""


class GrowingMessage:
    """An answer as it is parsed.

    A text that does not have the chat template's format is sent unparsed, after what was sent before: a model can write
    anything, and may be cut off anywhere.
    """

    def __init__(self, params: ChatParams):
        self._parser = params.new_parser()
        self._text = ""
        self._unparsed: Message | None = None
        """The message, once the model has written something that the format does not allow."""

    def add(self, text: str, is_partial: bool = True) -> list[Message]:
        """Add text to the answer; returns OpenAI's deltas. is_partial: more is to come."""
        self._text += text
        if self._unparsed is None:
            try:
                return self._parser.update(text, is_partial)
            except ValueError as e:
                _log.warning("an answer does not have the format of its chat template: %s", str(e)[:200])
                self._unparsed = dict(self._parser.message)
        sent = self._unparsed.get("content") or ""
        if self._unparsed.get("tool_calls") or not self._text.startswith(sent):
            return []  # text that was sent cannot be taken back
        self._unparsed["content"] = self._text
        return [{"content": self._text[len(sent) :]}] if len(self._text) > len(sent) else []

    @property
    def message(self) -> Message:
        """The whole message so far."""
        message = dict(self._parser.message if self._unparsed is None else self._unparsed)
        if not message.get("content") and not message.get("tool_calls") and not message.get("reasoning_content"):
            message["content"] = message.get("content") or ""
        return {"role": "assistant", **message}


class OpenAIChoice:
    """One answer as a choice of a chat.completion, or as chunks: the role, the message's deltas, the finish reason."""

    def __init__(self, params: ChatParams, head: dict[str, Any], index: int = 0):
        """head: fields that all chunks have. index: of the choice."""
        self._message = GrowingMessage(params)
        self._head = {**head, "object": "chat.completion.chunk"}
        self._index = index
        self._has_begun = False

    def role(self) -> dict[str, Any]:
        """The chunk that comes before all others."""
        self._has_begun = True
        return self._chunk({"role": "assistant", "content": None}, None)

    def begin(self) -> list[dict[str, Any]]:
        """That chunk, unless it was returned already."""
        return [] if self._has_begun else [self.role()]

    def add(self, text: str, is_partial: bool = True) -> list[dict[str, Any]]:
        """Chunks of what a text adds; is_partial: more is to come."""
        return [self._chunk(delta, None) for delta in self._message.add(text, is_partial)]

    def end(self, reason: str) -> dict[str, Any]:
        """The last chunk; reason: "stop" or "length"."""
        return self._chunk({}, self._reason(reason, self._message.message))

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """The choice of an answer that did not come in chunks."""
        self._message.add(text, is_partial=False)
        message = self._message.message
        return {"index": self._index, "message": message, "finish_reason": self._reason(reason, message)}

    def _chunk(self, delta: Message, reason: str | None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": self._index, "delta": delta, "finish_reason": reason}]}

    @staticmethod
    def _reason(reason: str, message: Message) -> str:
        return "tool_calls" if reason == "stop" and message.get("tool_calls") else reason


def logprob_of(
    vocab: Vocab, found: TokenLogprob, n_top: int | None = None, *, post: bool = False, special: bool = False
) -> dict[str, Any]:
    """OpenAI's object of one token and its alternatives.

    n_top: how many alternatives; None: all. post: they are probabilities after the samplers, for which llama-server has
    other names. special: special tokens have their text.
    """

    def one(token: int, logprob: float) -> dict[str, Any]:
        piece = vocab.piece(token, special)
        value = {"prob": min(1.0, math.exp(logprob))} if post else {"logprob": max(logprob, -3.4e38)}
        return {"id": token, "token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), **value}

    top = [one(token, value) for token, value in list(found.top.items())[:n_top]]
    return {**one(found.token, found.logprob), "top_probs" if post else "top_logprobs": top}
