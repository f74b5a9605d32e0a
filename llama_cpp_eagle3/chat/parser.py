"""Parse a model's output into a message: content, reasoning and tool calls."""

from __future__ import annotations

from typing import Any

from .. import _chat

Message = dict[str, Any]
"""In OpenAI's form: role, content, and if there are any reasoning_content and tool_calls."""


class ChatParser:
    """Parses one answer to a request, as a whole or as it grows: llama.cpp's `common_chat_parse`.

    Made by `ChatParams.new_parser`, one for each answer.
    """

    def __init__(self, format: int, generation_prompt: str, parser: str, is_continuation: bool):
        """The parser's options, from `ChatParams`."""
        self._parser = _chat.Parser(format, generation_prompt, parser, is_continuation)

    def parse(self, text: str, is_partial: bool = False) -> Message:
        """Return the message that a text stands for.

        Args:
            text: the whole answer, with the special tokens that the request preserves.
            is_partial: more is to come: what may still turn out to be markup is left out.

        Raises:
            ValueError: the text is not what the request's format allows, or nested too deep.
        """
        return self._parser.parse(text, is_partial)

    def update(self, text_added: str, is_partial: bool = True) -> list[Message]:
        """Add text to the answer, and return what is new in its message.

        Args:
            text_added: whole characters.
            is_partial: more is to come; False once, with the last text, which may be empty.

        Returns:
            OpenAI's deltas, in order; one has reasoning_content, content, or one piece of one of the tool_calls.

        Raises:
            ValueError: as `parse`; the parser is of no use then.
        """
        return self._parser.update(text_added, is_partial)

    @property
    def message(self) -> Message:
        """The message so far, with the ids of tool calls that the deltas had."""
        return self._parser.message
