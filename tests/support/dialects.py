"""The APIs that generate, as clients see them: the same request to each, and what an answer says, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serving import Running


@dataclass
class Said:
    """What a client gets: a thought, a text, calls as (name, arguments), and why it ended."""

    thought: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    reason: str = ""
    n_thought: int = 0
    """Tokens of the thought."""


@dataclass(frozen=True)
class Dialect:
    """One API."""

    path: str
    body: Callable[..., dict[str, Any]]
    """(prompt, limit of tokens, tools, the beginning of the answer) -> a request."""
    whole: Callable[[Any], Said]
    streamed: Callable[[list[Any]], Said]
    has_names: bool = False
    """Whether the events of a stream are named."""

    def ask(self, running: Running, **asked: Any) -> Said:
        """Return a whole answer."""
        return self.whole(running.ask(self.path, self.body(**asked)))

    def stream(self, running: Running, **asked: Any) -> Said:
        """Return a streamed one."""
        events = (running.stream_named if self.has_names else running.stream)(self.path, self.body(**asked))
        return self.streamed(events)


def _messages(prompt: str, begin: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}, *([{"role": "assistant", "content": begin}] if begin else [])]


def _add_calls(said: Said, calls: Any) -> None:
    for call in calls or ():
        if call.get("index", len(said.calls)) == len(said.calls):
            said.calls.append(["", ""])
        said.calls[-1][0] += call["function"].get("name") or ""
        said.calls[-1][1] += call["function"].get("arguments") or ""


def _chat_body(prompt: str, n: int, tools: Any = None, begin: str = "", **more: Any) -> dict[str, Any]:
    body = {"messages": _messages(prompt, begin), "max_tokens": n, "temperature": 0, **more}
    return body | ({"tools": tools} if tools else {}) | {"stream_options": {"include_usage": True}}


def _chat_whole(answer: Any) -> Said:
    (choice,) = answer["choices"]
    message = choice["message"]
    said = Said(message.get("reasoning_content", ""), message["content"] or "", reason=choice["finish_reason"])
    _add_calls(said, message.get("tool_calls"))
    said.n_thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return said


def _chat_streamed(events: list[Any]) -> Said:
    said = Said()
    for event in events[:-1]:
        for choice in event["choices"]:
            said.thought += choice["delta"].get("reasoning_content") or ""
            said.text += choice["delta"].get("content") or ""
            _add_calls(said, choice["delta"].get("tool_calls"))
            said.reason = choice["finish_reason"] or said.reason
    said.n_thought = events[-2]["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return said


def _functions_body(prompt: str, n: int, tools: Any = None, begin: str = "", **more: Any) -> dict[str, Any]:
    return _chat_body(prompt, n, None, begin, functions=[tool["function"] for tool in tools or ()], **more)


def _functions_whole(answer: Any) -> Said:
    said, message = _chat_whole(answer), answer["choices"][0]["message"]
    assert "tool_calls" not in message
    call = message.get("function_call")
    said.calls = [[call["name"], call["arguments"]]] if call else []
    return said


def _functions_streamed(events: list[Any]) -> Said:
    said = _chat_streamed(events)
    assert not said.calls
    deltas = [c["delta"]["function_call"] for e in events[:-1] for c in e["choices"] if "function_call" in c["delta"]]
    if deltas:
        said.calls = [["".join(delta.get(name, "") for delta in deltas) for name in ("name", "arguments")]]
    return said


def _responses_body(prompt: str, n: int, tools: Any = None, begin: str = "", **more: Any) -> dict[str, Any]:
    functions = [{"type": "function", **tool["function"]} for tool in tools or ()]
    return {
        "input": _messages(prompt, begin),
        "max_output_tokens": n,
        "temperature": 0,
        "tools": functions,
        **more,
    }


def _responses_whole(answer: Any) -> Said:
    said = Said(reason=answer["status"])
    for i, item in enumerate(answer["output"]):
        is_last = i == len(answer["output"]) - 1
        if not is_last:
            assert item["status"] == "completed"
        if item["type"] == "function_call":
            said.calls.append([item["name"], item["arguments"]])
            said.reason += f", {item['status']} call" * is_last
        else:
            assert item["status"] == "completed" or answer["status"] == "incomplete"
            text = "".join(part["text"] for part in item["content"])
            said.thought += text if item["type"] == "reasoning" else ""
            said.text += text if item["type"] == "message" else ""
    said.n_thought = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
    return said


def _responses_streamed(events: list[Any]) -> Said:
    said, last = Said(), events[-1]["response"]
    for event in events:
        kind = event["type"].removeprefix("response.")
        said.thought += event["delta"] if kind == "reasoning_text.delta" else ""
        said.text += event["delta"] if kind == "output_text.delta" else ""
        if kind == "output_item.added" and event["item"]["type"] == "function_call":
            said.calls.append([event["item"]["name"], ""])
        if kind == "function_call_arguments.delta":
            said.calls[-1][1] += event["delta"]
    of_last = _responses_whole(last)
    assert (of_last.thought, of_last.text, of_last.calls) == (said.thought, said.text, said.calls)
    said.reason, said.n_thought = of_last.reason, of_last.n_thought
    return said


def _anthropic_body(prompt: str, n: int, tools: Any = None, begin: str = "", **more: Any) -> dict[str, Any]:
    named = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in tools or ()]
    return {
        "messages": _messages(prompt, begin),
        "max_tokens": n,
        "temperature": 0,
        **({"tools": named} if named else {}),
        **more,
    }


def _anthropic_whole(answer: Any) -> Said:
    said = Said(reason=answer["stop_reason"], n_thought=answer["usage"]["output_tokens_details"]["thinking_tokens"])
    for block in answer["content"]:
        said.thought += block.get("thinking", "")
        said.text += block.get("text", "")
        if block["type"] == "tool_use":
            said.calls.append([block["name"], block["input"]])
    return said


def _anthropic_streamed(events: list[Any]) -> Said:
    import json

    said = Said()
    for event in events:
        delta = event.get("delta", {})
        said.thought += delta.get("thinking", "")
        said.text += delta.get("text", "")
        if event.get("content_block", {}).get("type") == "tool_use":
            said.calls.append([event["content_block"]["name"], ""])
        if delta.get("type") == "input_json_delta":
            said.calls[-1][1] += delta["partial_json"]
        said.reason = delta.get("stop_reason") or said.reason
    for call in said.calls:
        try:
            call[1] = json.loads(call[1])
        except ValueError:  # it was cut off
            call[1] = {}  # type: ignore[call-overload]
    said.n_thought = events[-2]["usage"]["output_tokens_details"]["thinking_tokens"]
    return said


def _completion_body(prompt: str, n: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, **more}


CHATS = {
    "chat": Dialect("/v1/chat/completions", _chat_body, _chat_whole, _chat_streamed),
    "functions": Dialect("/v1/chat/completions", _functions_body, _functions_whole, _functions_streamed),
    "responses": Dialect("/v1/responses", _responses_body, _responses_whole, _responses_streamed, has_names=True),
    "messages": Dialect("/v1/messages", _anthropic_body, _anthropic_whole, _anthropic_streamed, has_names=True),
}
"""APIs of conversations."""
TEXTS = {
    "completions": Dialect(
        "/v1/completions",
        _completion_body,
        lambda answer: Said(text=answer["choices"][0]["text"], reason=answer["choices"][0]["finish_reason"]),
        lambda events: Said(
            text="".join(event["choices"][0]["text"] for event in events[:-1]),
            reason=events[-2]["choices"][0]["finish_reason"],
        ),
    ),
    "completion": Dialect(
        "/completion",
        _completion_body,
        lambda answer: Said(text=answer["content"], reason=answer["stop_type"]),
        lambda events: Said(text="".join(event["content"] for event in events), reason=events[-1]["stop_type"]),
    ),
}
"""APIs of texts that go on."""
