"""Chat: templates, tools, reasoning and schemas around the same completions, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chat_cases import templates
from serving import Running

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "the self"}]
N = 16
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": ["one", "two"]}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
        },
    },
}
RESPONSES_TOOL = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]


def body(**more: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": N, "temperature": 0, **more}


def joined(events: list[Any], key: str = "content") -> str:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get(key) or "" for delta in deltas)


def test_the_same_as_a_completion(running: Running) -> None:
    prompt = running.ask("/apply-template", {"messages": MESSAGES})["prompt"]
    assert prompt.endswith("system: be\nuser: the self\nassistant:")
    plain = running.ask("/completion", {"prompt": prompt, "n_predict": N, "temperature": 0})
    answer = running.ask("/v1/chat/completions", body())
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == plain["content"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == N
    assert answer["usage"]["prompt_tokens"] == plain["tokens_evaluated"]
    assert answer["timings"]["draft_n_accepted"] > 0
    n_tokens = running.ask("/v1/chat/completions/input_tokens", {"messages": MESSAGES})["input_tokens"]
    assert n_tokens == plain["tokens_evaluated"]


@pytest.mark.parametrize("other", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_the_bound_of_responses_is_their_own(running: Running, other: str) -> None:
    body = {"input": "hi", "temperature": 0, "max_output_tokens": 2, other: 4}
    assert running.ask("/v1/responses", body)["usage"]["output_tokens"] == 2


def test_a_template_that_is_none(pair: Any) -> None:
    with pytest.raises(ValueError, match=r"one of the names .*chatml.*found 'chatlm'"):
        Running(*pair, options={"chat_template": "chatlm"})


def test_an_empty_answer_is_none(running: Running) -> None:
    """Clients that begin an empty answer before they ask for it get a new one."""
    asked = [{"role": "user", "content": "hi"}]
    expected = running.ask("/apply-template", {"messages": asked})["prompt"]
    for empty in ({"content": ""}, {"content": None}, {"content": []}):
        body = {"messages": [*asked, {"role": "assistant", **empty}]}
        assert running.ask("/apply-template", body)["prompt"] == expected
        more = {"continue_final_message": True, "add_generation_prompt": False}
        assert running.ask("/apply-template", {**body, **more})["prompt"] == expected


def test_streams(running: Running) -> None:
    expected = running.ask("/v1/chat/completions", body())["choices"][0]["message"]["content"]
    *events, done = running.stream("/v1/chat/completions", body(stream_options={"include_usage": True}))
    assert done == "[DONE]"
    usage = events.pop()
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], N)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert joined(events) == expected
    assert len(events) == N + 2  # the role, one for each token, the finish reason
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (N + 1) + ["length"]
    events = running.stream("/v1/chat/completions", body(n=2, seed=1))[:-1]
    assert {event["choices"][0]["index"] for event in events} == {0, 1}


def test_logprobs(running: Running) -> None:
    answer = running.ask("/v1/chat/completions", body(logprobs=True, top_logprobs=3))
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(item["token"] for item in content) == answer["choices"][0]["message"]["content"]
    assert all(len(item["top_logprobs"]) == 3 for item in content)
    events = running.stream("/v1/chat/completions", body(logprobs=True, top_logprobs=3))[:-1]
    found = [item for event in events for item in event["choices"][0].get("logprobs", {}).get("content", [])]
    assert [item["id"] for item in found] == [item["id"] for item in content]
    answer = running.ask("/v1/chat/completions", body(logprobs=True, top_logprobs=0))
    alone = answer["choices"][0]["logprobs"]["content"]
    assert [item["top_logprobs"] for item in alone] == [[]] * N
    assert [item["id"] for item in alone] == [item["id"] for item in content]
    assert [item["logprob"] for item in alone] == pytest.approx([item["logprob"] for item in content], abs=1e-3)
    assert not running.ask("/v1/chat/completions", body(top_logprobs=0))["choices"][0].get("logprobs")
    for wrong in ({"top_logprobs": 3}, {"logprobs": 3}, {"logprobs": True, "top_logprobs": "x"}):
        assert running.post("/v1/chat/completions", body(**wrong)).status_code == 400


def test_schemas(running: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    for form in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"json_schema": schema},
    ):
        answer = running.ask("/v1/chat/completions", body(max_tokens=60, **form))["choices"][0]
        assert json.loads(answer["message"]["content"])["a"] in ("x", "y")
        assert answer["finish_reason"] == "stop"
    answer = running.ask("/v1/chat/completions", body(grammar='root ::= "ab"'))["choices"][0]
    assert answer["message"]["content"] == "ab"


CALLS = """<tool_call>
{"name": "add", "arguments": {"a": "one", "b": "x"}}
</tool_call>
<tool_call>
{"name": "add", "arguments": {"a": "two", "b": "y"}}
</tool_call>"""


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_stop_string_does_not_cut_a_forced_call(tools: Running, choice: Any) -> None:
    request = body(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=400)
    expected = tools.ask("/v1/chat/completions", request)["choices"][0]
    (call,) = expected["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    for stop in ('"', "{", "a"):
        found = tools.ask("/v1/chat/completions", {**request, "stop": stop})["choices"][0]
        (again,) = found["message"]["tool_calls"]
        assert (again["function"], found["finish_reason"]) == (call["function"], expected["finish_reason"])


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}])
def test_tools(tools: Running, says: Callable[[str], None], choice: Any) -> None:
    says(CALLS)
    request = body(max_tokens=400, tools=[TOOL], tool_choice=choice, parallel_tool_calls=True)
    answer = tools.ask("/v1/chat/completions", request)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    calls = answer["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["add", "add"]
    arguments = [json.loads(call["function"]["arguments"]) for call in calls]
    assert arguments == [{"a": "one", "b": "x"}, {"a": "two", "b": "y"}]
    assert len({call["id"] for call in calls}) == 2
    events = tools.stream("/v1/chat/completions", request)[:-1]
    deltas = [d for event in events for d in event["choices"][0]["delta"].get("tool_calls", [])]
    for i in (0, 1):
        own = [delta for delta in deltas if delta["index"] == i]
        assert own[0]["function"]["name"] == "add"
        assert own[0]["id"]
        assert json.loads("".join(delta["function"].get("arguments") or "" for delta in own)) == arguments[i]
        assert len(own) > 3  # the arguments come in pieces
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    replies = [{"role": "tool", "tool_call_id": call["id"], "content": "three"} for call in calls]
    answered = [*MESSAGES, answer["message"], *replies]
    prompt = tools.ask("/apply-template", {"messages": answered, "tools": [TOOL]})["prompt"]
    assert prompt.count("<tool_response>\nthree\n</tool_response>") == 2


def test_tools_of_responses(tools: Running, says: Callable[[str], None]) -> None:
    says(CALLS)
    function = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    request = {"input": "the self", "tools": [function], "max_output_tokens": 400}
    output = tools.ask("/v1/responses", request)["output"]
    assert [item["type"] for item in output] == ["function_call"] * 2
    events = tools.stream_named("/v1/responses", request)
    pieces = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    for item in (event["item"] for event in events if event["type"] == "response.output_item.done"):
        assert "".join(piece["delta"] for piece in pieces if piece["item_id"] == item["id"]) == item["arguments"]
        assert json.loads(item["arguments"])["a"] in ("one", "two")
    items = [{"role": "user", "content": "hi"}, output[0]]
    items.append({"type": "function_call_output", "call_id": output[0]["call_id"], "output": "three"})
    assert tools.ask("/v1/responses", {"input": items, "max_output_tokens": 2})["output"] is not None


def test_a_call_that_is_cut_off(tools: Running, says: Callable[[str], None]) -> None:
    says(CALLS)
    request = body(max_tokens=45, tools=[TOOL])
    assert tools.ask("/v1/chat/completions", request)["choices"][0]["finish_reason"] == "length"
    assert tools.stream("/v1/chat/completions", request)[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("before", ["", "the self "])
def test_what_is_no_call_is_content(tools: Running, says: Callable[[str], None], before: str) -> None:
    """Text that is no call is sent once as content, cut off or not."""
    text = before + "<tool_call>\n{{{{"
    says(text)
    for n in (400, len(tools.ask("/tokenize", {"content": text})["tokens"])):
        request = body(max_tokens=n, tools=[TOOL])
        answer = tools.ask("/v1/chat/completions", request)["choices"][0]["message"]
        assert answer["content"] == text
        assert not answer.get("tool_calls")
        assert joined(tools.stream("/v1/chat/completions", request)[:-1]) == text
        output = tools.ask("/v1/responses", {"input": "a", "max_output_tokens": n, "tools": [RESPONSES_TOOL]})["output"]
        assert "".join(part["text"] for item in output for part in item["content"]) == text


def test_tools_that_are_not_called(tools: Running) -> None:
    """A lazy grammar waits for the beginning of a call, which this model never writes."""
    for choice in ("auto", "none"):
        answer = tools.ask("/v1/chat/completions", body(tools=[TOOL], tool_choice=choice))["choices"][0]
        assert answer["message"]["content"]
        assert not answer["message"].get("tool_calls")


def test_responses(running: Running) -> None:
    expected = running.ask("/v1/chat/completions", body())["choices"][0]["message"]["content"]
    request = {"instructions": "be", "input": "the self", "max_output_tokens": N, "temperature": 0}
    answer = running.ask("/v1/responses", request)
    assert answer["object"] == "response"
    assert answer["output"][0]["content"][0]["text"] == expected
    assert answer["usage"]["output_tokens"] == N
    assert (
        running.ask("/v1/responses", {**request, "n_cmpl": 2, "top_logprobs": 0})["usage"]["output_tokens"] == N
    )  # one answer
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    events = running.stream_named("/v1/responses", request)
    names = [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert names[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == expected
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == expected
    assert (names[-1], events[-1]["response"]["status"]) == ("response.incomplete", "incomplete")  # cut at the limit


BAD: list[dict[str, Any]] = [
    {}, {"messages": None}, {"messages": "x"}, {"messages": [5]}, {"messages": [{}]},
    {"messages": [{"role": "user", "content": 5}]}, {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    body(response_format={"type": "sound"}),
    body(response_format={"type": "json_object", "schema": {"type": "hiccup"}}),
    body(response_format=5), body(grammar="root ::= ("), body(tools="x"), body(tools=[{"type": "x"}]), body(tools=[5]),
    body(tools=[TOOL], tool_choice="sometimes"), body(tools=[TOOL], grammar="root ::= [a]"),
    body(chat_template="{{ 1 }}"), body(chat_template_kwargs=5), body(max_tokens="x"), body(stop=5), body(n=0),
]  # fmt: skip


def test_bad_bodies(running: Running) -> None:
    for wrong in BAD:
        response = running.post("/v1/chat/completions", wrong)
        assert response.status_code == 400, (wrong, response.text)
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert running.post("/apply-template", wrong).status_code in (200, 400), wrong
    for wrong in (
        {},
        {"input": 5},
        {"input": [5]},
        {"input": [{"type": "x"}]},
        {"input": "x", "tools": 5},
        {"input": "x", "include": [{}]},
    ):
        assert running.post("/v1/responses", wrong).status_code == 400
    assert running.post("/v1/embeddings", {"input": "x"}).status_code == 501


def test_reasoning_budget(pair: Any) -> None:
    """A template begins with a thought, which has no end by itself."""
    template = next(path for path in templates() if path.name == "Qwen-QwQ-32B.jinja").read_text(encoding="utf-8")
    with Running(*pair, draft_n_max=3, options={"chat_template": template, "reasoning_budget": 9}) as running:
        tokenize = lambda text: running.ask("/tokenize", {"content": text})["tokens"]  # noqa: E731
        for more, n, message in (
            ({}, 9, ""),
            ({"reasoning_budget_tokens": 5, "reasoning_budget_message": "enough"}, 5, "enough"),
            ({"thinking_budget_tokens": 0}, 0, ""),
            ({"thinking": {"type": "enabled", "budget_tokens": 5}}, 5, ""),
        ):
            choice = running.ask("/v1/chat/completions", body(max_tokens=60, **more))["choices"][0]
            reasoning = choice["message"].get("reasoning_content", "")
            assert reasoning.endswith(message)
            assert len(tokenize(reasoning.removesuffix(message))) <= n + 1
            assert bool(reasoning) == (n > 0)
            assert choice["message"]["content"]
        for wrong in (-2, "x", True):
            assert running.post("/v1/chat/completions", body(reasoning_budget_tokens=wrong)).status_code == 400


def test_names_of_templates(tiny_target: Any) -> None:
    with Running(tiny_target, options={"chat_template": "command-r"}) as running:
        prompt = running.ask("/apply-template", {"messages": MESSAGES})["prompt"]
        assert prompt.startswith("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>be<|END_OF_TURN_TOKEN|>")
        assert running.ask("/v1/chat/completions", body())["choices"][0]["message"]["content"]
        assert running.post("/v1/chat/completions", body(tools=[TOOL])).status_code == 400
        constrained = running.ask("/v1/chat/completions", body(grammar='root ::= "aaaa"', max_tokens=16))
        assert constrained["choices"][0]["message"]["content"] == "aaaa"
        constrained = running.ask("/v1/chat/completions", body(json_schema={"const": 5}, max_tokens=16))
        assert constrained["choices"][0]["message"]["content"].strip() == "5"
        assert running.post("/v1/chat/completions", body(grammar="root ::= no (grammar")).status_code == 400
