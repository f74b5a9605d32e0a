"""`create_chat_completion` with chat_format="auto"."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_cases import CLOCK, WEATHER
from chatting import GEMMA4, QWEN3, Load, joined
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates
from llama_cpp_eagle3.models import bundled_pair

MESSAGES = [{"role": "user", "content": "Write a function"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def both(llm: Eagle3Llama, **options: Any) -> dict[str, Any]:
    """Return a completion, and check that a stream gives the same."""
    whole: dict[str, Any] = llm.create_chat_completion(MESSAGES, **options)
    chunks = list(llm.create_chat_completion(MESSAGES, stream=True, **options))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": None}
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + [whole["choices"][0]["finish_reason"]]
    content, reasoning, calls = joined([choice["delta"] for choice in choices[1:]])
    message = whole["choices"][0]["message"]
    assert content == message["content"]
    assert reasoning == message.get("reasoning_content", "")
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    return whole


@pytest.fixture
def templates(llm: Eagle3Llama, load: Load, monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(name: str) -> None:
        monkeypatch.setitem(llm.__dict__, "chat_templates", load(name))

    return use


def test_content(llm: Eagle3Llama) -> None:
    whole = both(llm, max_tokens=20, temperature=0.0)
    assert whole["choices"][0]["finish_reason"] == "length"
    prompt = llm.tokenize(llm.chat_templates.apply(MESSAGES).prompt.encode(), special=True)
    assert whole["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 20, "total_tokens": len(prompt) + 20}
    plain = llm.create_completion(prompt, max_tokens=20, temperature=0.0)["choices"][0]["text"]
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": plain}
    assert llm.last_stats.drafted == 0 or llm.last_stats.accepted > 0


def test_json_schema(llm: Eagle3Llama) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for temperature in (0.0, 1.0):
        whole = both(llm, temperature=temperature, seed=3, response_format=schema, max_tokens=200)
        value = json.loads(whole["choices"][0]["message"]["content"])
        assert set(value) == {"name", "n"}
        assert 0 <= value["n"] <= 99


def test_tools(llm: Eagle3Llama, templates: Any) -> None:
    templates(GEMMA4)  # its grammar allows only a call
    options: dict[str, Any] = {"tools": [WEATHER, CLOCK], "max_tokens": 80, "temperature": 0.0}
    choice = both(llm, tool_choice="required", **options)["choices"][0]
    assert choice["finish_reason"] in ("tool_calls", "length")
    names = {call["function"]["name"] for call in choice["message"]["tool_calls"]}
    assert names
    assert names <= {"get_weather", "get_time"}
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = both(llm, tool_choice=named, **options)["choices"][0]
    assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"get_time"}
    none = both(llm, tool_choice="none", **options)
    assert "tool_calls" not in none["choices"][0]["message"]


def test_reasoning_is_apart(llm: Eagle3Llama, templates: Any) -> None:
    templates(QWEN3)
    think = llm.tokenize(b"<think>\n", add_bos=False)
    whole = both(llm, max_tokens=60, temperature=0.0, reasoning_budget=10, logit_bias={think[0]: 0.0})
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"] or message.get("reasoning_content")


def test_logprobs(llm: Eagle3Llama) -> None:
    whole = both(llm, max_tokens=6, temperature=0.0, logprobs=True, top_logprobs=2)
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    assert all(entry["token"] == entry["top_logprobs"][0]["token"] for entry in content)
    assert "".join(entry["token"] for entry in content) == whole["choices"][0]["message"]["content"]


def test_stop(llm: Eagle3Llama) -> None:
    text = both(llm, max_tokens=30, temperature=0.0)["choices"][0]["message"]["content"]
    stop = text[8:11]
    choice = both(llm, max_tokens=30, temperature=0.0, stop=[stop])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"functions": 5}, ValueError, "expected functions to be a list"),
        ({"colour": 1}, TypeError, "unexpected arguments"),
        ({"tools": [{"type": "x"}]}, ValueError, r"tools\.0: expected a tool of type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}},
            ValueError,
            "resolve",
        ),
    ],
)
def test_refused(llm: Eagle3Llama, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        llm.create_chat_completion(MESSAGES, **options)
    assert not llm.engine.has_work


def test_stream_that_is_left(llm: Eagle3Llama) -> None:
    stream = llm.create_chat_completion(MESSAGES, stream=True, max_tokens=50)
    assert not llm.engine.has_work
    for _ in range(3):
        next(stream)
    stream.close()
    assert not llm.engine.has_work


def test_other_formats_stay_as_they_are() -> None:
    llm = Eagle3Llama(bundled_pair()[0], n_ctx=256, verbose=False, chat_format="chatml")
    answer = llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0.0)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert isinstance(llm.chat_templates, ChatTemplates)
    llm.close()
