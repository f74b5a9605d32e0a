"""Answers become messages: an answer without a format is text, and a choice is the same whole and in chunks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from chat_cases import WEATHER, templates
from chatting import GEMMA4, Load, joined
from llama_cpp_eagle3.chat import ChatParams, ChatTemplates, apply_request
from llama_cpp_eagle3.chat.message import GrowingMessage, NewText, OpenAIChoice

HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"
MESSAGES = [{"role": "user", "content": "How is it?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "other"}'


@pytest.fixture
def params(load: Load) -> ChatParams:
    return load(HERMES).apply(MESSAGES, tools=[WEATHER], tool_choice="required")


@pytest.mark.parametrize("n_each", [1, 7, 1000])
def test_a_text_without_the_format_is_sent_as_it_is(
    params: ChatParams, n_each: int, caplog: pytest.LogCaptureFixture
) -> None:
    message = GrowingMessage(params)
    deltas = [d for i in range(0, len(WRONG), n_each) for d in message.add(WRONG[i : i + n_each])]
    deltas += message.add("", is_partial=False)
    content, _, calls = joined(deltas)
    assert content == message.message["content"] == WRONG
    assert not calls
    assert [r.getMessage()[:40] for r in caplog.records] == ["an answer does not have the format of its"[:40]]


QWEN3_CODER = "Qwen3-Coder.jinja"
FUNCTION = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n"
DEVSTRAL = "unsloth-mistral-Devstral-Small-2507.jinja"
LING = "inclusionai-ling-3.0-flash.jinja"
KIMI_K3 = "Kimi-K3.jinja"
KIMI_CALL = """<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city"\
 type="string"<|sep|>Ro<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"""


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        # llama.cpp's parser leaves out the first two from the first tag on
        (QWEN3_CODER, "I ask <tool_call>\n<function=other>", ("I ask <tool_call>\n<function=other>", "", [])),
        (QWEN3_CODER, "I ask " + FUNCTION + "and", ("I ask ", "", ["get_weather"])),
        (DEVSTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": 1}It', ("", "", ["get_weather"])),
        ("GLM-4.7-Flash.jinja", "Hm.</think>Yes <tool_call>{}", ("Yes <tool_call>{}", "Hm.", [])),
        ("GLM-4.7-Flash.jinja", "Hm.</think><tool_call>{} Hm.", ("<tool_call>{} Hm.", "Hm.", [])),
        # what begins as a tag does
        (LING, "a <tool_calls> b</think>c", ("c", "a <tool_calls> b", [])),
        (LING, "<table> b</think>c", ("c", "<table> b", [])),
        (LING, "a</think><b", ("<b", "a", [])),
        # a tag of Gemma 4 that ends no thought: after it llama.cpp's parser looks for a call alone
        (GEMMA4, "a<channel|>b", ("a<channel|>b", "", [])),
        (GEMMA4, "<|channel>thought\nt<channel|>a<channel|>b", ("a<channel|>b", "t", [])),
        (GEMMA4, "a<channel|>b<|tool_call>call:get_weather{}<tool_call|>", ("a<channel|>b", "", ["get_weather"])),
        (GEMMA4, "a<channel|>\n", ("a", "", [])),
        # an answer's end may be what a tag begins with
        (GEMMA4, "a <", ("a <", "", [])),
        (HERMES, "a <tool", ("a <tool", "", [])),
        ("GLM-4.7-Flash.jinja", "Hm.</", ("", "Hm.</", [])),
        ("GLM-4.7-Flash.jinja", "Hm.</think><", ("<", "Hm.", [])),
        ("GLM-4.7-Flash.jinja", "Hm.</think>a <", ("a <", "Hm.", [])),
        # the end of a thought may be cut off between its signs, or lack before a call
        (KIMI_K3, "Hm.<|close|>think", ("", "Hm.", [])),
        (KIMI_K3, "Hm.<|close|>think<|se", ("", "Hm.", [])),
        (KIMI_K3, "Hm." + KIMI_CALL, ("", "Hm.", ["get_weather"])),
        (KIMI_K3, KIMI_CALL, ("", "", ["get_weather"])),
    ],
)
@pytest.mark.parametrize("n_each", [1, 2, 3])
def test_nothing_is_lost(
    load: Load, template: str, text: str, expected: tuple[str, str, list[str]], n_each: int
) -> None:
    """What does not have the format is text, whole or in parts, after a thought too; a call that was sent stays."""
    params = load(template).apply(MESSAGES, tools=None if template == LING else [WEATHER])
    parts = [text[i : i + n_each] for i in range(0, len(text), n_each)]
    grown, whole = GrowingMessage(params), GrowingMessage(params)
    deltas = [d for part in parts for d in grown.add(part)] + grown.add("", is_partial=False)
    whole.add_whole(parts)
    content, thought, calls = joined(deltas)
    assert (content, thought, [call["name"] for call in calls]) == expected
    assert {name: value for name, value in whole.message.items() if name != "tool_calls"} == {
        name: value for name, value in grown.message.items() if name != "tool_calls"
    }
    found = [[call["function"] for call in m.message.get("tool_calls", ())] for m in (grown, whole)]
    assert found[0] == found[1]


@pytest.mark.parametrize("space", ["", "\n", " ", "\n\n\t"])
@pytest.mark.parametrize("template", ["GLM-4.6.jinja", "Spark2.5.jinja"])
def test_space_before_the_end_of_a_call(load: Load, template: str, space: str) -> None:
    """The grammar of a required call allows it, and the call is whole."""
    params = load(template).apply(MESSAGES, tools=[WEATHER], tool_choice="required")
    begin, end = ("", "\n") if template.startswith("GLM") else ("</think>\n", "")  # which the format has in any case
    text = begin
    text += (
        f"<tool_call>get_weather{end}<arg_key>city</arg_key>{end}<arg_value>Rome</arg_value>{end}{space}</tool_call>"
    )
    message = GrowingMessage(params)
    deltas = [d for char in text for d in message.add(char)] + message.add("", is_partial=False)
    ((call,),) = [joined(deltas)[2]]
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city":"Rome"}')


def test_what_was_sent_as_a_call_is_not_sent_again(params: ChatParams) -> None:
    message = GrowingMessage(params)
    deltas = message.add(CALL + "\n<tool_call> and no more", is_partial=False)
    content, _, calls = joined(deltas)
    assert not (content and calls)
    assert message.message.get("content", "") == content


@pytest.mark.parametrize(("text", "reason"), [(CALL, "tool_calls"), (WRONG, "stop"), ("", "stop")])
def test_a_choice_is_the_same_whole_and_in_chunks(params: ChatParams, text: str, reason: str) -> None:
    whole = OpenAIChoice(params, {"id": "x"}, 2).whole([NewText(c) for c in text], "stop")
    choice = OpenAIChoice(params, {"id": "x"}, 2)
    chunks: list[dict[str, Any]] = choice.begin() + choice.begin()
    for c in text:
        chunks += choice.add(NewText(c))
    chunks += [*choice.add(NewText(""), is_partial=False), choice.end("stop")]
    assert {(c["id"], c["object"], c["choices"][0]["index"]) for c in chunks} == {("x", "chat.completion.chunk", 2)}
    first, *deltas, last = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert (first, last) == ({"role": "assistant", "content": None}, {})
    content, reasoning, calls = joined(deltas)
    message = whole["message"]
    assert (content, reasoning) == (message.get("content") or "", message.get("reasoning_content", ""))
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == whole["finish_reason"] == reason


def test_an_answer_that_is_cut_off_has_no_reason_of_its_own() -> None:
    params = ChatTemplates(template="chatml").apply(MESSAGES)
    assert OpenAIChoice(params, {}).whole([NewText("Wet")], "length") == {
        "index": 0,
        "message": {"role": "assistant", "content": "Wet"},
        "finish_reason": "length",
    }


@pytest.mark.parametrize(
    "text", [CALL + "\n<tool_call>\n{{{{", WRONG, "It\n" + WRONG, "It is.", CALL + CALL, "a</x> {<tool"]
)
def test_a_whole_answer_is_what_its_deltas_are(params: ChatParams, text: str) -> None:
    """Whatever it says, and wherever it is cut off."""
    for n in range(len(text) + 1):
        streamed, whole = GrowingMessage(params), GrowingMessage(params)
        deltas = [d for c in text[:n] for d in streamed.add(c)] + streamed.add("", is_partial=False)
        content, thought, calls = joined(deltas)
        assert joined(whole.add_whole(list(text[:n])))[0] == content
        for message in (streamed.message, whole.message):
            assert (message["content"], message.get("reasoning_content", "")) == (content, thought)
            functions = [call["function"] for call in message.get("tool_calls", ())]
            assert functions == [{"name": call["name"], "arguments": call["arguments"]} for call in calls]


LING_CALL = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>\n"
DEEPSEEK_CALL = """<|function_calls>\n<|invoke name="get_weather">\n<|parameter nng="false">1</|parameter>\n</|invoke>
</|function_calls>"""
TAKEN_BACK = [
    (LING, "Hm.</think>" + LING_CALL.replace("key>city", "ke>")),
    (LING, "Hm.</think>" + LING_CALL + LING_CALL.replace("value>R", "valu")),
    (LING, "Hm.</think></think>I look.\n" + LING_CALL.replace("</arg_key>", "")),
    ("meetkai-functionary-medium-v3.2.jinja", 'all\nI look.>>>get_weather\n{"city": "Ro"x'),
    (
        KIMI_K3,
        "I think.<|close|>th\nnk<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>" + KIMI_CALL,
    ),
    ("deepseek-ai-DeepSeek-V3.2.jinja", "hm</think}>\n\n" + DEEPSEEK_CALL.replace("|", "\uff5cDSML\uff5c")),
    (
        "Cohere2MoE.jinja",
        'Hm.<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}\n]'
        "<|END_ACTION|>",
    ),
    (HERMES, 'hm<tool_call>\n{"name": "get_weather", "arguments":<tool_call> {"city": "Rome"}}\n</tool_call>'),
]


@pytest.mark.parametrize(("template", "text"), TAKEN_BACK)
def test_calls_and_thoughts_that_are_malformed_after_their_opening(load: Load, template: str, text: str) -> None:
    """A whole answer has what a stream has sent: the format's parser takes it back, a client cannot."""
    for choice, form, n_each in itertools.product(("auto", "required"), ("auto", "none"), (1, 3, 7)):
        options = {"tool_choice": choice, "reasoning_format": form, "enable_thinking": True}
        params = load(template).apply(MESSAGES, tools=[WEATHER], **options)
        parts = [text[i : i + n_each] for i in range(0, len(text), n_each)]
        grown, whole = GrowingMessage(params), GrowingMessage(params)
        for part in parts:
            grown.add(part)
        grown.add("", is_partial=False)
        whole.add_whole(parts)
        found = [
            {**m.message, "tool_calls": [c["function"] for c in m.message.get("tool_calls", ())]}
            for m in (grown, whole)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_an_answer_that_goes_on(path: Path) -> None:
    """With `echo` it begins with the client's text, else it has what is new, with tools or not, in every format."""
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    for echo, tools, form in itertools.product((False, True), (None, [WEATHER]), ("auto", "none")):
        for begun in ("It is", "<b>", "It is\n"):
            request = {"messages": [*MESSAGES, {"role": "assistant", "content": begun}], "reasoning_format": form}
            params = apply_request(chat, {**request, "echo": echo, **({"tools": tools} if tools else {})})
            streamed, whole = GrowingMessage(params), GrowingMessage(params)
            for part in (" wa", "rm", ""):
                streamed.add(part, is_partial=bool(part))
            whole.add_whole([" wa", "rm"])
            for answer in (streamed, whole):
                assert answer.message == {"role": "assistant", "content": begun * echo + " warm"}


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_the_end_of_a_begun_answer_is_not_a_tag_that_has_begun(path: Path) -> None:
    """Nor is it where the sign before it is the client's."""
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    for sign, echo, tools in itertools.product((">", "]", "<", "["), (False, True), (None, [WEATHER])):
        begun = f"a {sign}"
        request = {"messages": [*MESSAGES, {"role": "assistant", "content": begun}], "echo": echo}
        answer = GrowingMessage(apply_request(chat, request | ({"tools": tools} if tools else {})))
        answer.add(sign, is_partial=True)
        answer.add("", is_partial=False)
        assert answer.message["content"] == begun * echo + sign


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_the_end_of_an_answer_is_not_a_tag_that_has_begun(path: Path) -> None:
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    params = apply_request(chat, {"messages": MESSAGES, "tools": [WEATHER]})
    before = {
        "meetkai-functionary-medium-v3.2.jinja": "all\n",
        "Apriel-1.6-15b-Thinker-fixed.jinja": "[BEGIN FINAL RESPONSE]",
    }
    begin = f"hm{params.thinking_end_tags[0]}" if params.begins_in_reasoning else before.get(path.name, "")
    for text in ("<b>hi</b>", "a >>", "a ]", "a <", "a [", "a |"):
        answer = GrowingMessage(params)
        answer.add_whole([begin, text])
        assert answer.message["content"].strip() == text


def test_a_begun_text_like_a_tag_stays_before_a_thought(load: Load) -> None:
    """It is the client's: in a whole answer that has a thought and no format, `echo` left it out."""
    request = {"messages": [*MESSAGES, {"role": "assistant", "content": "<b"}], "tools": [WEATHER], "echo": True}
    params = apply_request(load(GEMMA4), request)
    call = ["<|tool_call>call:get_weather{city:", "oh|><|tool_call>", ":"]
    parts = ["<|channel>thought\nI think.\n", "<channel|>", *call]
    streamed, whole = GrowingMessage(params), GrowingMessage(params)
    for part in parts:
        streamed.add(part)
    streamed.add("", is_partial=False)
    whole.add_whole(parts)
    for answer in (streamed, whole):
        assert answer.message["content"].startswith("<b")
        assert answer.message["reasoning_content"].strip() == "I think."
