"""/v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation, by way of OpenAI's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ..chat import ChatParams
from .anthropic_schema import (
    Image,
    Message,
    MessagesRequest,
    RedactedThinking,
    Text,
    Thinking,
    ToolChoice,
    ToolResult,
    ToolUse,
    UrlSource,
)
from .chat import Conversation, prepare_message
from .engine_thread import End, Event, Progress
from .errors import ApiError, anthropic_error, invalid
from .generation import Answer, Generation
from .jsons import dumps
from .response_format import ResponseFormat
from .schema import MESSAGE_ALONE, parse_object
from .server import Admission, Server, random_id
from .sse import named_event

_N_MAX_TOKENS = 4096  # the default, as in llama-server
_OTHERS = {"metadata", *MessagesRequest.model_fields, *MESSAGE_ALONE}
_BILLING_STAMP = re.compile(r"\A(x-anthropic-billing-header:.*?cch=).{5}(?=;)", re.DOTALL)


def prepare_messages(server: Server, body: Any, admission: Admission) -> MessagesFormat:
    """A request to /v1/messages."""
    asked, chat = to_chat(body)
    generation, params = prepare_message(server, chat, admission, f"msg_{random_id()}")
    return MessagesFormat(generation, params, asked.stop_sequences)


def to_chat(body: Any) -> tuple[MessagesRequest, dict[str, Any]]:
    """A request as one to /v1/chat/completions. Fields that Anthropic does not have stay as they are.

    Raises:
        ApiError: it is not as it should be, or needs what is not here.
    """
    asked = parse_object(MessagesRequest, body)
    chat = {name: value for name, value in body.items() if value is not None and name not in _OTHERS}
    chat.setdefault("max_tokens", _N_MAX_TOKENS)
    chat["messages"] = [message for given in asked.messages for message in _messages(given)]
    if asked.system is not None:
        texts = [asked.system] if isinstance(asked.system, str) else [block.text for block in asked.system]
        chat["messages"].insert(0, {"role": "system", "content": "".join(map(without_stamp, texts))})
    if asked.tools:
        chat["tools"] = [
            _function(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
            for tool in asked.tools
        ]
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
        schema = {"schema": asked.output_config.format.schema_}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked, chat


def without_stamp(text: str) -> str:
    """A system prompt without the number that Claude Code puts into it, which differs each time.

    Nothing behind it could be found in a cache of prefixes; llama-server writes f's in its place, too.
    """
    return _BILLING_STAMP.sub(r"\1fffff", text, count=1)


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    words: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": _function(name=choice.name)}
    chat = {"tool_choice": words[choice.type]}
    return chat | ({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {})


def _messages(given: Message) -> Iterable[dict[str, Any]]:
    """What OpenAI has as messages: a tool's results are messages of their own, and stay where they are."""
    if given.content is None or isinstance(given.content, str):
        if given.content is not None or given.role != "assistant":
            yield given.model_dump(exclude_none=True)
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts = ""
    for block in (*given.content, None):
        if isinstance(block, (Text, Image)):
            parts.append(_part(block))
        elif isinstance(block, Thinking):
            thoughts += block.thinking
        elif isinstance(block, ToolUse):
            calls.append({"id": block.id, **_function(name=block.name, arguments=_arguments(block))})
        elif isinstance(block, RedactedThinking):
            continue
        else:  # a result, or the end
            if parts or calls or thoughts:
                more = {"tool_calls": calls, "reasoning_content": thoughts}
                yield {"role": given.role, "content": parts or "", **{k: v for k, v in more.items() if v}}
            parts, calls, thoughts = [], [], ""
            if block is not None:
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}


def _arguments(block: ToolUse) -> str:
    try:
        return dumps(block.input).decode()
    except RecursionError:
        raise invalid(f"the input of {block.name!r} is nested too deep") from None


def _result(block: ToolResult) -> Any:
    """Texts alone are one text, since few templates know anything else of a tool."""
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    texts = [part.text for part in block.content if isinstance(part, Text)]
    return "".join(texts) if len(texts) == len(block.content) else [_part(part) for part in block.content]


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    source = block.source
    url = source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


class MessagesFormat(ResponseFormat):
    """Anthropic's objects and events of a message."""

    @staticmethod
    def encode(data: Any) -> bytes:
        """An event as bytes: these have names."""
        return named_event(data["type"], data)

    def error(self, e: ApiError) -> bytes:
        """An error in a stream that has begun."""
        return named_event("error", anthropic_error(e))

    def __init__(self, generation: Generation, params: ChatParams, stop_sequences: list[str]):
        self.generation, self._stop_sequences = generation, stop_sequences
        self._conversation = Conversation(params)
        self._has_begun = False
        self._block: tuple[str, int] | None = None
        """The block that is open: its type, and the number of its call."""
        self._n_blocks = 0

    def chunks(self, answer: Answer, event: Event) -> list[Any]:
        """The message's head, then its blocks, one after the other, then the reason of the end."""
        events: list[dict[str, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
            events.append({"type": "message_start", "message": {**message, "usage": self._usage(answer, 0)}})
        if isinstance(event, Progress):
            return [*events, {"type": "ping"}]
        for delta in self._conversation.add(event.text, is_partial=not isinstance(event, End)):
            events += self._of_delta(delta)
        if isinstance(event, End):
            usage = {"output_tokens": answer.metrics.n_tokens}
            events += [
                *self._close(),
                {"type": "message_delta", "delta": self._why(answer), "usage": usage},
                {"type": "message_stop"},
            ]
        return events

    def _of_delta(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        if delta.get("reasoning_content"):
            events += self._open("thinking", thinking="")
            events.append(self._delta("thinking_delta", thinking=delta["reasoning_content"]))
        if delta.get("content"):
            events += self._open("text", text="")
            events.append(self._delta("text_delta", text=delta["content"]))
        for call in delta.get("tool_calls", ()):
            function = call.get("function", {})
            fields = {"id": call.get("id") or f"toolu_{random_id()}", "name": function.get("name", ""), "input": {}}
            events += self._open("tool_use", int(call.get("index", 0)), **fields)
            if function.get("arguments"):
                events.append(self._delta("input_json_delta", partial_json=function["arguments"]))
        return events

    def _open(self, kind: str, number: int = 0, **fields: Any) -> list[dict[str, Any]]:
        """A block begins, unless it has."""
        if self._block == (kind, number):
            return []
        events = self._close()
        self._block = (kind, number)
        block = {"type": kind, **fields}
        events.append({"type": "content_block_start", "index": self._n_blocks, "content_block": block})
        self._n_blocks += 1
        return events

    def _close(self) -> list[dict[str, Any]]:
        if self._block is None:
            return []
        # clients want a signature with a thought, which a local model cannot give
        events = [self._delta("signature_delta", signature="")] if self._block[0] == "thinking" else []
        self._block = None
        return [*events, {"type": "content_block_stop", "index": self._n_blocks - 1}]

    def _delta(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": {"type": kind, **fields}}

    def _head(self) -> dict[str, Any]:
        generation = self.generation
        return {"id": generation.id, "type": "message", "role": "assistant", "model": generation.model}

    @staticmethod
    def _usage(answer: Answer, n_tokens: int) -> dict[str, int]:
        metrics = answer.metrics
        return {
            "cache_read_input_tokens": metrics.n_cached,
            "input_tokens": metrics.n_prompt - metrics.n_cached,
            "output_tokens": n_tokens,
        }

    def _why(self, answer: Answer) -> dict[str, Any]:
        """Why the message ends; what a template itself ends with is no sequence of the request."""
        assert answer.end is not None
        if answer.finish_reason != "stop":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        word = answer.end.stopping_word
        sequence = word if word and word in self._stop_sequences else None
        if self._conversation.message.get("tool_calls"):
            return {"stop_reason": "tool_use", "stop_sequence": sequence}
        return {"stop_reason": "end_turn" if sequence is None else "stop_sequence", "stop_sequence": sequence}

    def response(self) -> Any:
        """All of it."""
        (answer,) = self.generation.answers
        self._conversation.add(answer.text, is_partial=False)
        message = self._conversation.message
        content: list[dict[str, Any]] = []
        if message.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or ():
            fields = {"id": call.get("id") or f"toolu_{random_id()}", "name": call["function"]["name"]}
            content.append({"type": "tool_use", **fields, "input": _input(call["function"]["arguments"])})
        usage = self._usage(answer, answer.metrics.n_tokens)
        return {**self._head(), "content": content, **self._why(answer), "usage": usage}


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments; none if they were cut off, or are no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
