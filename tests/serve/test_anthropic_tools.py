"""Tools of /v1/messages without a schema: those that clients run get one, those of Anthropic's servers are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llama_cpp_eagle3.chat import LeftOut
from llama_cpp_eagle3.chat.schema.tools import arguments_grammar
from llama_cpp_eagle3.serve.anthropic import to_chat
from serving import Running

USER = {"role": "user", "content": "the self"}
GET = {"name": "get", "description": "Get", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
COMPUTER = {"name": "computer", "display_width_px": 800, "display_height_px": 600}
GOOD: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "bash_20250124", "name": "bash"}, [{"command": "ls"}, {"restart": True}]),
    (
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        [
            {"command": "view", "path": "/a", "view_range": [1, -1]},
            {"command": "create", "path": "/a", "file_text": "x"},
            {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": ""},
            {"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"},
        ],
    ),
    (
        {"type": "text_editor_20241022", "name": "str_replace_editor"},
        [
            {"command": "undo_edit", "path": "/a"},
            {"command": "insert", "path": "/a", "insert_line": 0, "new_str": "x"},
        ],
    ),
    (
        {"type": "memory_20250818", "name": "memory"},
        [{"command": "rename", "old_path": "/a", "new_path": "/b"}, {"command": "delete", "path": "/a"}],
    ),
    (
        {"type": "computer_20241022", **COMPUTER},
        [{"action": "left_click"}, {"action": "left_click_drag", "coordinate": [1, 2]}],
    ),
    (
        {"type": "computer_20250124", **COMPUTER},
        [
            {"action": "screenshot"},
            {"action": "key", "text": "ctrl+s"},
            {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "up", "scroll_amount": 3},
            {"action": "wait", "duration": 1.5},
        ],
    ),
    (
        {"type": "computer_20251124", "enable_zoom": True, **COMPUTER},
        [{"action": "zoom", "region": [0, 0, 10, 10]}],
    ),
]
BAD: list[tuple[dict[str, Any], Any]] = [
    ({"type": "bash_20250124", "name": "bash"}, {}),
    ({"type": "text_editor_20250728", "name": "e"}, {"command": "undo_edit", "path": "/a"}),
    ({"type": "text_editor_20250728", "name": "e"}, {"command": "create", "path": "/a"}),
    ({"type": "computer_20251124", **COMPUTER}, {"action": "zoom", "region": [0, 0, 10, 10]}),
    ({"type": "computer_20250124", **COMPUTER}, {"action": "key"}),
]


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    (found,) = to_chat({"messages": [USER], "tools": [tool]})[1]["tools"]
    return dict(found["function"])


@pytest.mark.parametrize(
    ("tool", "inputs"), GOOD, ids=lambda value: value.get("type", "") if isinstance(value, dict) else ""
)
def test_tools_that_clients_run(tool: dict[str, Any], inputs: list[Any]) -> None:
    function = function_of(tool)
    assert function["name"] == tool["name"]
    Draft202012Validator.check_schema(function["parameters"])
    for arguments in inputs:
        Draft202012Validator(function["parameters"]).validate(arguments)
    assert arguments_grammar({"type": "function", "function": function}).loosened == ()
    if tool["type"].startswith("computer"):
        assert "800x600" in function["description"]


@pytest.mark.parametrize(("tool", "arguments"), BAD)
def test_calls_that_no_client_could_run(tool: dict[str, Any], arguments: Any) -> None:
    assert not Draft202012Validator(function_of(tool)["parameters"]).is_valid(arguments)


def test_a_schema_of_its_own_counts() -> None:
    assert function_of({**GET, "type": "bash_20250124"})["parameters"] == GET["input_schema"]
    assert function_of({"name": "x"}) == {"name": "x", "description": "", "parameters": {}}


HOSTED = [
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
    {"type": "computer_toolset_20260801"},
]


def test_tools_of_anthropics_servers_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut("left out: %s")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = to_chat({"messages": [USER], "tools": [*HOSTED, GET]}, None, left_out)[1]
    assert [tool["function"]["name"] for tool in found["tools"]] == ["get"]
    for tool in HOSTED:
        why = "whose schema is not known" if "computer" in tool["type"] else "which Anthropic's servers run"
        assert caplog.text.count(f"{tool['type']}, {why}") == 1
    assert "tools" not in to_chat({"messages": [USER], "tools": HOSTED})[1]


def test_requests(tools: Running, says: Callable[[str], None]) -> None:
    body: dict[str, Any] = {"messages": [USER], "max_tokens": 100, "tools": HOSTED}
    for choice, expected in (
        ({"type": "any"}, "there are no tools"),
        ({"type": "tool", "name": "web_search"}, "expected one of the tools' names, found 'web_search'"),
    ):
        response = tools.post("/v1/messages", {**body, "tool_choice": choice})
        assert response.status_code == 400
        assert expected in response.json()["error"]["message"]
    nameless = tools.post("/v1/messages", {**body, "tools": [{"input_schema": {}}]})
    assert nameless.status_code == 400
    assert "tools.0: expected a tool to have a 'name'" in nameless.text

    says('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>')
    bash = {"type": "bash_20250124", "name": "bash"}
    answer = tools.ask("/v1/messages", {**body, "tools": [bash], "tool_choice": {"type": "tool", "name": "bash"}})
    (block,) = answer["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "bash", {"command": "ls"})
