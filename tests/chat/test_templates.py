"""Prompts are those of llama-server, byte by byte."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest

from chat_cases import CASES, GOLDENS, WEATHER, digest, templates
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates, apply_request

USER = {"role": "user", "content": "Hello"}
TOOL_TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }},{% endfor %}{% for m in messages %}:{{ m.content }}"
    '{% for c in m.tool_calls %}<call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</call>"
    "{% endfor %}{% endfor %}"
)


def rendered(chat: ChatTemplates, body: dict[str, Any]) -> str:
    """Return the prompt's hash, or "error"."""
    try:
        return digest(apply_request(chat, body).prompt)
    except ValueError:
        return "error"


# with a call and its result, which these templates refuse, the conversation is fitted to the template
TAKEN_HERE = {
    ("mistralai-Ministral-3-14B-Reasoning-2512.jinja", "result"),
    ("mistralai-Mistral-Nemo-Instruct-2407.jinja", "result"),
}
# llama-server's prompts lack the tools
WITHOUT_TOOLS = (
    "HuggingFaceTB-SmolLM3-3B.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    "deepseek-ai-DeepSeek-V3.1.jinja",
    "google-gemma-2-2b-it.jinja",
    "llama-cpp-rwkv-world.jinja",
    "microsoft-Phi-3.5-mini-instruct.jinja",
)


def test_prompts_are_those_of_llama_server(llm: Eagle3Llama) -> None:
    goldens = json.loads(GOLDENS.read_text())
    paths = templates()
    if not paths:
        pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")
    assert {path.name for path in paths} == set(goldens)
    model = ctypes.cast(llm._model.model, ctypes.c_void_p).value
    wrong = set()
    for path in paths:
        chat = ChatTemplates(model, path.read_text(encoding="utf-8"))
        assert chat.takes_tools == (path.name not in WITHOUT_TOOLS)
        for name, body in CASES.items():
            if rendered(chat, body) != goldens[path.name][name].split()[0]:
                wrong.add((path.name, name))
    assert wrong == TAKEN_HERE | {(name, case) for name in WITHOUT_TOOLS for case in ("tools", "result")}
    values = [value for golden in goldens.values() for value in golden.values()]
    assert sum(value.startswith("error") for value in values) < len(values) / 10
    assert len(set(values)) > len(values) / 2


def test_chatml_stands_in_for_a_model_without_template(llm: Eagle3Llama) -> None:
    assert not llm.chat_templates.is_explicit
    assert llm.chat_templates.apply([USER]).prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_template_that_is_no_jinja() -> None:
    with pytest.raises(ValueError, match="Unexpected EOF"):
        ChatTemplates(template="{% if")
    with pytest.raises(ValueError, match="a model or a template"):
        ChatTemplates()


def test_template_that_refuses() -> None:
    chat = ChatTemplates(template="{{ raise_exception('no ' ~ messages[0].content) if messages[0].content == 'x' }}")
    with pytest.raises(ValueError, match="no x"):
        chat.apply([{"role": "user", "content": "x"}])


def test_variables() -> None:
    chat = ChatTemplates(template="{{ bos_token }}{{ mood }} {{ messages[0].content }}", bos_token="<B>")
    assert chat.apply([USER], chat_template_kwargs={"mood": "glad"}).prompt == "<B>glad Hello"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'messages' is required"),
        ({"messages": "Hello"}, "to be an array"),
        ({"messages": ["Hello"]}, "to be an object"),
        ({"messages": [{"role": "user"}]}, "must contain 'content'"),
        ({"messages": [{"role": "assistant"}]}, "either 'content' or 'tool_calls'"),
        ({"messages": [{"content": "x"}]}, "Missing 'role'"),
        ({"messages": [{"role": "user", "content": 3}]}, "of role 'user' to be a string or an array, found 3"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image input is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "unsupported"),
        ({"messages": [USER], "tools": 3}, "'tools' to be an array"),
        ({"messages": [USER], "tools": [{"type": "x"}]}, r"tools\.0: expected a tool of type"),
        ({"messages": [USER], "tool_choice": "some"}, "expected auto, none, required or a tool"),
        (
            {"messages": [USER], "tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "expected one of the tools' names",
        ),
        ({"messages": [USER], "response_format": {"type": "xml"}}, "response_format type"),
        ({"messages": [USER], "grammar": "root ::= [a]", "json_schema": {"type": "object"}}, "both"),
        ({"messages": [USER], "grammar": "root ::= [a]", "tools": [WEATHER]}, "with tools"),
        ({"messages": [USER], "reasoning_format": "x"}, "Unknown reasoning format"),
        ({"messages": [USER], "chat_template_kwargs": {"enable_thinking": "no"}}, "expected boolean"),
        ({"messages": [USER], "add_generation_prompt": True, "continue_final_message": True}, "Cannot set both"),
        ({"messages": [{"role": "assistant", "content": "a"}] * 2}, "2 or more assistant messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogates"),
        ({"messages": [USER], "chat_template_kwargs": {"x": float("nan")}}, "JSON"),
    ],
)
def test_refused_requests(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_request(ChatTemplates(template="chatml"), body)


def test_choice_of_a_function() -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    chat = ChatTemplates(template=TOOL_TEMPLATE)
    body = {"messages": [USER], "tools": [WEATHER, other]}
    assert "get_weather,other,:Hello" in apply_request(chat, body).prompt
    chosen = {**body, "tool_choice": {"type": "function", "function": {"name": "other"}}}
    assert apply_request(chat, chosen).prompt.startswith("other,:Hello")
    for inside in (True, False):
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
        choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if inside else allowed)}
        assert apply_request(chat, {**body, "tool_choice": choice}).prompt.startswith("other,:Hello")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"type": "allowed_tools", "mode": "any", "tools": []}, "'mode' of allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": 5}, "'mode' of allowed_tools"),
        ({"type": "allowed_tools", "tools": []}, "'tools' of allowed_tools"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "function": {"name": "x"}}]}, "names, found 'x'"),
        ({"type": "function", "function": {}}, "names, found {'type': 'function', 'function': {}}"),
        (5, "or a tool, found 5"),
    ],
)
def test_choices_that_nothing_can_be_made_of(choice: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_request(
            ChatTemplates(template=TOOL_TEMPLATE), {"messages": [USER], "tools": [WEATHER], "tool_choice": choice}
        )


def test_a_required_call_without_tools() -> None:
    with pytest.raises(ValueError, match="there are no tools"):
        apply_request(ChatTemplates(template=TOOL_TEMPLATE), {"messages": [USER], "tool_choice": "required"})
