"""Answers become messages, whole or cut into any pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_cases import CLOCK, WEATHER
from chatting import GEMMA4, QWEN3, Load, joined
from llama_cpp_eagle3.chat import ChatParams, ChatTemplates

USER = {"role": "user", "content": "How is Paris?"}
PARIS = {"city": 'Paris \u00e4\U0001f600 "x"', "days": 2}
ARGS = json.dumps(PARIS, ensure_ascii=False)

HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"
CODER = "Qwen3-Coder.jinja"
NEMO = "mistralai-Mistral-Nemo-Instruct-2407.jinja"
DEEPSEEK = "deepseek-ai-DeepSeek-V3.1.jinja"
GLM = "GLM-4.6.jinja"

# name of the template, the model's text, content, reasoning, calls
ANSWERS: list[tuple[str, str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    (HERMES, "Sunny \u00e4 \U0001f600 <b>", "Sunny \u00e4 \U0001f600 <b>", "", []),
    (
        HERMES,
        f'Let me see.<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>',
        "Let me see.",
        "",
        [("get_weather", PARIS)],
    ),
    (
        QWEN3,
        "<think>\nWhere? There.\n</think>\n\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>',
        "",
        "Where? There.\n",
        [("get_weather", PARIS)],
    ),
    (QWEN3, "<think>\nHm.\n</think>\n\nFine.", "Fine.", "Hm.\n", []),
    (
        CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        "",
        [("get_weather", {"city": "Paris", "days": 2})],
    ),
    (
        NEMO,
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ARGS}, "id": "123456789"}}]',
        "",
        "",
        [("get_weather", PARIS)],
    ),
    (
        GEMMA4,
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
        "",
        "",
        [("get_weather", {"city": "Paris", "days": 2})],
    ),
    (
        GLM,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        "",
        "",
        [("get_weather", {"city": "Paris", "days": 2})],
    ),
]


def params_of(chat: ChatTemplates, **options: Any) -> ChatParams:
    return chat.apply([USER], tools=[WEATHER, CLOCK], **options)


@pytest.mark.parametrize(("name", "text", "content", "reasoning", "calls"), ANSWERS)
def test_answers(
    load: Load, name: str, text: str, content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    params = params_of(load(name))
    message = params.new_parser().parse(text)
    found = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]
    assert found == calls
    assert message["content"] == content
    assert message.get("reasoning_content", "").strip() == reasoning.strip()

    # the same answer, letter by letter
    parser = params.new_parser()
    deltas = [delta for letter in text for delta in parser.update(letter)]
    n_before = len(deltas)
    deltas += parser.update("", is_partial=False)
    got_content, got_reasoning, got_calls = joined(deltas)
    final = parser.message
    assert got_content == final["content"] == content
    assert got_reasoning == final.get("reasoning_content", "") == message.get("reasoning_content", "")
    assert [(c["name"], json.loads(c["arguments"])) for c in got_calls] == calls
    assert [c["id"] for c in got_calls] == [c["id"] for c in final.get("tool_calls", ())]
    assert len({c["id"] for c in got_calls}) == len(calls)
    # content arrives as it is written, not at the end
    assert n_before > len(content) / 3
    if calls and name in (HERMES, QWEN3):
        assert sum("arguments" in c.get("function", {}) for d in deltas for c in d.get("tool_calls", ())) > 5


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_make_no_difference(data: st.DataObject, load: Load) -> None:
    name, text, content, _, calls = data.draw(st.sampled_from(ANSWERS))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    parser = params_of(load(name)).new_parser()
    deltas = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        deltas += parser.update(text[start:end])
        json.dumps(parser.message)  # it is always a message
    deltas += parser.update("", is_partial=False)
    got_content, _, got_calls = joined(deltas)
    assert got_content == content
    assert [(c["name"], json.loads(c["arguments"])) for c in got_calls] == calls


def test_parallel_calls(load: Load) -> None:
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    text = call.format("get_weather", ARGS) + "\n" + call.format("get_time", "{}")
    parser = params_of(load(QWEN3), parallel_tool_calls=True, enable_thinking=False).new_parser()
    deltas = [d for letter in text for d in parser.update(letter)] + parser.update("", is_partial=False)
    calls = joined(deltas)[2]
    assert [c["name"] for c in calls] == ["get_weather", "get_time"]
    assert json.loads(calls[0]["arguments"]) == PARIS
    assert calls[0]["id"] != calls[1]["id"]


def test_reasoning_can_stay_in_the_content(load: Load) -> None:
    params = load(QWEN3).apply([USER], reasoning_format="none")
    message = params.new_parser().parse("<think>\nHm.\n</think>\n\nFine.")
    assert "reasoning_content" not in message
    assert message["content"] == "<think>\nHm.\n</think>\n\nFine."


def test_continued_answer_says_only_what_is_new(load: Load) -> None:
    messages = [USER, {"role": "assistant", "content": "It is"}]
    params = load(HERMES).apply(messages, add_generation_prompt=False, continue_final_message=True)
    assert params.prompt.endswith("It is")
    parser = params.new_parser()
    deltas = parser.update(" wet") + parser.update("", is_partial=False)
    assert joined(deltas)[0] == " wet"
    assert parser.message["content"] == "It is wet"


def test_wrong_answer(load: Load) -> None:
    params = params_of(load(HERMES), tool_choice="required")
    with pytest.raises(ValueError, match="does not match the expected peg-native format"):
        params.new_parser().parse('<tool_call>\n{"name": "other"}')


def test_json_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    params = ChatTemplates(template="chatml").apply([USER], json_schema=schema)
    assert params.grammar
    assert params.grammar_begins_in_prompt
    assert params.new_parser().parse('{"n": 3}')["content"] == '{"n": 3}'


@pytest.mark.parametrize("name", ["LFM2-8B-A1B.jinja", "LFM2.5-Instruct.jinja", "deepseek-ai-DeepSeek-V4.jinja"])
def test_tags_that_a_begun_answer_gets_are_not_shown(load: Load, name: str) -> None:
    """llama.cpp ends a thought before the text that an answer begins with; with `echo` that text is shown."""
    params = load(name).apply([USER, {"role": "assistant", "content": "It is"}], continue_final_message=True)
    assert "</think>It is" in params.prompt
    for shown, expected in ((params, " warm"), (replace(params, is_continuation=False), "It is warm")):
        for parts in ([" warm"], list(" warm")):
            parser = shown.new_parser()
            deltas = [delta for part in parts for delta in parser.update(part)] + parser.update("", False)
            assert joined(deltas) == (expected, "", [])
