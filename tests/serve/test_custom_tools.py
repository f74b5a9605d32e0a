"""Custom tools of chats: each takes one text, and its calls have that text in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from llama_cpp_eagle3.chat import call_form, in_one_form
from serving import Running

USER = {"role": "user", "content": "the self"}
PATCH = {"type": "custom", "custom": {"name": "apply_patch", "description": "Patch files"}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
TEXT = 'a "b"\n\té\U0001f600'
CALL = f"<tool_call>\n{json.dumps({'name': 'apply_patch', 'arguments': {'input': TEXT}})}\n</tool_call>"
OTHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def custom(name: str, grammar: Any = None, **more: Any) -> dict[str, Any]:
    form = {"format": {"type": "grammar", "grammar": grammar}} if grammar else {}
    return {"type": "custom", "custom": {"name": name, **form, **more}}


def test_custom_tools_become_functions() -> None:
    tools = [
        custom("digits", {"syntax": "regex", "definition": "[0-9]+"}),
        WEATHER,
        custom("calc", {"syntax": "lark", "definition": 'start: "x"'}),
        custom("get_weather"),
    ]
    body = {"messages": [USER], "tools": tools, "tool_choice": {"type": "custom", "custom": {"name": "get_weather"}}}
    found = in_one_form(body)
    digits, weather, calc, other = (tool["function"] for tool in found["tools"])
    assert digits["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:[0-9]+)$"}
    assert weather == WEATHER["function"]
    assert 'start: "x"' in calc["description"]
    assert calc["parameters"]["properties"]["input"] == {"type": "string", "x-lark": 'start: "x"'}
    assert other["name"] == "get_weather_2"
    assert found["tool_choice"] == {"type": "function", "function": {"name": "get_weather_2"}}
    assert call_form(body).custom == {"digits": "digits", "calc": "calc", "get_weather_2": "get_weather"}
    assert in_one_form(found) == found


@pytest.mark.parametrize("name", [None, "wrapped", "flat"])
def test_choices_of_custom_tools(name: str | None) -> None:
    inner = {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "apply_patch"}}]}
    choice: Any = {"type": "custom", "custom": {"name": "apply_patch"}}
    if name:
        choice = {"type": "allowed_tools"} | ({"allowed_tools": inner} if name == "wrapped" else inner)
    found = in_one_form({"tools": [PATCH, WEATHER], "tool_choice": choice})["tool_choice"]
    named = {"type": "function", "function": {"name": "apply_patch"}}
    if name:
        found = found.get("allowed_tools", found)["tools"][0]
    assert found == named


@pytest.mark.parametrize(
    ("tool", "choice", "expected"),
    [
        ({"type": "custom"}, None, "tools.0: expected a tool of type 'custom' to have an object 'custom'"),
        (custom(""), None, "tools.0: expected a tool of type 'custom' to have a 'name', found ''"),
        (custom("x", {"syntax": "ebnf", "definition": "x"}), None, "tools.0: expected a grammar of a custom tool"),
        (PATCH, {"type": "custom", "custom": {"name": "y"}}, "expected one of the custom tools' names, found 'y'"),
        (PATCH, {"type": "custom"}, "expected one of the custom tools' names, found None"),
    ],
)
def test_custom_tools_that_a_client_can_mend(running: Running, tool: Any, choice: Any, expected: str) -> None:
    body = {"messages": [USER], "tools": [tool], "tool_choice": choice}
    response = running.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert expected in response.json()["error"]["message"]


def test_calls_of_custom_tools(tools: Running, says: Callable[[str], None]) -> None:
    says(CALL + "\n" + OTHER)
    body = {"messages": [USER], "max_tokens": 400, "tools": [PATCH, WEATHER], "parallel_tool_calls": True}
    answer = tools.ask("/v1/chat/completions", body)
    TypeAdapter(ChatCompletion).validate_python(answer)
    (choice,) = answer["choices"]
    patch, weather = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (patch["type"], patch["custom"], "function" in patch) == (
        "custom",
        {"name": "apply_patch", "input": TEXT},
        False,
    )
    assert (weather["type"], weather["function"]) == (
        "function",
        {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    )

    *events, _ = tools.stream("/v1/chat/completions", body)
    deltas = [c for e in events for c in e["choices"][0]["delta"].get("tool_calls", ())]
    first, *others = [delta for delta in deltas if delta["index"] == 0]
    assert (first["type"], first["custom"]["name"]) == ("custom", "apply_patch")
    assert first["id"]
    assert all(set(delta) == {"index", "custom"} and delta["custom"]["input"] for delta in others)
    assert "".join(delta["custom"]["input"] for delta in (first, *others)) == TEXT
    assert len(others) > 1
    last = [delta for delta in deltas if delta["index"] == 1]
    assert json.loads("".join(delta["function"].get("arguments", "") for delta in last)) == {"city": "Rome"}
    for event in events:
        for delta in event["choices"][0]["delta"].get("tool_calls", ()):
            delta.pop("type", None)  # the package's type of a delta knows functions alone
        TypeAdapter(ChatCompletionChunk).validate_python(event)

    again = {**body, "messages": [USER, choice["message"], {**USER, "role": "tool", "tool_call_id": patch["id"]}]}
    prompt = tools.ask("/apply-template", again)["prompt"]
    assert '"arguments": {"input": "a' in prompt


@pytest.mark.parametrize("cut", [1, 2])
def test_a_call_of_a_custom_tool_that_is_cut(tools: Running, says: Callable[[str], None], cut: int) -> None:
    """A stream has the text that the whole answer has."""
    says(CALL)
    n_all = len(tools.ask("/tokenize", {"content": CALL})["tokens"])
    body = {"messages": [USER], "max_tokens": n_all * cut // 3, "tools": [PATCH]}
    (choice,) = tools.ask("/v1/chat/completions", body)["choices"]
    *events, _ = tools.stream("/v1/chat/completions", body)
    deltas = [c["custom"] for e in events for c in e["choices"][0]["delta"].get("tool_calls", ())]
    assert choice["finish_reason"] == "length"
    whole = [call["custom"] for call in choice["message"].get("tool_calls", ())]
    joined = {"name": "".join(d.get("name", "") for d in deltas), "input": "".join(d.get("input", "") for d in deltas)}
    assert whole == ([joined] if deltas else [])
    assert not whole or TEXT.startswith(whole[0]["input"])
