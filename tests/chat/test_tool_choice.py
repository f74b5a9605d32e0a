"""Names of tools and choices of them: refused with what was found."""

from __future__ import annotations

from typing import Any

import pytest

from llama_cpp_eagle3.chat import ChatTemplates, apply_request

USER = {"role": "user", "content": "Hello"}
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}}


def tool(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}


@pytest.mark.parametrize("name", ["", " ", "\t", "a ", " a", "a\u0000b", "a\nb", "\x7f", "\u3000"])
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_names_that_no_call_could_have(name: str, choice: str) -> None:
    """Formats of calls drop the white space around a name."""
    body = {"messages": [USER], "tools": [tool("a"), tool(name)], "tool_choice": choice}
    with pytest.raises(ValueError, match=r"tools\.1: expected a tool's name") as e:
        apply_request(ChatTemplates(template="chatml"), body)
    assert f"found {name!r}" in str(e.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, "found 5"),
        ({}, "found {}"),
        ({"type": "web_search"}, "found {'type': 'web_search'}"),
        ({"type": "function", "name": "a"}, "found {'type': 'function', 'name'"),
        ({"type": "function", "function": "a"}, "found {'type': 'function', 'function'"),
        (tool(None), "found None"),
        (tool({"a": 1}), "found {'a': 1}"),
        ({"type": "function", "function": {"name": "a", "description": 5}}, "description of tool 'a' to be a string"),
    ],
)
def test_what_is_no_tool(given: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=r"tools\.1: expected") as e:
        apply_request(ChatTemplates(template="chatml"), {"messages": [USER], "tools": [tool("a"), given]})
    assert expected in str(e.value)


@pytest.mark.parametrize(("choice", "is_forced"), [("auto", False), ("any", True), ("required", True), ("none", False)])
def test_words_in_all_forms(choice: str, is_forced: bool) -> None:
    for form in (choice, {"type": choice}):
        body = {"messages": [USER], "tools": [tool("a")], "tool_choice": form}
        params = apply_request(ChatTemplates(template="chatml"), body)
        assert (bool(params.grammar) and not params.grammar_lazy) == is_forced


@pytest.mark.parametrize("choice", ["x", 5, ["a"], {"type": "function"}, {"type": 5}])
def test_words_that_nothing_can_be_made_of(choice: Any) -> None:
    body = {"messages": [USER], "tools": [tool("a")], "tool_choice": choice}
    with pytest.raises(ValueError, match="tool_choice: expected auto, none, required or a tool, found"):
        apply_request(ChatTemplates(template="chatml"), body)


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"type": "function", "function": {"name": ""}}, "found ''"),
        ({"type": "function", "function": {"name": "b"}}, "found 'b'"),
        ({"type": "function", "name": ""}, "found ''"),
        ({"type": "function", "function": {}}, "found {'type': 'function'"),
        ({}, "found {}"),
        ({"type": "function", "function": {"name": None}}, "found None"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": [5]}]}, "found [5]"),
    ],
)
def test_a_choice_of_no_tool(choice: Any, found: str) -> None:
    body = {"messages": [USER], "tools": [tool("a")], "tool_choice": choice}
    with pytest.raises(ValueError, match="tool_choice: expected one of the tools' names") as e:
        apply_request(ChatTemplates(template="chatml"), body)
    assert found in str(e.value)
