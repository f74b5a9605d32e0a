"""/v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation, translated to OpenAI's."""

from __future__ import annotations

import json
from typing import Any

from ..chat import ChatParams, LeftOut, read_messages
from ..chat.sent_tokens import SentToken
from ..engine import Output
from .answer import Answer, Progress
from .anthropic_schema import MessagesRequest, ToolChoice
from .anthropic_tools import functions_of
from .api_errors import ApiError, anthropic_error, invalid
from .chat_completions import CHAT_FIELDS, prepare_message
from .chat_completions import count_tokens as count_chat_tokens
from .fields import MESSAGE_ALONE, parse_object
from .other_fields import check_others
from .queue import Place
from .reply import NamedEvents, Part
from .server import Server

_N_MAX_TOKENS = 4096  # the default, as in llama-server
_TRANSLATED = {"metadata", *MessagesRequest.model_fields, *MESSAGE_ALONE}
FIELDS = (CHAT_FIELDS - {*MESSAGE_ALONE}) | MessagesRequest.model_fields.keys()
"""Fields that are read."""


def prepare_messages(server: Server, body: dict[str, Any], place: Place) -> MessagesReply:
    """A request to /v1/messages."""
    check_others(body, FIELDS, server.ignored)
    asked, chat = to_chat(body, server.left_out, server.left_out_tools)
    return MessagesReply(server, *prepare_message(server, chat, place), asked.stop_sequences)


def count_tokens(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """/v1/messages/count_tokens."""
    chat = to_chat(body, server.left_out, server.left_out_tools)[1]
    return {"input_tokens": count_chat_tokens(server, chat)["input_tokens"]}


def to_chat(
    body: dict[str, Any], left_out: LeftOut | None = None, left_out_tools: LeftOut | None = None
) -> tuple[MessagesRequest, dict[str, Any]]:
    """A request as one to /v1/chat/completions. Fields that Anthropic does not have stay as they are.

    Args:
        body: The request.
        left_out: Logs the types of blocks that are left out.
        left_out_tools: Logs what is left out of the tools.

    Raises:
        ApiError: the request is invalid, or needs a feature that is missing.
    """
    given = {name: value for name, value in body.items() if value is not None}
    asked = parse_object(MessagesRequest, given)
    chat = {name: value for name, value in given.items() if name not in _TRANSLATED}
    chat.setdefault("max_tokens", _N_MAX_TOKENS)
    messages = [
        {"role": message.role, **({"content": message.content} if "content" in message.model_fields_set else {})}
        for message in asked.messages
        if message.content is not None or message.role != "assistant"
    ]
    try:
        chat["messages"] = [*_system(asked.system, left_out), *_instructions_first(read_messages(messages, left_out))]
    except (ValueError, RecursionError) as e:
        raise invalid(str(e) or "the body is nested too deeply") from None
    tools = functions_of(asked, left_out_tools)
    if tools:
        chat["tools"] = tools
    if asked.tool_choice is not None:
        chat |= _choice(asked.tool_choice)
    if asked.stop_sequences:
        chat["stop"] = asked.stop_sequences
    if asked.output_config.effort is not None:
        chat["reasoning_effort"] = asked.output_config.effort
    if asked.thinking is not None and asked.thinking.type == "enabled":
        chat["thinking_budget_tokens"] = asked.thinking.budget_tokens
    elif asked.thinking is not None and asked.thinking.type == "disabled":
        chat["reasoning_effort"] = "none"
    if asked.output_config.format is not None:
        chat["output_config"] = {"format": given["output_config"]["format"]}
    return asked, chat


def _system(system: str | list[Any] | None, left_out: LeftOut | None) -> list[dict[str, Any]]:
    """The system prompt: one text, as in llama-server."""
    if system is None:
        return []
    found: list[dict[str, Any]] = read_messages([{"role": "system", "content": system}], left_out)
    for message in found:
        if isinstance(message["content"], list):
            message["content"] = "".join(part.get("text", "") for part in message["content"])
    return [message for message in found if message["content"]] if system else found


def _instructions_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move instructions that precede the first answer before what the user said.

    Claude Code sends pages of them after the user's first words: only before these are they a beginning that
    conversations have in common, which the prefix cache finds.
    """
    n = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return [*sorted(messages[:n], key=lambda message: message["role"] != "system"), *messages[n:]]


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    words: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": _function(name=choice.name)}
    chat = {"tool_choice": words[choice.type]}
    return chat | ({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {})


class MessagesReply(NamedEvents):
    """Anthropic's objects and events: the message's head, its blocks one after the other, the reason of the end."""

    def error(self, e: ApiError) -> bytes:
        """An error in a stream that has begun."""
        return self.encode(anthropic_error(e))

    def __init__(self, server: Server, answers: list[Answer], params: ChatParams, stop_sequences: list[str]):
        super().__init__(server, answers, params, "msg_")
        self._stop_sequences = stop_sequences
        self._has_begun = False

    def _begin(self, answer: Answer) -> list[dict[str, Any]]:
        if self._has_begun:
            return []
        self._has_begun = True
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": {**message, "usage": self._usage(answer, 0)}}]

    def ping(self) -> bytes:
        """Encode Anthropic's event that says nothing. It may come first: what a prompt cost is not known yet."""
        return self.encode({"type": "ping"})

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """A ping, which has no content."""
        return [*self._begin(answer), {"type": "ping"}]

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """What the token adds to the message's blocks."""
        return [*self._begin(answer), *self.deltas(answer, output)]

    def end(self, answer: Answer, text: str) -> list[Any]:
        """The ends of the last block and of the message."""
        events = [*self._begin(answer), *self.last_deltas(answer, text)]
        usage = self._usage(answer, answer.n_tokens)
        return [
            *events,
            {"type": "message_delta", "delta": self._why(answer), "usage": usage},
            {"type": "message_stop"},
        ]

    def begin_part(self, part: Part) -> list[dict[str, Any]]:
        """The event that begins a block."""
        block = _block(part, text="")
        return [{"type": "content_block_start", "index": part.number, "content_block": block}]

    def grow_part(self, part: Part, text: str, sent: list[SentToken]) -> dict[str, Any]:
        """The event that adds to it."""
        names = {
            "thought": ("thinking_delta", "thinking"),
            "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }
        kind, name = names[part.kind]
        return self._delta(part, kind, **{name: text})

    def end_part(self, part: Part, is_cut: bool) -> list[dict[str, Any]]:
        """The events that end it."""
        # clients want a signature with a thought, which a local model cannot give
        events = [self._delta(part, "signature_delta", signature="")] if part.kind == "thought" else []
        return [*events, {"type": "content_block_stop", "index": part.number}]

    @staticmethod
    def _delta(part: Part, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": part.number, "delta": {"type": kind, **fields}}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _usage(self, answer: Answer, n_tokens: int) -> dict[str, Any]:
        n_thought = self.n_thought() if n_tokens else 0
        return {
            "cache_creation_input_tokens": 0,  # nothing is paid for keeping a prompt: all of it is read or new input
            "cache_read_input_tokens": answer.n_cached,
            "input_tokens": answer.n_prompt - answer.n_cached,
            "output_tokens": n_tokens,
            "output_tokens_details": {"thinking_tokens": n_thought},
        }

    def _why(self, answer: Answer) -> dict[str, Any]:
        """Why the message ends. A stop string of the template does not count as the request's stop sequence."""
        if answer.finish_reason != "stop":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        word = answer.stopping_word
        sequence = word if word and word in self._stop_sequences else None
        if self.message.ends_with_call:
            return {"stop_reason": "tool_use", "stop_sequence": sequence}
        return {"stop_reason": "end_turn" if sequence is None else "stop_sequence", "stop_sequence": sequence}

    def response(self) -> Any:
        """The whole message."""
        (answer,) = self.answers
        self.finish(answer)
        content = [_block(part, part.text) for part in self.parts]
        usage = self._usage(answer, answer.n_tokens)
        return {**self._head(), "content": content, **self._why(answer), "usage": usage}


def _block(part: Part, text: str) -> dict[str, Any]:
    """Anthropic's block of a part, with this text of it."""
    if part.kind == "thought":
        return {"type": "thinking", "thinking": text, "signature": ""}
    if part.kind == "text":
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(text)}


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments; none if they were cut off, or are no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
