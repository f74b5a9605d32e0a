"""Objects and events of each API are those of the types in the packages of OpenAI and Anthropic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic.types as anthropic_types
import openai.types as openai_types
import pytest
from anthropic.types.shared import ErrorResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from serving import Running

USER = {"role": "user", "content": "the self"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "w", "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SAID = ("It is warm.", "<think>\nI think.\n</think>\n\nI ask.\n" + CALL + "\n" + CALL)
N_ALL, N_CUT = 400, 9
CODEX = {
    **dict.fromkeys(("supported_reasoning_levels", "experimental_supported_tools"), list),
    **dict.fromkeys(("supported_in_api", "support_verbosity", "supports_parallel_tool_calls"), bool),
    **dict.fromkeys(("shell_type", "visibility", "apply_patch_tool_type"), str),
    "priority": int,
    "truncation_policy": dict,
}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture(params=[(text, n) for text in SAID for n in (N_ALL, N_CUT)], ids=lambda p: f"{p[0][:3]}{p[1]}")
def n_max(request: pytest.FixtureRequest, says: Callable[[str], None]) -> int:
    """Set what the model says; returns the limit of tokens, which may cut it off."""
    text, n = request.param
    says(text)
    return int(n)


def check(kind: Any, *values: Any) -> None:
    adapter = TypeAdapter(kind)
    for value in values:
        adapter.validate_python(value)


def test_chats(tools: Running, n_max: int) -> None:
    tool = {"type": "function", "function": FUNCTION}
    body = {"messages": [USER], "max_tokens": n_max, "logprobs": True, "top_logprobs": 2}
    check(ChatCompletion, tools.ask("/v1/chat/completions", body | {"tools": [tool]}))
    check(ChatCompletion, tools.ask("/v1/chat/completions", body | {"functions": [FUNCTION]}))
    for more in (
        body | {"stream_options": {"include_usage": True}},
        {"messages": [USER], "max_tokens": n_max, "tools": [tool]},
        {"messages": [USER], "max_tokens": n_max, "functions": [FUNCTION], "timings_per_token": True},
    ):
        *events, _ = tools.stream("/v1/chat/completions", more)
        check(ChatCompletionChunk, *events)


def test_responses(tools: Running, n_max: int) -> None:
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    for asked in ({"tools": [{"type": "function", **FUNCTION}], "reasoning": {"effort": "low"}}, more, {}):
        body = {"input": "the self", "max_output_tokens": n_max, **asked}
        check(Response, tools.ask("/v1/responses", body))
        events = tools.stream_named("/v1/responses", body)
        check(ResponseStreamEvent, *events)
        check_order(events)


def check_order(events: list[Any]) -> None:
    """Items come one after the other; each, and each part of its content, is added before its text and ends after."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    items: Iterator[dict[str, Any]] = iter(events[-1]["response"]["output"])
    i, n_items = 2, 0
    while i < len(events) - 1:
        begin = i
        i = kinds.index("output_item.done", i) + 1
        part, item = kinds[begin:i], events[begin]["item"]
        names = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
        name = names[item["type"]]
        inner = [kind for kind in part[1:-1] if kind != f"{name}.delta"]
        assert part[0] == "output_item.added"
        if item["type"] == "function_call":
            assert inner == [f"{name}.done"]
        else:
            assert inner == ["content_part.added", f"{name}.done", "content_part.done"]
        done = events[i - 1]["item"]
        assert {event["output_index"] for event in events[begin:i]} == {n_items}
        assert {event["item_id"] for event in events[begin + 1 : i - 1]} == {item["id"]} == {done["id"]}
        text = "".join(event["delta"] for event in events[begin:i] if event["type"].endswith(".delta"))
        assert text == (done["arguments"] if name == "function_call_arguments" else done["content"][0]["text"])
        assert next(items) == done
        n_items += 1
    assert next(items, None) is None


def test_what_a_response_repeats(running: Running) -> None:
    tool = {"type": "function", **FUNCTION}
    asked = {
        "instructions": "Be brief.", "tools": [tool], "tool_choice": "none", "parallel_tool_calls": False,
        "temperature": 0.25, "top_p": 0.5, "max_output_tokens": 5, "metadata": {"a": "b"}, "truncation": "auto",
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "store": False,
    }  # fmt: skip
    answer = running.ask("/v1/responses", {"input": "Hi", **asked})
    assert answer["tools"] == [{**tool, "strict": True}]
    assert {name: answer[name] for name in asked if name != "tools"} == {k: v for k, v in asked.items() if k != "tools"}
    for event in running.stream_named("/v1/responses", {"input": "Hi", **asked}):
        assert event.get("response", asked)["instructions"] == "Be brief."


def test_messages(tools: Running, n_max: int) -> None:
    tool = {"name": "get_weather", "input_schema": PARAMETERS}
    body = {"messages": [USER], "max_tokens": n_max, "tools": [tool]}
    whole = tools.ask("/v1/messages", body)
    check(anthropic_types.Message, whole)
    events = tools.stream_named("/v1/messages", body)
    check(anthropic_types.RawMessageStreamEvent, *[event for event in events if event["type"] != "ping"])
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    whole["usage"].pop("cache_read_input_tokens"), whole["usage"].pop("input_tokens")  # the cache has more of it now
    assert usage.pop("cache_read_input_tokens") + usage.pop("input_tokens") > 0
    assert usage == whole["usage"]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert all("signature" in block for block in starts if block["type"] == "thinking")
    count = tools.ask("/v1/messages/count_tokens", {"messages": [USER]})
    check(anthropic_types.MessageTokensCount, count)


def test_completions(running: Running) -> None:
    body = {"prompt": "the self", "max_tokens": 5, "logprobs": 2, "temperature": 0}
    check(openai_types.Completion, running.ask("/v1/completions", body))
    *events, _ = running.stream("/v1/completions", body)
    for event in events[:-1]:  # the type wants a reason in each event, OpenAI's server has null until the last one
        assert event["choices"][0].pop("finish_reason") is None
        check(openai_types.Completion, {**event, "choices": [{**event["choices"][0], "finish_reason": "stop"}]})
    check(openai_types.Completion, events[-1])


def test_models(running: Running) -> None:
    for path in ("/v1/models", "/models"):
        found = running.client.get(path).json()
        (model,) = found["data"]
        check(openai_types.Model, model)
        check(anthropic_types.ModelInfo, model)
        assert (found["first_id"], found["last_id"], found["has_more"]) == (model["id"], model["id"], False)
        (codex,) = found["models"]  # its fields without a default, in any version
        assert codex["slug"] == codex["display_name"] == model["id"]
        assert codex["context_window"] == running.server.engine.n_ctx
        assert "apply_patch" in codex["base_instructions"]
        assert codex["input_modalities"] == ["text"]
        assert {name: type(codex[name]) for name in CODEX} == CODEX
    one = running.client.get(f"/v1/models/{model['id']}").json()
    check(openai_types.Model, one)
    check(anthropic_types.ModelInfo, one)


@pytest.mark.parametrize("path", ["/v1/models/nothing", "/nowhere", "/v1/completions", "/v1/chat/completions"])
def test_errors_have_the_form_of_the_client(running: Running, path: str) -> None:
    """A client of Anthropic names its version, on any path; below /v1/messages the form is Anthropic's anyway."""
    method = "GET" if "models" in path or path == "/nowhere" else "POST"
    found = running.client.request(method, path, json={}, headers=ANTHROPIC)
    assert found.status_code in (400, 404)
    check(ErrorResponse, found.json())
    plain = running.client.request(method, path, json={}).json()
    assert "type" not in plain
    assert plain["error"]["message"] == found.json()["error"]["message"]
    check(ErrorResponse, running.post("/v1/messages", {}).json())
