"""A whole answer that is one call as bare JSON is that call; everything else stays content, however it comes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from chat_cases import WEATHER
from chatting import QWEN3, Load, joined
from llama_cpp_eagle3.chat import ChatParams
from llama_cpp_eagle3.chat.conversation import apply_request
from llama_cpp_eagle3.chat.message import GrowingMessage, NewText, OpenAIChoice

NAME = WEATHER["function"]["name"]
HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"
ARGUMENTS = '{"city": "Paris \\n```", "days": 2}'
CALL = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'
WIDE = f'{{\n  "name": "{NAME}",\n  "arguments": {ARGUMENTS}\n}}'
CALLS = [CALL, f"```json\n{CALL}\n```", f"\n```json\n{WIDE}\n```\n", f"```\n{WIDE}```", f"```xml\n{CALL}", f" {WIDE} "]
CONTENT = [
    "",
    "`",
    "```json",
    "```json\n{}\n```",
    '{"name": "Ada", "age": 36}',
    f"Sure: {CALL}",
    f"{CALL} is the call.",
    f"```json\n{CALL}\n```\nThen I will know.",
    CALL[:-1],
    CALL[:-2],
    CALL.replace(NAME, "other"),
    CALL.replace(NAME, NAME + "s"),
    CALL.replace('"city"', '"town"'),
    f'{{"name": "{NAME}", "arguments": {{"days": 2}}}}',
    f'{{"name": "{NAME}", "arguments": {{"city": "Paris", "wind": true}}}}',
    f'{{"name": "{NAME}", "arguments": {{"city": "Paris"}}, "more": 1}}',
    f'{{"name": "{NAME}", "arguments": "Paris"}}',
    f"{CALL}\n{CALL}",
    "[" + CALL + "]",
]


def params_of(load: Load, template: str = HERMES, **body: Any) -> ChatParams:
    messages = [{"role": "user", "content": "How is Paris?"}]
    return apply_request(load(template), {"messages": messages, "tools": [WEATHER], **body})


def pieces_of(text: str, dice: random.Random) -> list[str]:
    cuts = sorted(dice.choices(range(len(text) + 1), k=dice.randrange(1, 12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def answered(params: ChatParams, text: str) -> tuple[str, str, list[dict[str, str]]]:
    """The message, which is the same whole, by characters and in random pieces."""
    dice, found = random.Random(text), []
    for texts in ([text], list(text), *(pieces_of(text, dice) for _ in range(6))):
        for is_whole in (True, False):
            answer = GrowingMessage(params)
            if is_whole:
                deltas = answer.add_whole(texts)
            else:
                deltas = [delta for part in texts for delta in answer.add(part)] + answer.add("", is_partial=False)
            content, thought, calls = joined(deltas)
            for call in calls:
                assert len(call.pop("id")) == 32
            message = answer.message
            assert message["content"] == content
            assert [call["function"] for call in message.get("tool_calls", ())] == calls
            found.append((content, thought, calls))
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize("text", CALLS)
def test_calls(text: str, load: Load) -> None:
    params = params_of(load)
    assert answered(params, text) == ("", "", [{"name": NAME, "arguments": ARGUMENTS}])
    choice = OpenAIChoice(params, {}).whole([NewText(text)], "stop")
    assert choice["finish_reason"] == "tool_calls"
    json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("text", CONTENT)
def test_other_texts(text: str, load: Load) -> None:
    assert answered(params_of(load), text) == (text, "", [])


@pytest.mark.parametrize(
    "body",
    [
        {"tools": None},
        {"tool_choice": "none"},
        {"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]},
    ],
)
def test_requests_that_allow_no_such_call(body: dict[str, Any], load: Load) -> None:
    assert answered(params_of(load, **body), CALL) == (CALL, "", [])


@pytest.mark.parametrize("name", ["name", "arguments", 'say "hi"'])
def test_names_of_tools(name: str, load: Load) -> None:
    """A name may be a word of the form, or one that JSON escapes."""
    tools = [WEATHER, {**WEATHER, "function": {**WEATHER["function"], "name": name}}]
    for one in (name, NAME):
        text = f'{{"name": {json.dumps(one)}, "arguments": {ARGUMENTS}}}'
        expected = {"name": one, "arguments": ARGUMENTS}
        assert answered(params_of(load, tools=tools), text) == ("", "", [expected])


def test_after_a_thought(load: Load) -> None:
    params = params_of(load, QWEN3)
    content, thought, calls = answered(params, f"<think>\nHm.\n</think>\n\n```json\n{CALL}\n```")
    assert (content, thought.strip(), [call["name"] for call in calls]) == ("", "Hm.", [NAME])


def test_what_waits(load: Load) -> None:
    """Content is held back only while it can become a call."""
    answer = GrowingMessage(params_of(load))
    assert answer.add('```json\n{"name": "') == []
    assert answer.add("Ada") == [{"content": '```json\n{"name": "Ada'}]
    assert answer.add(CALL) == [{"content": CALL}]
