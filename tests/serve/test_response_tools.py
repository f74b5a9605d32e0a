"""Tools of /v1/responses that are no plain functions: namespaces, custom tools, tools that OpenAI's servers run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from llama_cpp_eagle3.chat import LeftOut
from llama_cpp_eagle3.chat.custom_tools import InputText, input_of
from llama_cpp_eagle3.serve.api_errors import ApiError
from llama_cpp_eagle3.serve.response_tools import ResponseTools
from llama_cpp_eagle3.serve.responses import to_chat
from serving import Running

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = {"type": "function", "name": "get", "parameters": PARAMETERS}
NAMESPACE = {"type": "namespace", "name": "mcp__weather", "description": "Weather", "tools": [GET]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patch files"}
DEFINITION = """
start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?
hunk: "*** Delete File: " /[a-z]{1,5}/ LF | "*** Add File: " /[a-z]{1,5}/ LF ("+" /[^\\n]{0,3}/ LF)~1..2
%import common.LF
"""
IS_PATCH = (
    r"\*\*\* Begin Patch\n(\*\*\* Delete File: [a-z]{1,5}\n|\*\*\* Add File: [a-z]{1,5}\n(\+[^\n]{0,3}\n){1,2})+"
    r"\*\*\* End Patch\n?"
)
LARK = {"type": "grammar", "syntax": "lark", "definition": DEFINITION}
DIGITS = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
ALLOWED = {"type": "allowed_tools", "mode": "required"}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_thousands_of_items_take_no_long_time() -> None:
    """Each is read once, however many thoughts, calls and tools are beside it."""
    user = {"role": "user", "content": "a"}
    thoughts = [{"type": "reasoning", "content": "b" * 500}] * 20_000
    calls = [{"type": "function_call", "call_id": "c", "name": "f", "namespace": "n"}] * 60_000
    inner = [{**GET, "name": f"f{i}"} for i in range(511)]
    tools = [{"type": "namespace", "name": "n", "tools": [*inner, {**GET, "name": "f"}]}]
    start = time.thread_time()
    _, chat = to_chat({"input": [user, *thoughts, *calls], "tools": tools})
    assert time.thread_time() - start < 2.0
    assert chat["messages"][1]["reasoning_content"] == "\n\n".join(["b" * 500] * 20_000)
    assert chat["messages"][1]["tool_calls"][-1]["function"]["name"] == "n__f"
    tools[0]["tools"] = [{**GET, "name": f"f{i}"} for i in range(513)]
    with pytest.raises(ApiError, match="at most 512 tools, found 513"):
        to_chat({"input": [user], "tools": tools})


def test_tools_become_functions(caplog: pytest.LogCaptureFixture) -> None:
    hosted: list[dict[str, Any]] = [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    left_out = LeftOut("left out: %s")
    for _ in range(2):
        tools = ResponseTools([GET, NAMESPACE, *hosted, PATCH, {**PATCH, "name": "d", "format": DIGITS}], left_out)
    get, weather, patch, digits = (tool["function"] for tool in tools.functions)
    assert (get["name"], get["parameters"], get["strict"]) == ("get", PARAMETERS, True)
    assert (weather["name"], weather["description"]) == ("mcp__weather__get", "Weather")
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert patch["parameters"] == {**text, "additionalProperties": False}
    assert digits["parameters"]["properties"]["input"]["pattern"] == "^(?:[0-9]+)$"
    assert [tool["type"] for tool in tools.offered] == ["function", "namespace", "custom", "custom"]
    assert caplog.text.count("web_search, which runs on the API's own servers") == 1


def test_a_grammar_in_lark() -> None:
    (tool,) = ResponseTools([{**PATCH, "format": LARK}]).functions
    assert DEFINITION.strip() in tool["function"]["description"]
    assert tool["function"]["parameters"]["properties"]["input"]["x-lark"] == LARK["definition"]


def test_names_are_unique_and_found_again() -> None:
    flat = {**GET, "name": "mcp__weather__get"}
    tools = ResponseTools([flat, NAMESPACE])
    assert [tool["function"]["name"] for tool in tools.functions] == ["mcp__weather__get", "mcp__weather__get_2"]
    assert tools.called("mcp__weather__get").namespace == ""
    assert (tools.called("mcp__weather__get_2").namespace, tools.called("mcp__weather__get_2").name) == (
        "mcp__weather",
        "get",
    )
    assert tools.name_of({"name": "get", "namespace": "mcp__weather"}) == "mcp__weather__get_2"
    assert tools.name_of({"name": "get"}) == "get"
    assert tools.name_of({"name": "old", "namespace": "a"}) == "a__old"
    assert tools.called("unknown").name == "unknown"


def test_names_do_not_depend_on_the_order() -> None:
    """A tool without a namespace keeps its name, and an earlier call of it."""
    flat = {**GET, "name": "mcp__weather__get"}
    tools = ResponseTools([NAMESPACE, flat])
    assert [tool["function"]["name"] for tool in tools.functions] == ["mcp__weather__get_2", "mcp__weather__get"]
    assert tools.called("mcp__weather__get").namespace == ""
    assert tools.name_of({"name": "mcp__weather__get"}) == "mcp__weather__get"
    assert tools.name_of({"name": "get", "namespace": "mcp__weather"}) == "mcp__weather__get_2"
    assert tools.choice({"type": "function", "name": "mcp__weather__get"}) == named("mcp__weather__get")


def test_calls_of_two_types_with_one_name() -> None:
    tools = ResponseTools([{**GET, "name": "x"}, {**PATCH, "name": "x"}])
    assert tools.name_of({"type": "function_call", "name": "x"}) == "x"
    assert tools.name_of({"type": "custom_tool_call", "name": "x"}) == "x_2"


def offered(path: str, **properties: Any) -> dict[str, Any]:
    """A tool named f in the form of an API."""
    schema = {"type": "object", "properties": properties}
    if path.startswith("/v1/messages"):
        return {"name": "f", "input_schema": schema}
    function = {"name": "f", "parameters": schema}
    if path == "/v1/responses":
        return {"type": "namespace", "name": "n", "tools": [{"type": "function", **function}]}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/apply-template"]
)
def test_tools_of_one_name(running: Running, path: str) -> None:
    """Two that differ are refused: nobody could tell which of them a call means. One that is given again is taken."""
    first, second = offered(path, a={"type": "string"}), offered(path, b={"type": "string"})
    body = {"messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 2, "max_output_tokens": 2}
    response = running.post(path, {**body, "tools": [first, second]})
    assert response.status_code == 400
    assert "tools: expected each tool to have a name of its own, found two named " in response.text
    again, once = (running.post(path, {**body, "tools": [first] * n}) for n in (2, 1))
    assert again.status_code == once.status_code
    for name in ("input_tokens", "prompt", "error"):  # the context may be too small
        assert again.json().get(name) == once.json().get(name)


def test_custom_tools_of_one_name(running: Running) -> None:
    custom = [{"type": "custom", "custom": {"name": "f", "description": text}} for text in "ab"]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": custom, "max_tokens": 2}
    response = running.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert "found two named 'f'" in response.json()["error"]["message"]


def test_hosted_tools_of_a_namespace_are_said(caplog: pytest.LogCaptureFixture) -> None:
    space = {**NAMESPACE, "tools": [{"type": "file_search"}, GET, {"type": "namespace", "name": "y", "tools": [GET]}]}
    tools = ResponseTools([space], LeftOut("left out: %s"))
    assert [tool["function"]["name"] for tool in tools.functions] == ["mcp__weather__get"]
    for kind in ("file_search", "namespace"):
        assert f"{kind}, which runs on the API's own servers" in caplog.text


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ({"type": "function", "name": "get"}, named("get")),
        ({"type": "function", "name": "get", "namespace": "mcp__weather"}, named("mcp__weather__get")),
        ({"type": "custom", "name": "apply_patch"}, named("apply_patch")),
        (
            {**ALLOWED, "tools": [{"type": "custom", "name": "apply_patch"}]},
            {**ALLOWED, "tools": [named("apply_patch")]},
        ),
        (
            {**ALLOWED, "tools": [{"type": "namespace", "name": "mcp__weather"}, {"type": "web_search"}]},
            {**ALLOWED, "tools": [named("mcp__weather__get")]},
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none"),
    ],
)
def test_choices(choice: Any, expected: Any) -> None:
    assert ResponseTools([GET, NAMESPACE, PATCH, {"type": "web_search"}]).choice(choice) == expected


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "function", "name": "apply_patch"},
        {"type": "custom", "name": "x"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": 5},
    ],
)
def test_choices_that_nothing_can_be_made_of(choice: Any) -> None:
    with pytest.raises(ApiError, match="tool_choice: expected"):
        ResponseTools([GET, NAMESPACE, PATCH, {"type": "web_search"}]).choice(choice)


@pytest.mark.parametrize(
    "tool",
    [
        *({"type": "function"}, {"type": "custom", "name": 5}, {"type": "namespace", "name": "x"}),
        {"type": "namespace", "name": "x", "tools": [5]},
        {"type": "namespace", "tools": [GET]},
        {**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}},
        {**PATCH, "format": 5},
    ],
)
def test_tools_that_a_client_can_mend(running: Running, tool: Any) -> None:
    response = running.post("/v1/responses", {"input": "a", "tools": [GET, tool]})
    assert response.status_code == 400
    assert "tools.1: expected" in response.text


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_text_of_a_call_in_pieces(n: int) -> None:
    text = 'a"b\\\n\t/é😀ü\u2028 天' * 3
    for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False, indent=1)):
        reader = InputText()
        pieces = [reader.add(arguments[i : i + n]) for i in range(0, len(arguments), n)]
        assert "".join(pieces) == input_of(arguments) == text
    assert input_of('{"input": "a\\n\\u26') == "a\n"


def test_calls_become_items(tools: Running, says: Callable[[str], None]) -> None:
    says(
        '<tool_call>\n{"name": "mcp__weather__get", "arguments": {"city": "one"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "a \\"b\\"\\n"}}\n</tool_call>'
    )
    asked = {
        "input": "the self",
        "tools": [NAMESPACE, PATCH, {"type": "web_search"}],
        "max_output_tokens": 400,
        "tool_choice": "required",
        "parallel_tool_calls": True,
    }
    answer = tools.ask("/v1/responses", asked)
    assert [tool["name"] for tool in answer["tools"]] == ["mcp__weather", "apply_patch"]
    assert answer["tool_choice"] == "required"
    call, patch = answer["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__weather", "get")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", 'a "b"\n')
    events = tools.stream_named("/v1/responses", asked)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["function_call", "custom_tool_call"]
    pieces = [event for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(piece["delta"] for piece in pieces) == 'a "b"\n'
    assert len(pieces) > 1
    (end,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert (end["input"], end["item_id"]) == ('a "b"\n', done[1]["id"])
    assert {piece["item_id"] for piece in pieces} == {done[1]["id"]}

    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "done"},
    ]
    again = {**asked, "input": [{"role": "user", "content": "hi"}, call, patch, *outputs], "max_output_tokens": 2}
    assert tools.ask("/v1/responses", again)["usage"]["input_tokens"] > answer["usage"]["input_tokens"]


@pytest.mark.parametrize(("form", "pattern"), [(LARK, IS_PATCH), (DIGITS, "[0-9]+")], ids=["lark", "regex"])
def test_formats_are_held(roomy_tools: Running, form: dict[str, Any], pattern: str) -> None:
    """Whatever the model is, its calls match; drafts change nothing, and a stream has the same."""
    asked = {
        "input": "the self",
        "tools": [GET, {**PATCH, "format": form}],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
        "parallel_tool_calls": False,
        "max_output_tokens": 600,
        "temperature": 1.0,
    }
    n_whole = 0
    for seed in range(6):
        answer = roomy_tools.ask("/v1/responses", {**asked, "seed": seed})
        (call,) = answer["output"]
        assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
        assert "loosened" not in answer["metrics"]
        if answer["status"] == "completed":
            n_whole += 1
            assert re.fullmatch(pattern, call["input"]), call
        if seed < 2:
            plain = roomy_tools.ask("/v1/responses", {**asked, "seed": seed, "speculative": False})
            assert plain["output"][0]["input"] == call["input"]
            events = roomy_tools.stream_named("/v1/responses", {**asked, "seed": seed})
            deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
            assert "".join(deltas) == call["input"]
    assert n_whole > 2


def test_a_grammar_is_shown_once(roomy_tools: Running) -> None:
    functions = ResponseTools([{**PATCH, "format": LARK}]).functions
    asked = {"messages": [{"role": "user", "content": "a"}], "tools": functions}
    assert roomy_tools.ask("/apply-template", asked)["prompt"].count("*** Begin Patch") == 1


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("start: a", "line 1: there is no rule a"),
        ("start: 'a'", "line 1: no part of a grammar in Lark begins with"),
        ('start: start "x"', "no text matches the grammar"),
        ("start: " + '"x" ' * 30_000, "expected at most 65536 characters"),
        (f"start: ({'x? ' * 10_000})*\nx: " + '"y"', "it takes too much work"),
    ],
    ids=["unknown", "quotes", "endless", "long", "large"],
)
def test_formats_that_are_refused(running: Running, definition: str, why: str) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    response = running.post("/v1/responses", {"input": "a", "tools": [GET, {**PATCH, "format": form}]})
    assert response.status_code == 400
    assert "tools.1: 'format.definition': " in response.json()["error"]["message"]
    assert why in response.json()["error"]["message"]
    assert running.ask("/v1/responses", {"input": "a", "max_output_tokens": 1})["status"] == "incomplete"


def test_a_required_call_without_tools(running: Running) -> None:
    for path, asked in (
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = running.post(path, {**asked, "tool_choice": "required"})
        assert response.status_code == 400
        assert "there are no tools" in response.text
