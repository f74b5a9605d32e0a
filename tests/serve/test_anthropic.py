"""Anthropic's messages: the requests that they become, and its own package as a client, with streams and tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest

from llama_cpp_eagle3.serve.anthropic import to_chat
from llama_cpp_eagle3.serve.api_errors import ApiError
from serving import Running

MESSAGES: Any = [{"role": "user", "content": "the self"}]
PATH = "/v1/messages"
N = 12
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["one", "two"]}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}
TOOL: Any = {"name": "add", "description": "adds", "input_schema": SCHEMA}
CALLS = """I add.
<tool_call>
{"name": "add", "arguments": {"a": "one", "b": "x"}}
</tool_call>
<tool_call>
{"name": "add", "arguments": {"a": "two", "b": "y"}}
</tool_call>"""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
KEY = "sk-of-the-tests"


def client_of(running: Running, **options: Any) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(base_url=running.url, max_retries=0, http_client=http, **({"api_key": "none"} | options))


@pytest.fixture
def client(running: Running) -> Iterator[anthropic.Anthropic]:
    with client_of(running) as client:
        yield client


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, "max_tokens": N, "temperature": 0, **more}


def called(**more: Any) -> Any:
    """Return the request for the package, which has no parameter for temperatures any more."""
    options = asked(**more)
    del options["temperature"]
    return options | {"extra_body": {"temperature": 0, **more.get("extra_body", {})}}


def chat_of(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return to_chat({"messages": list(messages), **more})[1]


# the resulting request: llama-server's server_chat_convert_anthropic_to_oai


def test_plain_messages() -> None:
    system = [
        {"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "short"},
    ]
    said = {"role": "user", "content": "hi"}
    blocks = {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " it?"}]}
    chat = chat_of(
        said, {"role": "assistant"}, blocks, system=system, top_k=5, stop_sequences=["\n"], metadata={"user_id": "x"}
    )
    assert chat == {
        "messages": [{"role": "system", "content": "be short"}, said, blocks],
        "top_k": 5,
        "stop": ["\n"],
        "max_tokens": 4096,
    }
    assert chat_of(said, system="x", max_tokens=5)["messages"][0] == {"role": "system", "content": "x"}
    rules, answer = {"role": "system", "content": "rules"}, {"role": "assistant", "content": "yes"}
    found = chat_of(said, rules, answer, blocks, rules)["messages"]  # Claude Code sends its own after the user's words
    assert found == [rules, said, answer, blocks, rules]
    assert chat_of(said, max_tokens=5, n=3, n_cmpl=3) == {"messages": [said], "max_tokens": 5}


def test_tools_and_their_results() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": [1, "é"]}}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "3", "is_error": True}
    texts = {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": t} for t in "45"]}
    image = {"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "text", "text": "look"}, IMAGE]}
    empty = {"type": "tool_result", "tool_use_id": "t4"}
    text = {"type": "text", "text": "so"}
    chat = chat_of(
        {"role": "assistant", "content": [thought, {"type": "redacted_thinking", "data": "x"}, use]},
        {"role": "user", "content": [text, result]},
        {"role": "user", "content": [texts, image, empty, text]},
        tools=[TOOL, {"name": "bare"}],
    )
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":[1,"é"]}'}}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    assert chat["messages"] == [
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "user", "content": [text]},
        {"role": "tool", "tool_call_id": "t1", "content": "Error: 3"},
        {"role": "tool", "tool_call_id": "t2", "content": "45"},
        {"role": "tool", "tool_call_id": "t3", "content": [{"type": "text", "text": "look"}, url]},
        {"role": "tool", "tool_call_id": "t4", "content": ""},
        {"role": "user", "content": [text]},
    ]
    functions = [{"name": "add", "description": "adds", "parameters": SCHEMA}]
    functions.append({"name": "bare", "description": "", "parameters": {}})
    assert chat["tools"] == [{"type": "function", "function": function} for function in functions]


def test_images() -> None:
    linked = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    (message,) = chat_of({"role": "user", "content": [IMAGE, linked]})["messages"]
    assert [part["image_url"]["url"] for part in message["content"]] == [
        f"data:image/png;base64,{PIXEL}",
        "http://x/y.png",
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": False},
        ),
        ({"thinking": {"type": "enabled"}}, {"thinking_budget_tokens": 10000}),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, {"thinking_budget_tokens": 7}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        ({"chat_template_kwargs": {"a": 1}, "seed": 3}, {"chat_template_kwargs": {"a": 1}, "seed": 3}),
    ],
)
def test_options(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat_of(*MESSAGES, max_tokens=1, **given) == {"messages": MESSAGES, "max_tokens": 1, **expected}


def test_the_billing_line_of_claude_code() -> None:
    line, prompt = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;", "You are Claude"
    expected = [{"role": "system", "content": prompt}, *MESSAGES]
    assert chat_of(*MESSAGES, system=line + prompt)["messages"] == expected
    blocks = [{"type": "text", "text": text} for text in (line, prompt)]
    assert chat_of(*MESSAGES, system=blocks)["messages"] == expected
    assert chat_of(*MESSAGES, system=line)["messages"] == MESSAGES
    assert chat_of(*MESSAGES, system=blocks[:1])["messages"] == MESSAGES


BAD: list[Any] = [
    [], {"max_tokens": 5}, {"messages": "x"}, {"messages": [5]}, {"messages": [{"content": "x"}]},
    {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": 5}]},
    *({"messages": [{"role": "user", "content": [block]}]} for block in (
        5, {}, {"type": "document"}, {"type": "text"}, {"type": "image", "source": {"type": "file"}},
        {"type": "tool_use", "id": "x", "name": "y", "input": 5}, {"type": "tool_result", "tool_use_id": 5}, IMAGE,
    )),
    asked(system=5), asked(tools="x"), asked(tools=[{}]), asked(tools=[TOOL], tool_choice={"type": "some"}),
    asked(tools=[TOOL], tool_choice={"type": "tool", "name": "sub"}), asked(stop_sequences="x"), asked(max_tokens="x"),
    asked(thinking={"type": "enabled", "budget_tokens": -5}), asked(temperature="hot"),
]  # fmt: skip


def test_bad_bodies(running: Running) -> None:
    for wrong in BAD:
        for path in (PATH, f"{PATH}/count_tokens"):
            response = running.post(path, wrong)
            if path == PATH or response.status_code != 200:  # a count ignores options
                assert response.status_code == 400, (wrong, response.text)
                assert response.json()["type"] == "error"
                assert response.json()["error"]["type"] == "invalid_request_error"
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    use = {"type": "tool_use", "id": "x", "name": "y", "input": {"a": deep}}
    assert running.post(PATH, {"messages": [*MESSAGES, {"role": "assistant", "content": [use]}]}).status_code == 400
    with pytest.raises(ApiError, match=r"messages\.1: expected 'text' of a block of type 'text'"):
        chat_of(*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]})
    text = running.post(PATH, {"messages": [{"role": "user", "content": [IMAGE]}]}).json()["error"]["message"]
    assert "image input is not supported" in text


# Anthropic's package as the client


def test_the_same_as_a_chat(client: anthropic.Anthropic, running: Running) -> None:
    chat = {"messages": [{"role": "system", "content": "be"}, *MESSAGES], "max_tokens": N, "temperature": 0}
    expected = running.ask("/v1/chat/completions", chat)
    message = client.messages.create(**called(system="be"))
    (block,) = message.content
    assert block.type == "text"
    assert block.text == expected["choices"][0]["message"]["content"]
    assert client.beta.messages.create(**called(system="be")).content[0].to_dict()["text"] == block.text
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert usage.cache_read_input_tokens
    assert usage.cache_creation_input_tokens == 0
    assert usage.cache_read_input_tokens + usage.input_tokens == expected["usage"]["prompt_tokens"]
    assert usage.output_tokens == N
    assert "timings" not in running.ask(PATH, asked())
    count = client.messages.count_tokens(model="tiny", system="be", messages=MESSAGES)
    assert count.input_tokens == expected["usage"]["prompt_tokens"]


def test_streams(client: anthropic.Anthropic, running: Running) -> None:
    whole = client.messages.create(**called())
    with client.messages.stream(**called()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert isinstance(whole.content[0], anthropic.types.TextBlock)
    assert text == whole.content[0].text
    assert [block.type for block in final.content] == ["text"]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", N)
    events = running.stream_named(PATH, asked())
    deltas = ["content_block_delta"] * (len(events) - 5)
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", *deltas, "content_block_stop", "message_delta", "message_stop")
    ]
    assert len(deltas) > N // 2
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 0
    events = running.stream_named(PATH, asked(return_progress=True, cache_prompt=False))
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    (block,) = client.messages.create(**called()).content
    assert isinstance(block, anthropic.types.TextBlock)
    word = block.text[3:6]
    for message in (
        client.messages.create(**called(stop_sequences=["nowhere", word])),
        client.messages.stream(**called(stop_sequences=["nowhere", word])).__enter__().get_final_message(),
    ):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
        assert isinstance(message.content[0], anthropic.types.TextBlock)
        assert message.content[0].text == block.text[: block.text.index(word)]


def test_structured_output(client: anthropic.Anthropic) -> None:
    options = called(max_tokens=60, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    message = client.messages.create(**options)
    assert isinstance(message.content[0], anthropic.types.TextBlock)
    assert json.loads(message.content[0].text)["a"] in ("one", "two")
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [None, {"type": "any"}, {"type": "tool", "name": "add"}])
def test_tools(tools: Running, says: Callable[[str], None], choice: Any) -> None:
    says(CALLS if choice is None else CALLS.partition("\n")[2])
    options = called(max_tokens=400, tools=[TOOL], extra_body={"parallel_tool_calls": True})
    if choice is not None:
        options["tool_choice"] = choice
    inputs = [{"a": "one", "b": "x"}, {"a": "two", "b": "y"}]
    with client_of(tools) as client:
        whole = client.messages.create(**options)
        with client.messages.stream(**options) as stream:
            events = [event for event in stream if event.type.startswith("content_block")]
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            assert message.stop_reason == "tool_use"
            assert [block.type for block in message.content] == ["text"] * (choice is None) + ["tool_use"] * 2
            calls: Any = message.content[-2:]
            assert [(call.name, call.input) for call in calls] == [("add", given) for given in inputs]
            assert len({call.id for call in calls}) == 2
        # a block ends before the next one begins
        marks = [(event.type, event.index) for event in events if event.type != "content_block_delta"]
        n = len(whole.content)
        assert marks == [(f"content_block_{what}", i) for i in range(n) for what in ("start", "stop")]
        results: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "three"} for call in calls]
        history: Any = [
            *MESSAGES,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": results},
        ]
        before = client.messages.count_tokens(model="tiny", messages=MESSAGES, tools=[TOOL]).input_tokens
        assert client.messages.count_tokens(model="tiny", messages=history, tools=[TOOL]).input_tokens > before
        says("three")
        (block,) = client.messages.create(**called(messages=history, tools=[TOOL])).content
        assert isinstance(block, anthropic.types.TextBlock)
        assert block.text == "three"


def test_a_call_that_is_cut_off(tools: Running, says: Callable[[str], None]) -> None:
    says(CALLS)
    with client_of(tools) as client:
        assert client.messages.create(**called(max_tokens=45, tools=[TOOL])).stop_reason == "max_tokens"
        events = tools.stream_named(PATH, asked(max_tokens=45, tools=[TOOL]))
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    starts, stops = ([e["index"] for e in events if e["type"] == f"content_block_{w}"] for w in ("start", "stop"))
    assert starts == stops == list(range(len(starts)))


def test_thoughts(tools: Running, says: Callable[[str], None]) -> None:
    says("<think>\nI think.\n</think>\n\nSo it is.")
    with client_of(tools) as client:
        whole = client.messages.create(**called(max_tokens=200))
        events = tools.stream_named(PATH, asked(max_tokens=200))
        with client.messages.stream(**called(max_tokens=200)) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        thought, text = message.content
        assert (thought.type, text.type) == ("thinking", "text")
        assert isinstance(thought, anthropic.types.ThinkingBlock)
        assert isinstance(text, anthropic.types.TextBlock)
        assert (thought.thinking.strip(), thought.signature, text.text.strip()) == ("I think.", "", "So it is.")
        assert message.stop_reason == "end_turn"
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds.index("text_delta") == kinds.index("signature_delta") + 1
    # and back: a thought of the history is part of the prompt
    use = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3"}]}
    counts = []
    for blocks in ([use], [{"type": "thinking", "thinking": "I should add these."}, use]):
        history = [*MESSAGES, {"role": "assistant", "content": blocks}, result]
        counts.append(tools.ask(f"{PATH}/count_tokens", {"messages": history, "tools": [TOOL]})["input_tokens"])
    assert counts[1] > counts[0]


def test_errors(pair: Any) -> None:
    with Running(*pair, options={"api_keys": (KEY,), "n_body_max": 4096}) as running:
        for options in ({"api_key": KEY}, {"api_key": None, "auth_token": KEY}):
            with client_of(running, **options) as client:
                assert client.messages.create(**called(max_tokens=2)).usage.output_tokens == 2
        with client_of(running, api_key="sk-wrong") as client, pytest.raises(anthropic.AuthenticationError) as wrong:
            client.messages.create(**called())
        assert wrong.value.body == {
            "type": "error",
            "error": {"type": "authentication_error", "message": "Invalid API Key", "code": 401},
        }
        with client_of(running, api_key=KEY) as client:
            with pytest.raises(anthropic.BadRequestError) as bad:
                client.messages.create(**called(messages=[{"role": "user", "content": "the self " * 300}]))
            assert bad.value.type == "invalid_request_error"
            assert "exceeds the available context size" in bad.value.message
            with pytest.raises(anthropic.RequestTooLargeError) as large:
                client.messages.create(**called(messages=[{"role": "user", "content": "x" * 5000}]))
            assert large.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]
            with pytest.raises(anthropic.NotFoundError):
                client.messages.batches.list()


def test_an_error_in_a_stream(pair: Any) -> None:
    """The client gets the error after the first tokens, when passes fail for good."""
    with Running(*pair) as running, client_of(running) as client:
        engine, step = running.server.engine, running.server.engine.step
        n_steps, has_begun = 0, threading.Event()

        def fail() -> Any:
            nonlocal n_steps
            n_steps += 1
            if n_steps > 3:
                assert has_begun.wait(120.0)
                raise RuntimeError("no device")
            return step()

        engine.step = fail  # type: ignore[method-assign]
        with client.messages.stream(**called(max_tokens=100)) as stream:
            has_begun.set()
            with pytest.raises(anthropic.APIStatusError) as error:
                stream.get_final_message()
        assert error.value.body == {
            "type": "error",
            "error": {"type": "api_error", "message": "no device", "code": 500},
        }
