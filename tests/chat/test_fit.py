"""A message that a template refuses gets a form that it accepts, and accepted messages stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_cases import ROOT, WEATHER
from llama_cpp_eagle3.chat import ChatTemplates, apply_request, read_messages

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
DEVELOPER = {"role": "developer", "content": "Obey the rules."}
LATER = {"role": "system", "content": "Think of snow."}
RESULT = {"role": "tool", "tool_call_id": "call_of_a_client", "content": "sunny"}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": RESULT["tool_call_id"], "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


GOOD = call('{"city": "Paris"}')
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "later instructions": ([USER, ANSWER, LATER, USER], ("snow",)),
    "later instructions after the first": ([SYSTEM, USER, ANSWER, LATER, USER], ("brief", "snow")),
    "two at the beginning": ([SYSTEM, DEVELOPER, USER], ("brief", "rules")),
    "a developer's": ([USER, DEVELOPER, USER], ("rules",)),
    "at the end": ([SYSTEM, USER, LATER], ("brief", "snow")),
    "nothing else": ([SYSTEM], ("brief",)),
    "after a result": ([USER, GOOD, RESULT, LATER], ("snow",)),
    "a call and its result": ([USER, GOOD, RESULT], ()),
    "a user after a result": ([USER, GOOD, RESULT, {"role": "user", "content": "Sure?"}], ("Sure?",)),
    "a call without a result": ([USER, GOOD, {"role": "user", "content": "Sure?"}], ("Sure?",)),
    "arguments cut off": ([USER, call('{"city": "Par'), RESULT], ()),
    "arguments cut off, and no result": ([USER, call('{"city": "Par'), {"role": "user", "content": "Sure?"}], ()),
    "no arguments": ([USER, call(""), RESULT], ()),
    "null arguments": ([USER, call(None), RESULT], ()),
    "an array": ([USER, call('["Paris"]'), RESULT], ()),
    "a text": ([USER, call('"Paris"'), RESULT], ()),
    "half a character": ([USER, call('{"city": "\\ud800"}'), RESULT], ()),
    "two users": ([USER, {"role": "user", "content": "Sure?"}], ("Hello", "Sure?")),
    "two answers": ([USER, ANSWER, {"role": "assistant", "content": "Yes"}, USER], ("Hi", "Yes")),
    "an answer first": ([ANSWER, USER], ("Hello",)),
    "all of it": (
        [SYSTEM, DEVELOPER, USER, call('{"city'), RESULT, LATER, USER, ANSWER, LATER, USER, USER],
        ("brief", "rules", "snow"),
    ),
}
NAMES = [path.name for path in sorted(ROOT.glob("build/*/llama.cpp/models/templates/*.jinja"))]


def templates_of(name: str) -> ChatTemplates:
    path = next(ROOT.glob(f"build/*/llama.cpp/models/templates/{name}"), None)
    if path is None:
        pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")
    return ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("name", NAMES)
def test_no_conversation_is_refused(name: str) -> None:
    """No template of llama.cpp refuses a conversation; instructions are in the prompt, even if it drops later ones."""
    chat = templates_of(name)
    for what, (conversation, words) in CONVERSATIONS.items():
        tools = [WEATHER] if any("tool_calls" in message for message in conversation) else []
        messages = read_messages(conversation)
        prompt = apply_request(chat, {"messages": messages, "tools": tools}).prompt
        assert all(word in prompt for word in words), (what, prompt)
        try:
            plain = chat.apply(messages, tools=tools, chat_template_kwargs={"preserve_reasoning": True}).prompt
        except ValueError:
            continue
        # accepted messages stay as they are, unless the template drops some
        assert plain == prompt or not all(word in plain for word in words), what


QWEN = "Qwen3.5-4B.jinja"
NEMO = "mistralai-Mistral-Nemo-Instruct-2407.jinja"


def prompt_of(name: str, messages: list[dict[str, Any]]) -> str:
    return apply_request(templates_of(name), {"messages": read_messages(messages)}).prompt


def test_where_instructions_go() -> None:
    joined = {"role": "system", "content": "Be brief.\n\nObey the rules."}
    assert prompt_of(QWEN, [SYSTEM, DEVELOPER, USER]) == prompt_of(QWEN, [joined, USER])
    said = {"role": "user", "content": "Think of snow.\n\nHello"}
    assert prompt_of(QWEN, [SYSTEM, USER, ANSWER, LATER, USER]) == prompt_of(QWEN, [SYSTEM, USER, ANSWER, said])
    alone = {"role": "user", "content": "Think of snow."}
    assert prompt_of(QWEN, [USER, GOOD, RESULT, LATER]) == prompt_of(QWEN, [USER, GOOD, RESULT, alone])
    parts = {"role": "user", "content": [{"type": "text", "text": text} for text in ("Think of snow.", "a", "b")]}
    given = {"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}
    assert prompt_of(QWEN, [USER, ANSWER, LATER, given]) == prompt_of(QWEN, [USER, ANSWER, parts])


def test_prompts_grow_at_their_end() -> None:
    """A rendered prompt stays the beginning of the next one, or no prefix could be reused."""
    said: list[dict[str, Any]] = [SYSTEM, USER, GOOD, RESULT, LATER, ANSWER, USER, call('{"ci'), RESULT, LATER]
    for name in (QWEN, "mistralai-Ministral-3-14B-Reasoning-2512.jinja"):
        chat = templates_of(name)
        for n in (2, 5, 7, 10):
            body = {"messages": read_messages(said[:n]), "add_generation_prompt": False}
            short = apply_request(chat, body).prompt
            whole = apply_request(chat, {"messages": read_messages([*said[:n], ANSWER, USER])}).prompt
            shared = next((i for i, (a, b) in enumerate(zip(short, whole, strict=False)) if a != b), len(short))
            assert shared > 0.8 * len(short), (name, n)


def test_arguments() -> None:
    cut = '{"city": "Par'
    kept = call(json.dumps({"arguments": cut}))
    for name in (QWEN, "Qwen-Qwen2.5-7B-Instruct.jinja"):
        assert prompt_of(name, [USER, call(cut), RESULT]) == prompt_of(name, [USER, kept, RESULT])
        assert prompt_of(name, [USER, call("  "), RESULT]) == prompt_of(name, [USER, call("{}"), RESULT])
    array = call(json.dumps({"arguments": '["x"]'}))
    assert prompt_of(QWEN, [USER, call('["x"]'), RESULT]) == prompt_of(QWEN, [USER, array, RESULT])
    # a template that accepts them gets them unchanged
    assert '"arguments": ["x"]' in prompt_of("Qwen-Qwen2.5-7B-Instruct.jinja", [USER, call('["x"]'), RESULT])
    assert cut in prompt_of("google-gemma-2-2b-it.jinja", [USER, call(cut), RESULT])


def test_ids_stay_pairs() -> None:
    prompt = prompt_of(NEMO, [USER, GOOD, RESULT])
    (asked,) = [word for word in prompt.split('"') if len(word) == 9 and word.isalnum() and word != "arguments"][:1]
    assert prompt.count(f'"{asked}"') == 2


def test_the_error_is_that_of_the_conversation_as_it_came() -> None:
    chat = ChatTemplates(template="{{ raise_exception('never ' ~ messages[0].content) if messages|length > 2 }}")
    with pytest.raises(ValueError, match="never Hello"):
        apply_request(chat, {"messages": [USER, USER, call("x"), RESULT, LATER]})
