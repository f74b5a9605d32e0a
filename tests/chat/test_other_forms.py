"""Requests in other forms: OpenAI's older functions, and the words of others for how much a model thinks."""

from __future__ import annotations

from typing import Any

import pytest

from llama_cpp_eagle3.chat import ChatTemplates, apply_request, call_form, in_one_form

USER = {"role": "user", "content": "Hello"}


def test_functions_become_tools() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    plain = {"messages": [USER]}
    for choice, expected in (
        (None, None),
        ("none", "none"),
        ({"name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ):
        found = in_one_form({**plain, "functions": [function], "function_call": choice})
        assert found["tools"] == [{"type": "function", "function": function}]
        assert (found.get("tool_choice"), found["parallel_tool_calls"]) == (expected, False)
    assert in_one_form(plain) == plain
    nulls = {"name": "f", "description": None, "parameters": None, "strict": None}
    for given in ({"tools": [{"type": "function", "function": nulls}]}, {"functions": [nulls]}):
        found = in_one_form(plain | given)
        assert found["tools"] == [{"type": "function", "function": {"name": "f"}}]
        apply_request(ChatTemplates(template="chatml"), found)  # llama.cpp reads it
    for wrong in ({"functions": 5}, {"functions": [5]}, {"functions": [], "function_call": 5}):
        with pytest.raises(ValueError, match=f"expected '{list(wrong)[-1]}' to be"):
            in_one_form(plain | wrong)


def test_older_and_newer_names_may_be_mixed() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tool, one = {"type": "function", "function": function}, {"type": "function", "function": {"name": "f"}}
    for given, choice in (
        ({"functions": [function], "tool_choice": "required"}, "required"),
        ({"functions": [function], "tools": [], "function_call": {"name": "f"}}, one),
        ({"functions": [function], "function_call": {"name": "f"}, "tool_choice": one}, one),
        ({"functions": [], "tools": [tool], "function_call": {"name": "f"}}, one),
    ):
        found = in_one_form({"messages": [USER], **given})
        assert (found["tools"], found["tool_choice"]) == ([tool], choice)
        assert in_one_form(found) == found
        assert call_form(given).has_functions == (not given.get("tools"))
    for both in (
        {"tools": [tool], "functions": [function]},
        {"tools": [tool], "tool_choice": "none", "function_call": {"name": "f"}},
    ):
        with pytest.raises(ValueError, match="found both"):
            in_one_form({"messages": [USER], **both})
    assert in_one_form({"messages": [USER], "function_call": {"name": "f"}})["tool_choice"] == one  # which is refused


ON, OFF = ({"chat_template_kwargs": {"enable_thinking": is_on}} for is_on in (True, False))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}}, {"output_config": {"effort": "low"}, "reasoning_effort": "low"}),
        ({"reasoning": {"max_tokens": 7, "exclude": False}}, {"thinking_budget_tokens": 7}),
        ({"reasoning": {"enabled": False, "effort": "low"}}, OFF),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, ON | {"thinking_budget_tokens": 7}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"enable_thinking": False, "thinking_budget": 0}, OFF | {"thinking_budget_tokens": 0}),
        ({"enable_thinking": True, "thinking": None}, ON),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"chat_template_kwargs": {"enable_thinking": False, "a": 1}},
        ),
    ],
)
def test_wishes_about_thinking(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = in_one_form({"messages": [USER], "seed": 1, **given})
    assert found == {"messages": [USER], "seed": 1, **expected}
    assert in_one_form(found) == found


@pytest.mark.parametrize(
    ("given", "name"),
    [({"reasoning": 5}, "reasoning"), ({"thinking": "on"}, "thinking"), ({"enable_thinking": "no"}, "enable_thinking")],
)
def test_wrong_forms_are_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"expected '{name}' to be"):
        in_one_form({"messages": [USER], **given})
