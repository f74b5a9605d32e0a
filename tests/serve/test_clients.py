"""Items of /v1/responses and blocks of /v1/messages that agents send again with each turn, also unreadable ones."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fuzz_values import Fuzzer
from llama_cpp_eagle3.serve.api_errors import ApiError
from llama_cpp_eagle3.serve.responses import to_chat
from serving import Running

STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{% for name, value in c.function.arguments|items %}<{{ name }}>{{ value }}{% endfor %}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template for one system message, and arguments as objects, like many a model's, Qwen's since 3.5 among them."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PIXEL}"
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "input_text", "text": text}]}


def call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def calls(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [], "tool_calls": list(given), **more}


SHELL = {"type": "exec", "command": ["ls"], "timeout_ms": None}
ITEMS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"role": "user", "content": "a"}], [message("user", "a")]),
    ([{"type": "message", "role": "assistant", "content": None}], [{"role": "assistant", "content": []}]),
    (
        [
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
            {"type": "function_call", "id": "f", "call_id": "c1", "name": "f", "arguments": '{"a', "status": None},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
        ],
        [
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "so"}],
                "reasoning_content": "hm",
                "tool_calls": [call("f", '{"a')],
            },
            result("5"),
        ],
    ),
    (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None}],
        [{"role": "assistant", "content": [], "reasoning_content": "hm"}],
    ),
    ([{"type": "reasoning", "summary": [], "content": None}, HELLO], [message("user", "Hello")]),
    (
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        ],
        [calls(call("apply_patch", '{"input":"*** Begin"}')), result("done")],
    ),
    (
        [
            {"type": "local_shell_call", "call_id": "c1", "id": "x", "action": SHELL, "status": "completed"},
            {"type": "local_shell_call_output", "call_id": "c1", "output": "files"},
        ],
        [calls(call("local_shell", '{"type":"exec","command":["ls"],"timeout_ms":null}')), result("files")],
    ),
    (
        [
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "files", "stderr": ""}]},
        ],
        [calls(call("shell", '{"commands":["ls"]}')), result([{"type": "input_text", "text": "files"}])],
    ),
    (
        [{"type": "web_search_call", "id": "c1", "status": "completed", "action": {"type": "search", "query": "q"}}],
        [calls(call("web_search", '{"type":"search","query":"q"}'))],
    ),
    (
        [{"type": "file_search_call", "id": "c1", "queries": ["q"], "results": [{"filename": "a", "text": "A"}]}],
        [calls(call("file_search", '{"queries":["q"]}')), result("A")],
    ),
    (
        [{"type": "code_interpreter_call", "id": "c1", "code": "5", "outputs": [{"type": "logs", "logs": "5"}]}],
        [calls(call("code_interpreter", '{"code":"5"}')), result("5")],
    ),
    (
        [{"type": "mcp_call", "id": "c1", "name": "f", "arguments": "{}", "output": "5", "error": None}],
        [calls(call("f", "{}")), result("5")],
    ),
    (
        [
            {"type": "tool_search_call", "call_id": None, "id": "c1", "name": "find", "arguments": {"q": "x"}},
            {"type": "tool_search_output", "call_id": "c1", "output": None, "tools": []},
        ],
        [calls(call("find", '{"q":"x"}')), result("")],
    ),
    (
        [{"type": "tool_search_call", "call_id": "c1", "arguments": {"q": "x"}, "execution": "client"}],
        [calls(call("tool_search", '{"q":"x"}'))],
    ),
    ([{"type": "compaction", "summary": "All of it."}], [message("user", "All of it.")]),
    ([{"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "5"}]}],
     [result([{"type": "input_text", "text": "5"}])]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "messages"), ITEMS)
def test_items_that_are_sent_again(
    running: Running, items: list[dict[str, Any]], messages: list[dict[str, Any]]
) -> None:
    def without_type(m: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in m.items() if k != "type"}

    assert [without_type(m) for m in to_chat({"input": items})[1]["messages"]] == messages
    answer = running.ask("/v1/responses", {"input": [HELLO, *items, HELLO], "max_output_tokens": 2})
    assert answer["usage"]["output_tokens"] == 2
    count = running.ask("/v1/responses/input_tokens", {"input": [HELLO, *items, HELLO]})["input_tokens"]
    assert count == answer["usage"]["input_tokens"]


NOTHING: list[dict[str, Any]] = [
    {"type": "item_reference", "id": "x"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    {"type": "mcp_list_tools", "id": "x", "server_label": "s", "tools": [{"name": "f"}]},
    {"type": "mcp_approval_response", "approve": True, "approval_request_id": "x"},
    {"type": "image_generation_call", "id": "x", "status": "completed", "result": "QUJD"},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}},
]


def test_items_without_text(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Items without text are left out, which is logged once for each type."""
    plain = running.ask("/v1/responses/input_tokens", {"input": [HELLO]})
    with caplog.at_level(logging.WARNING, "llama_cpp_eagle3"):
        for _ in range(2):
            assert running.ask("/v1/responses/input_tokens", {"input": [*NOTHING, HELLO, *NOTHING]}) == plain
            assert running.ask("/v1/responses", {"input": [*NOTHING, HELLO], "max_output_tokens": 1})
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert all(repr(item["type"]) in warning for item in NOTHING)
    for item in NOTHING:
        response = running.post("/v1/responses", {"input": [item]})
        assert response.status_code == 400
        assert repr(item["type"]) in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "item",
    [
        5,
        {"type": 5},
        {"role": "judge", "content": "x"},
        {"type": "message", "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [5]},
        {"type": "function_call", "call_id": "x", "arguments": "{}"},
        {"type": "function_call", "call_id": 5, "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": 5},
        {"type": "function_call_output", "call_id": "x", "output": 5},
        {"type": "reasoning", "content": 5},
    ],
)
def test_items_that_a_client_can_mend(running: Running, item: Any) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        response = running.post(path, {"input": [HELLO, item], "max_output_tokens": 1})
        assert response.status_code == 400, response.text


def test_an_item_is_named_by_its_place() -> None:
    with pytest.raises(ApiError, match=r"input\.1: expected 'name' of an item of type 'function_call'"):
        to_chat({"input": [HELLO, {"type": "function_call", "call_id": "x", "arguments": "{}"}]})


def test_blocks_of_messages(running: Running) -> None:
    """Blocks of messages work, and those of chats, as agents mix them."""
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "x"}}
    blocks = [
        {"type": "tool_reference", "tool_name": "find"},
        {
            "type": "search_result",
            "source": "https://example.org",
            "title": "T",
            "content": [{"type": "text", "text": "S"}],
        },
        {"type": "unheard_of", "content": "C"},
        {"type": "unheard_of_too"},
    ]
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": blocks}]
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": results},
    ]
    count = running.ask("/v1/messages/count_tokens", {"messages": messages})["input_tokens"]
    assert running.ask("/v1/chat/completions/input_tokens", {"messages": messages})["input_tokens"] == count
    prompt = running.ask("/apply-template", {"messages": messages})["prompt"]
    assert "find\nT\nhttps://example.org\nS\nC" in prompt
    for path in ("/v1/messages", "/v1/chat/completions"):
        assert running.ask(path, {"messages": messages, "max_tokens": 2})


@pytest.fixture(scope="module")
def strict(pair: Any) -> Any:
    with Running(*pair, options={"chat_template": STRICT}) as running:
        yield running


SYSTEM, USER, ANSWER = ({"role": r, "content": r} for r in ("system", "user", "assistant"))
CUT = {"type": "function_call", "call_id": "c"}
DEVELOPER = {"role": "developer", "content": "developer"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [USER, SYSTEM, USER]}),
        ("/v1/messages", {"system": "first", "messages": [USER, ANSWER, SYSTEM, USER]}),
        ("/v1/responses", {"instructions": "first", "input": [DEVELOPER, USER]}),
        ("/v1/responses", {"instructions": "first", "input": [USER, DEVELOPER, SYSTEM, USER, SYSTEM]}),
        ("/v1/chat/completions", {"messages": [USER, ANSWER, SYSTEM, USER]}),
        ("/v1/chat/completions", {"messages": [SYSTEM, DEVELOPER, USER]}),
        ("/v1/chat/completions", {"messages": [USER, calls(call("f", '{"a": "b')), result("cut off"), SYSTEM]}),
        ("/v1/chat/completions", {"messages": [USER, calls(call("f", "")), USER]}),
        ("/v1/messages", {"messages": [USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": '{"a": "b'}]}, USER]}),
        ("/v1/responses", {"input": [USER, {**CUT, "name": "f", "arguments": '{"a'}, USER]}),
    ],
)  # fmt: skip
def test_a_strict_template(strict: Running, path: str, body: dict[str, Any]) -> None:
    answer = strict.ask(path, {**body, "max_tokens": 2, "max_output_tokens": 2})
    assert answer["usage"]


def test_images_for_a_model_that_sees_nothing(running: Running) -> None:
    """The error is the same, wherever the images are."""
    image = {"type": "input_image", "image_url": URL}
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    said = {"type": "image_url", "image_url": {"url": URL}}
    output = {"type": "function_call_output", "call_id": "c1", "output": [image]}
    function = {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"}
    shown = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}]
    texts = set()
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [said]}]}),
        ("/v1/chat/completions", {"messages": [USER, calls(call("view", "{}")), result([said])]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [image]}]}),
        ("/v1/responses", {"input": [HELLO, function, output]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}),
        ("/v1/messages", {"messages": [USER, {"role": "user", "content": shown}]}),
    ):
        response = running.post(path, body)
        assert response.status_code == 400
        texts.add(response.json()["error"]["message"])
    (text,) = texts
    assert "image input is not supported" in text
    assert "--mmproj" in text


def test_random_items() -> None:
    """Random items become messages, or an error with a message."""
    n_read = 0
    for case in range(2000):
        fuzzer = Fuzzer(2, case)
        items = [fuzzer.block() for _ in range(3)]
        try:
            messages = to_chat({"input": items, "instructions": "x"})[1]["messages"]
        except ApiError:
            continue
        n_read += 1
        assert all({"role", "content"} <= set(message) for message in messages)
    assert 200 < n_read < 1800
