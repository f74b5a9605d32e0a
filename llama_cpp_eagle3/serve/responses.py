"""/v1/responses: OpenAI's newer endpoint of conversations, translated to and from /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from ..chat import ChatParams, LeftOut
from ..chat.custom_tools import InputText, input_of
from ..chat.message import is_json, logprob_of
from ..chat.sent_tokens import SentToken
from ..engine import Output
from .answer import Answer, Progress
from .api_errors import ApiError, invalid
from .chat_completions import CHAT_FIELDS, prepare_message
from .chat_completions import count_tokens as count_chat_tokens
from .fields import MESSAGE_ALONE
from .other_fields import check_others
from .queue import Place
from .reply import NamedEvents, Part, progress_of
from .response_items import messages_of
from .response_tools import ResponseTools
from .server import Server

_LOGPROBS = "message.output_text.logprobs"
"""The entry of `include` that asks for log-probabilities."""
_TRANSLATED = (
    "input",
    "instructions",
    "tools",
    "max_output_tokens",
    "truncation",
    "include",
    *MESSAGE_ALONE,
)
FIELDS = (CHAT_FIELDS - {"messages", *MESSAGE_ALONE}) | {
    *("input", "instructions", "max_output_tokens", "include", "stream", "text", "reasoning"),
}
"""Fields that are read."""
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""Fields that a response repeats -> what they are if a request leaves them out."""


def prepare_response(server: Server, body: dict[str, Any], place: Place) -> ResponsesReply:
    """Prepare the reply to POST /v1/responses."""
    tools, chat = _chat_of(server, body)
    return ResponsesReply(server, *prepare_message(server, chat, place), tools, _repeated(body, tools))


def count_tokens(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Answer POST /v1/responses/input_tokens."""
    return count_chat_tokens(server, _chat_of(server, body)[1])


def _chat_of(server: Server, body: dict[str, Any]) -> tuple[ResponseTools, dict[str, Any]]:
    found = to_chat(body, server.left_out, server.left_out_tools)
    include = dict.fromkeys((f"include.{name}" for name in body.get("include") or () if name != _LOGPROBS), True)
    check_others({**body, **include}, FIELDS, server.ignored)
    if isinstance(body.get("prompt"), dict):
        raise invalid("Field 'prompt' is not supported: prompts are not kept: send its text as 'instructions'")
    return found


def to_chat(
    body: dict[str, Any], left_out: LeftOut | None = None, left_out_tools: LeftOut | None = None
) -> tuple[ResponseTools, dict[str, Any]]:
    """Translate a request to one of /v1/chat/completions; returns also its tools.

    Args:
        body: The request.
        left_out: Logs the types of items that are left out.
        left_out_tools: Logs what is left out of the tools.

    Raises:
        ApiError: the request is invalid, or needs a feature that is missing.
    """
    body = {name: value for name, value in body.items() if value is not None}
    if "input" not in body:
        raise invalid("'input' is required")
    chat = {name: value for name, value in body.items() if name not in _TRANSLATED}
    include = body.get("include", [])
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        raise invalid("'include' must be an array of strings")
    if _LOGPROBS in include:
        chat["logprobs"] = True
    else:
        chat.pop("top_logprobs", None)
    tools = ResponseTools(body.get("tools"), left_out_tools)
    chat["messages"] = messages_of(body["input"], body.get("instructions"), tools.name_of, left_out)
    if tools.functions:
        chat["tools"] = tools.functions
    if "tool_choice" in body:
        chat["tool_choice"] = tools.choice(body["tool_choice"])
    if "max_output_tokens" in body:
        chat["n_predict"] = body["max_output_tokens"]
    return tools, chat


def _repeated(body: dict[str, Any], tools: ResponseTools) -> dict[str, Any]:
    """Fields of a request that its response repeats, by OpenAI's types, and the tools that the model may call."""
    given = {name: body[name] for name in _REPEATED if body.get(name) is not None}
    offered = [
        {"description": None, "parameters": None, "strict": True, **tool} if tool.get("type") == "function" else tool
        for tool in tools.offered
    ]
    return {**_REPEATED, **given, "tools": offered, "store": False, "background": False, "previous_response_id": None}


class ResponsesReply(NamedEvents):
    """OpenAI's objects and numbered events of a response."""

    def __init__(
        self, server: Server, answers: list[Answer], params: ChatParams, tools: ResponseTools, asked: dict[str, Any]
    ):
        """tools: the request's. asked: fields of it that the response repeats."""
        super().__init__(server, answers, params, "resp_")
        self._tools, self._asked = tools, asked
        self._inputs: dict[int, InputText] = {}
        """[part]: the text of a custom tool's call."""
        self._has_begun = False
        self._done: list[dict[str, Any]] = []
        """The items that have ended."""
        self._n_events = 0

    def error(self, e: ApiError) -> bytes:
        """Encode OpenAI's event of an error that ends a stream."""
        return self.encode(
            {"type": "error", "code": e.kind, "message": e.message, "param": None, "sequence_number": self._n_events}
        )

    def ping(self) -> bytes:
        """Encode the events of a response in progress: Codex gives up after five minutes without an event."""
        state = {"type": "response.in_progress", "response": self._object("in_progress")}
        return b"".join(map(self.encode, self._numbered(self._begin() or [state], None)))

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """Return the event of a response that is in progress, with the prompt's progress."""
        event: dict[str, Any] = {"type": "response.in_progress", "response": self._object("in_progress")}
        event["prompt_progress"] = progress_of(answer, progress)
        return self._numbered([*self._begin(), event], timings)

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """Return the events for what a token adds to the response's items."""
        return self._numbered([*self._begin(), *self.deltas(answer, output)], timings)

    def end(self, answer: Answer, text: str) -> list[Any]:
        """Return the events that end the last item and the response."""
        events = [*self._begin(), *self.last_deltas(answer, text)]
        status = _status(answer)
        events.append({"type": f"response.{status}", "response": self._object(status), **answer.figures()})
        return self._numbered(events, None)

    def _numbered(self, events: list[dict[str, Any]], timings: dict[str, Any] | None) -> list[Any]:
        if events and timings is not None:
            events[-1]["timings"] = timings
        for event in events:
            event["sequence_number"] = self._n_events
            self._n_events += 1
        return events

    def _begin(self) -> list[dict[str, Any]]:
        if self._has_begun:
            return []
        self._has_begun = True
        state = self._object("in_progress")
        return [{"type": f"response.{name}", "response": state} for name in ("created", "in_progress")]

    def begin_part(self, part: Part) -> list[dict[str, Any]]:
        """Return the events that add an item, and its content."""
        item = self._item(part, "in_progress", [])
        events = [{"type": "response.output_item.added", "output_index": part.number, "item": item}]
        if part.kind != "call":
            content = self._content(Part(part.kind, part.id, part.number))
            events.append({"type": "response.content_part.added", "part": content, **self._where(part)})
        return events

    def grow_part(self, part: Part, text: str, sent: list[SentToken]) -> dict[str, Any]:
        """Return the event that adds to it."""
        if self._is_custom(part):
            text = self._inputs.setdefault(part.number, InputText()).add(text)
            if not text:
                return {}
        logprobs = {"logprobs": self._logprobs(sent)} if part.kind == "text" else {}
        return {"type": f"response.{self._event(part)}.delta", "delta": text, **logprobs, **self._where(part)}

    def end_part(self, part: Part, is_cut: bool) -> list[dict[str, Any]]:
        """Return the events that end it."""
        if part.kind == "call":
            is_cut = not is_json(part.text) if part.text else is_cut
        content = [] if part.kind == "call" else [self._content(part)]
        item = self._item(part, "incomplete" if is_cut else "completed", content)
        self._done.append(item)
        kind, where = f"response.{self._event(part)}.done", self._where(part)
        if self._is_custom(part):
            events = [{"type": kind, "input": item["input"], **where}]
        elif part.kind == "call":
            events = [{"type": kind, "name": item["name"], "arguments": part.text, **where}]
        else:
            logprobs = {"logprobs": content[0]["logprobs"]} if part.kind == "text" else {}
            events = [
                {"type": kind, "text": part.text, **logprobs, **where},
                {"type": "response.content_part.done", "part": content[0], **where},
            ]
        return [*events, {"type": "response.output_item.done", "output_index": part.number, "item": item}]

    def _is_custom(self, part: Part) -> bool:
        return part.kind == "call" and self._tools.called(part.name).type == "custom"

    def _event(self, part: Part) -> str:
        return "custom_tool_call_input" if self._is_custom(part) else _EVENTS[part.kind]

    def _id(self, part: Part) -> str:
        return ("ctc_" if self._is_custom(part) else _PREFIXES[part.kind]) + part.id

    def _where(self, part: Part) -> dict[str, Any]:
        content = {} if part.kind == "call" else {"content_index": 0}
        return {"item_id": self._id(part), "output_index": part.number, **content}

    def _item(self, part: Part, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """A part of the message as an item of a response."""
        item: dict[str, Any] = {"id": self._id(part), "status": status}
        if part.kind == "thought":
            return {**item, "type": "reasoning", "summary": [], "content": content, "encrypted_content": ""}
        if part.kind == "text":
            return {**item, "type": "message", "role": "assistant", "content": content}
        tool, arguments = self._tools.called(part.name), "" if status == "in_progress" else part.text
        item |= {"call_id": f"call_{part.id}", "name": tool.name}
        if tool.namespace:
            item["namespace"] = tool.namespace
        if tool.type == "custom":
            return {**item, "type": "custom_tool_call", "input": input_of(arguments)}
        return {**item, "type": "function_call", "arguments": arguments}

    def _content(self, part: Part) -> dict[str, Any]:
        if part.kind == "thought":
            return {"type": "reasoning_text", "text": part.text}
        return {"type": "output_text", "annotations": [], "logprobs": self._logprobs(part.sent), "text": part.text}

    def _logprobs(self, sent: list[SentToken]) -> list[dict[str, Any]]:
        vocab = self.server.tokenizer.vocab
        return [logprob_of(vocab, token.logprob, self._asked["top_logprobs"], piece=token.piece) for token in sent]

    def _object(self, status: str) -> dict[str, Any]:
        sampling = self.answers[0].sequence.request.sampling
        data: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": list(self._done),
            "usage": None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **self._asked,
        }
        if status != "in_progress":
            counts = self.usage()
            data["usage"] = {
                "input_tokens": counts["prompt_tokens"],
                "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"],
                "input_tokens_details": {"cache_write_tokens": 0, **counts["prompt_tokens_details"]},
                "output_tokens_details": {"reasoning_tokens": self.n_thought()},
            }
        return data

    def response(self) -> Any:
        """The whole response."""
        answer = self.answers[0]
        self.finish(answer)
        return {**self._object(_status(answer)), **answer.figures()}


_EVENTS = {"thought": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
_PREFIXES = {"thought": "rs_", "text": "msg_", "call": "fc_"}


def _status(answer: Answer) -> str:
    return "completed" if answer.finish_reason == "stop" else "incomplete"
