"""/v1/responses: OpenAI's newer endpoint of conversations, translated to and from /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from ..chat import ChatParams, LeftOut
from ..engine import Output
from .answer import Answer, Progress
from .api_errors import ApiError, invalid, unsupported
from .chat_completions import count_tokens as count_chat_tokens
from .chat_completions import prepare_message
from .fields import MESSAGE_ALONE
from .queue import Place
from .reply import NamedEvents, progress_of
from .response_items import messages_of
from .server import Server, random_id


def prepare_response(server: Server, body: dict[str, Any], place: Place) -> ResponsesReply:
    """Prepare the reply to POST /v1/responses."""
    return ResponsesReply(server, *prepare_message(server, to_chat(body, server.left_out), place))


def count_tokens(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Answer POST /v1/responses/input_tokens."""
    return count_chat_tokens(server, to_chat(body, server.left_out))


def to_chat(body: dict[str, Any], left_out: LeftOut | None = None) -> dict[str, Any]:
    """Translate a request to one of /v1/chat/completions.

    Raises:
        ApiError: the request is invalid, or needs a feature that is missing.
    """
    body = {name: value for name, value in body.items() if value is not None}
    if "input" not in body:
        raise invalid("'input' is required")
    if body.get("previous_response_id"):
        raise invalid("'previous_response_id' is not supported: answers are not kept")
    if body.get("background"):
        raise unsupported("'background' is not supported: answers are not kept")
    taken = ("input", "instructions", "tools", "max_output_tokens", "reasoning", "truncation", *MESSAGE_ALONE)
    chat = {name: value for name, value in body.items() if name not in taken}
    chat["messages"] = messages_of(body["input"], body.get("instructions"), left_out)
    tools = body.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise invalid("'tools' must be an array of objects")
    # tools that are not functions run on OpenAI's servers, and are ignored
    functions = [tool for tool in tools if tool.get("type") == "function"]
    if functions:
        chat["tools"] = [
            {"type": "function", "function": {"strict": True} | {k: v for k, v in tool.items() if k != "type"}}
            for tool in functions
        ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and "name" in choice:
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


class ResponsesReply(NamedEvents):
    """OpenAI's objects and numbered events of a response."""

    def __init__(self, server: Server, answers: list[Answer], params: ChatParams):
        super().__init__(server, answers, params, "resp_")
        self._reasoning_id, self._message_id = f"rs_{random_id()}", f"msg_{random_id()}"
        self._calls: list[dict[str, str]] = []
        self._begun: set[str] = set()
        self._n_events = 0

    def error(self, e: ApiError) -> bytes:
        """Encode OpenAI's event of an error that ends a stream."""
        return self.encode(
            {"type": "error", "code": e.kind, "message": e.message, "param": None, "sequence_number": self._n_events}
        )

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """Return the event of a response that is in progress, with the prompt's progress."""
        event: dict[str, Any] = {"type": "response.in_progress", "response": self._object("in_progress", [])}
        event["prompt_progress"] = progress_of(answer, progress)
        return self._numbered([*self._begin(), event], timings)

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """Return the events for what a token adds to the response's items."""
        return self._numbered([*self._begin(), *self.deltas(output.text, True)], timings)

    def end(self, answer: Answer, text: str) -> list[Any]:
        """Return the events that end all items and the response."""
        return self._numbered([*self._begin(), *self.deltas(text, False), *self._finish(answer)], None)

    def _numbered(self, events: list[dict[str, Any]], timings: dict[str, Any] | None) -> list[Any]:
        if events and timings is not None:
            events[-1]["timings"] = timings
        for event in events:
            event["sequence_number"] = self._n_events
            self._n_events += 1
        return events

    def _begin(self) -> list[dict[str, Any]]:
        if "response" in self._begun:
            return []
        self._begun.add("response")
        state = self._object("in_progress", [])
        return [{"type": f"response.{name}", "response": state} for name in ("created", "in_progress")]

    def of_delta(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events for one of OpenAI's deltas."""
        events: list[dict[str, Any]] = []
        if delta.get("reasoning_content"):
            if "reasoning" not in self._begun:
                self._begun.add("reasoning")
                item = {"id": self._reasoning_id, "type": "reasoning", "summary": [], "content": []}
                events.append(self._item("added", {**item, "status": "in_progress"}, 0))
            data = {"item_id": self._reasoning_id, "output_index": 0, "content_index": 0}
            events.append({"type": "response.reasoning_text.delta", "delta": delta["reasoning_content"], **data})
        if delta.get("content"):
            where = self._where()
            if "message" not in self._begun:
                self._begun.add("message")
                item = {"id": self._message_id, "type": "message", "role": "assistant", "content": []}
                part = {"type": "output_text", "text": "", "annotations": []}
                events.append(self._item("added", {**item, "status": "in_progress"}, where["output_index"]))
                events.append({"type": "response.content_part.added", "part": part, **where})
            text = {"delta": delta["content"], "logprobs": [], **where}
            events.append({"type": "response.output_text.delta", **text})
        for call in delta.get("tool_calls", []):
            events += self._of_call(call)
        return events

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": int("reasoning" in self._begun), "content_index": 0}

    def _of_call(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        i, function = int(call.get("index", 0)), call.get("function", {})
        while len(self._calls) <= i:
            self._calls.append({"id": call.get("id") or random_id(), "name": function.get("name", "")})
            item = self._call_item(len(self._calls) - 1, "", "in_progress")
            events.append(self._item("added", item, self._index_of_call(len(self._calls) - 1)))
        if function.get("arguments"):
            data = {"item_id": f"fc_{self._calls[i]['id']}", "output_index": self._index_of_call(i)}
            kind = "response.function_call_arguments.delta"
            events.append({"type": kind, "delta": function["arguments"], **data})
        return events

    def _index_of_call(self, i: int) -> int:
        return i + int("reasoning" in self._begun) + int("message" in self._begun)

    def _call_item(self, i: int, arguments: str, status: str) -> dict[str, Any]:
        call = self._calls[i]
        item = {"id": f"fc_{call['id']}", "type": "function_call", "status": status, "arguments": arguments}
        return {**item, "call_id": f"call_{call['id']}", "name": call["name"]}

    @staticmethod
    def _item(what: str, item: dict[str, Any], index: int) -> dict[str, Any]:
        return {"type": f"response.output_item.{what}", "output_index": index, "item": item}

    def _finish(self, answer: Answer) -> list[dict[str, Any]]:
        output = self._output()
        events: list[dict[str, Any]] = []
        for i, item in enumerate(output):
            if item["type"] == "message":
                where, part = self._where(), item["content"][0]
                events.append({"type": "response.output_text.done", "text": part["text"], "logprobs": [], **where})
                events.append({"type": "response.content_part.done", "part": part, **where})
            elif item["type"] == "function_call":
                data = {"item_id": item["id"], "output_index": i, "arguments": item["arguments"]}
                events.append({"type": "response.function_call_arguments.done", "name": item["name"], **data})
            events.append(self._item("done", item, i))
        last = "completed" if answer.finish_reason == "stop" else "incomplete"
        events.append({"type": f"response.{last}", "response": self._object(last, output), **answer.figures()})
        return events

    def _output(self) -> list[dict[str, Any]]:
        message = self.message.message
        output: list[dict[str, Any]] = []
        if message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
            item = {"id": self._reasoning_id, "type": "reasoning", "summary": [], "content": content}
            output.append({**item, "encrypted_content": "", "status": "completed"})
        if message.get("content"):
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": message["content"]}
            item = {"id": self._message_id, "type": "message", "role": "assistant", "content": [part]}
            output.append({**item, "status": "completed"})
        for i, call in enumerate(message.get("tool_calls") or []):
            if i == len(self._calls):
                self._calls.append({"id": call.get("id") or random_id(), "name": call["function"]["name"]})
            output.append(self._call_item(i, call["function"]["arguments"], "completed"))
        return output

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        if status == "incomplete":
            data["incomplete_details"] = {"reason": "max_output_tokens"}
        if status != "in_progress":
            counts = self.usage()
            data["completed_at"] = int(time.time())
            data["usage"] = {
                "input_tokens": counts["prompt_tokens"],
                "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return data

    def response(self) -> Any:
        """The whole response."""
        answer = self.answers[0]
        self.message.add(answer.text, is_partial=False)
        status = "completed" if answer.finish_reason == "stop" else "incomplete"
        return {**self._object(status, self._output()), **answer.figures()}
