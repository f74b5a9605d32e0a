"""Blocks of clients' messages: a block with text becomes text, others are left out and reported once."""

from __future__ import annotations

import base64
import json
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from chatting import Load
from fuzz_values import Fuzzer
from llama_cpp_eagle3.chat import ChatTemplates, LeftOut, apply_request, read_messages, without_billing_line
from llama_cpp_eagle3.chat.conversation import read_conversation

USER = {"role": "user", "content": "Hello"}
SUM = {"type": "text", "text": "Sum it up."}
URL = "https://example.org"
PIXEL = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def content_of(block: Any, role: str = "user") -> Any:
    (message,) = read_messages([{"role": role, "content": [block]}])
    return message["content"]


BLOCKS: list[tuple[dict[str, Any], str]] = [
    (SUM, "Sum it up."),
    ({**SUM, "cache_control": {"type": "ephemeral"}, "citations": None}, "Sum it up."),
    ({"type": "input_text", "text": "a"}, "a"),
    ({"type": "output_text", "text": "a", "annotations": [], "logprobs": None}, "a"),
    ({"type": "refusal", "refusal": "no"}, "no"),
    ({"text": "a"}, "a"),
    ({"type": "tool_reference", "tool_name": "find"}, "find"),
    ({"type": "search_result", "source": URL, "title": "T", "content": [SUM]}, f"T\n{URL}\nSum it up."),
    ({"type": "web_search_result", "url": URL, "title": "T", "encrypted_content": "x"}, f"T\n{URL}"),
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A"}}, "A"),
    ({"type": "document", "title": "T", "source": {"type": "content", "content": "A"}}, "T\nA"),
    ({"type": "document", "source": {"type": "content", "content": [SUM, SUM]}}, "Sum it up.\nSum it up."),
    (
        {"type": "document", "source": {"type": "base64", "media_type": "text/csv", "data": base64_of("a,ä")}},
        "a,ä",
    ),
    (
        {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{base64_of('A')}"}},
        "a.txt\nA",
    ),
    ({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain,A%20b"}, "a.txt\nA b"),
    ({"type": "compaction", "content": "All of it."}, "All of it."),
    ({"type": "something_new", "content": [{"type": "text", "text": "a"}, {"deep": 1}]}, "a"),
    ({"type": "thinking", "thinking": "hm", "signature": "x"}, "hm"),
]


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_what_has_text_is_text(block: dict[str, Any], text: str) -> None:
    parts = content_of(block)
    assert {part["type"] for part in parts} == {"text"}
    assert "\n".join(part["text"] for part in parts) == text
    (result,) = read_messages(
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block, block]}]}]
    )
    assert (result["role"], result["tool_call_id"]) == ("tool", "t")
    assert result["content"].count(text) == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("boom", "Error: boom"),
        ([SUM], f"Error: {SUM['text']}"),
        ([SUM, PICTURE], [{"type": "text", "text": "Error:"}, SUM, PICTURE]),
        (None, "Error: "),
        ("<tool_use_error>no such file</tool_use_error>", "<tool_use_error>no such file</tool_use_error>"),
        ("An error occurred", "An error occurred"),
    ],
)
def test_a_result_says_that_it_is_an_error(content: Any, text: Any) -> None:
    """Templates have no place for Anthropic's `is_error`."""
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    (good,), (bad,) = (read_messages([{"role": "user", "content": [b]}]) for b in (block, {**block, "is_error": True}))
    assert bad["content"] == text
    assert read_messages([{"role": "user", "content": [{**block, "is_error": False}]}]) == [good]


def test_what_is_beside_a_text() -> None:
    """A document's context is text too; images that Ollama's clients put beside the content are said to be left out."""
    source = {"type": "text", "media_type": "text/plain", "data": "BODY"}
    parts = content_of({"type": "document", "title": "T", "context": "CTX", "source": source})
    assert [part["text"] for part in parts] == ["T", "CTX", "BODY"]
    told: list[str] = []
    left_out = SimpleNamespace(tell=told.extend)
    (message,) = read_messages([{"role": "user", "content": "what", "images": ["aGk="]}], left_out)  # type: ignore[arg-type]
    assert (message, told) == ({"role": "user", "content": "what"}, ["images"])


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": PIXEL},
        {"type": "image", "data": "QUJD", "mimeType": "image/png"},
        {"type": "image", "image": "data:image/png;base64,QUJD"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}, "cache_control": None},
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"},
        {"type": "input_image", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "computer_screenshot", "image_url": "data:image/png;base64,QUJD"},
    ],
)
def test_images_of_all_dialects(block: dict[str, Any]) -> None:
    assert content_of(block) == [PICTURE]
    (result,) = read_messages(
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [SUM, block]}]}]
    )
    assert result["content"] == [SUM, PICTURE]
    with pytest.raises(ValueError, match="image input is not supported"):
        apply_request(ChatTemplates(template="chatml"), {"messages": [{"role": "user", "content": content_of(block)}]})


NOTHING: list[dict[str, Any]] = [
    {"type": "redacted_thinking", "data": "x"},
    {"type": "container_upload", "file_id": "x"},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
    {"type": "document", "source": {"type": "url", "url": URL}},
    {"type": "document", "source": {"type": "file", "file_id": "x"}},
    {"type": "input_file", "file_id": "x"},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,x"}},
    {"type": "smell", "strength": 5, "of": {"type": "image", "content": "x"}},
]


def test_what_has_none_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut()
    messages = [USER, {"role": "assistant", "content": NOTHING}, {"role": "user", "content": [*NOTHING, SUM]}]
    for _ in range(2):
        assert read_messages(messages, left_out) == [USER, {"role": "user", "content": [SUM]}]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for block in NOTHING:
        assert record.getMessage().count(repr(block["type"])) == 1
    read_messages([USER, {"role": "user", "content": [{"type": "taste"}]}], left_out)
    assert len(caplog.records) == 2
    assert "'taste'" in caplog.text
    for i in range(1000):  # a client cannot fill the log
        read_messages([USER, {"role": "user", "content": [{"type": f"x{i}"}]}], left_out)
    assert len(caplog.records) < 102


def test_nothing_is_left() -> None:
    for block in NOTHING:
        with pytest.raises(ValueError, match=f"nothing is left of the conversation.*'{block['type']}'"):
            read_messages([{"role": "system", "content": "x"}, {"role": "user", "content": [block]}])


def test_tools_of_a_server() -> None:
    """A server's tool call and its result become messages like other tools', and the answer continues after them."""
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_result", "url": URL, "title": "T", "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [found, found]}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    messages = read_messages([USER, {"role": "assistant", "content": [thought, use, result, SUM]}, USER])
    call = {"id": "s1", "type": "function", "function": {"name": "web_search", "arguments": '{"query":"q"}'}}
    assert messages == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "s1", "content": f"T\n{URL}\nT\n{URL}"},
        {"role": "assistant", "content": [SUM]},
        USER,
    ]
    for content, text in (
        ({"type": "web_search_tool_result_error", "error_code": "unavailable"}, "unavailable"),
        ({"type": "code_execution_result", "stdout": "5", "stderr": "", "return_code": 0, "content": []}, "5"),
        ({"type": "x", "tool_references": [{"type": "tool_reference", "tool_name": "find"}]}, "find"),
        (None, ""),
        ("plain", "plain"),
    ):
        block = {"type": "mcp_tool_result", "tool_use_id": "s1", "content": content}
        assert read_messages([{"role": "assistant", "content": [use, block]}])[1]["content"] == text


def test_calls_of_all_dialects() -> None:
    given = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert read_messages([{"role": "assistant", "content": None, "tool_calls": [given]}]) == [
        {"role": "assistant", "content": None, "tool_calls": [given]}
    ]
    for call, arguments in (
        ({"id": "c1", "function": {"name": "f", "arguments": ""}}, "{}"),
        ({"id": "c1", "type": None, "function": {"name": "f", "arguments": None}}, "{}"),
        ({"id": "c1", "type": "function", "function": {"name": "f"}, "index": 0}, "{}"),
        ({"id": "c1", "type": "custom", "custom": {"name": "f", "input": "a b"}}, '{"input":"a b"}'),
    ):
        (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
        (read,) = message["tool_calls"]
        assert (read["id"], read["type"]) == ("c1", "function")
        assert read["function"] == {"name": "f", "arguments": arguments}
    older = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "5"},
    ]
    call, result = read_messages(older)
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["tool_calls"][0]["id"])
    for input, arguments in (({"a": 1}, '{"a":1}'), (None, "{}"), ('{"a', '{"a'), ([1], "[1]")):
        block = {"type": "tool_use", "id": "t", "name": "f", "input": input}
        (message,) = read_messages([{"role": "assistant", "content": [SUM, block]}])
        assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_null_and_empty_contents() -> None:
    """Contents are null or empty, as in a client's own objects with all their fields."""
    dumped = {"role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None}
    for message in (
        {**dumped, "tool_calls": None, "annotations": None, "name": None, "reasoning_content": None},
        {**dumped, "refusal": "no"},
        {"role": "assistant", "content": [], "tool_calls": []},
        {"role": "assistant", "reasoning_content": "hm"},
        {"role": "assistant", "audio": {"id": "x"}, "content": None},
    ):
        messages = read_messages([USER, message, {"role": "user", "content": None, "name": None}, USER])
        prompt = apply_request(ChatTemplates(template="chatml"), {"messages": messages}).prompt
        assert prompt.count("<|im_start|>") == 5
        assert ("no" in prompt) == (message.get("refusal") == "no")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [5]},
        {"role": "user", "content": [{}]},
        {"role": "user", "content": [{"type": 5}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]},
        {"role": "user", "content": [{"type": "input_image", "file_id": "x"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": 5}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": 5}]},
        {"role": "assistant", "content": [SUM], "reasoning_content": 5},
    ],
)
def test_what_a_client_can_mend_is_an_error(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"messages\.1: "):
        read_messages([USER, message])


def test_reading_twice_changes_nothing() -> None:
    blocks = [block for block, _ in BLOCKS]
    messages = read_messages([USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": blocks}])
    assert read_messages(messages) == messages


def test_the_billing_line() -> None:
    head = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint={}; cch={};"
    prompt = "You are Claude Code.\nx-anthropic-billing-header: a=b;"
    for entry, stamp in (("cli", "a5145"), ("sdk-py", "333333333"), ("", ""), ("claude-vscode", "a514")):
        for more in ("", " cc_workload=cron;", "\n", "\r\n", " \n", " new=1\n"):
            assert without_billing_line(head.format(entry, stamp) + more + prompt) == prompt
    assert without_billing_line("x-anthropic-billing-header: cc_version=1.0.0.aaa; cc_entrypoint=cli") == ""
    assert without_billing_line("X-Anthropic-Billing-Header: cc_version=1;" + prompt) == prompt
    for other in ("cch=a5145;", "", f"You: {head}", prompt, "x-anthropic-version: 5; a"):
        assert without_billing_line(other) == other
    line = head.format("cli", "a5145")
    for content in (line + prompt, [{"type": "text", "text": line}, {"type": "text", "text": prompt}]):
        (message,) = read_messages([{"role": "system", "content": content}])
        texts = message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        assert texts == prompt
    assert read_messages([{"role": "system", "content": line}, USER]) == [USER]
    assert read_messages([{"role": "user", "content": line}]) == [{"role": "user", "content": line}]


def test_random_blocks() -> None:
    """Random blocks become messages, or an error with a message; reading the messages again changes nothing."""
    n_read = 0
    for case in range(3000):
        fuzzer = Fuzzer(1, case)
        role = random.Random(case).choice(("user", "assistant", "system", "tool"))
        blocks = [fuzzer.block() if fuzzer.rng.random() < 0.7 else fuzzer.part() for _ in range(3)]
        messages = json.loads(json.dumps([USER, {"role": role, "content": blocks}]))
        try:
            found = read_messages(messages)
        except ValueError:
            continue
        n_read += 1
        assert read_messages(found) == found
        for message in found:
            content = message["content"]
            kinds = ("text", "image_url", "input_audio")
            assert isinstance(content, str) or all(part["type"] in kinds for part in content)
    assert 500 < n_read < 2500


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"thinking": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "h", "signature": "x"}, {"type": "x", "text": "m"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}], "reasoning_content": None},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": ""}], "reasoning_content": ""},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    ],
)
def test_thoughts_by_all_of_their_names(thought: dict[str, Any]) -> None:
    (message,) = read_messages([{"role": "assistant", "content": "so", **thought}])
    assert message == {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    (message,) = read_messages([{"role": "assistant", "content": [SUM], **thought}])
    assert message == {"role": "assistant", "content": [SUM], "reasoning_content": "hm"}


RESULT = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {
        "role": "tool",
        "tool_call_id": "call00001",
        "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "warm"}],
    },
]


@pytest.mark.parametrize("name", ["GLM-4.6.jinja", "GLM-4.7-Flash.jinja", "moonshotai-Kimi-K2.jinja"])
def test_results_in_parts(name: str, load: Load) -> None:
    """These templates show no parts of a tool's result: the model answered without it."""
    prompt = read_conversation({"messages": RESULT}, load(name)).params.prompt
    assert "sunny\nwarm" in prompt


def test_roles_that_a_template_leaves_out(load: Load) -> None:
    """The message was left out without a word; a template that writes the role may have it."""
    messages = [{"role": "Human", "content": "A question."}, {"role": "user", "content": "Go on."}]
    with pytest.raises(ValueError, match=r"messages\.0: expected a 'role' of system, .*, found 'Human', which the"):
        read_conversation({"messages": messages}, load("Bielik-11B-v3.0-Instruct.jinja"))
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    assert (
        "Human\nA question." in read_conversation({"messages": messages}, ChatTemplates(template=chatml)).params.prompt
    )
