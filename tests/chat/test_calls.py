"""Calls of tools with all of llama.cpp's templates, by a model that writes anything that it may."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from accepting import accepts
from chat_cases import ROOT, templates
from chatting import Load, joined
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates
from llama_cpp_eagle3.chat.message import GrowingMessage
from tiny import write_target

USER = {"role": "user", "content": "Hello"}
SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eagle3Llama]:
    """Load a model of random weights, which may write any text that it is allowed."""
    path: Path = tmp_path_factory.mktemp("chance") / "target.gguf"
    target = write_target(path, n_layer=1)
    llm = Eagle3Llama(str(target.path), verbose=False, n_ctx=12288, n_threads=1, chat_format="auto")
    yield llm
    llm.close()


@pytest.fixture
def answer(chance: Eagle3Llama, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `answer(chat, tools, choice, ...)`, which gives a choice of a chat with a template."""

    def ask(chat: ChatTemplates, tools: list[Any], choice: Any, seed: int = 0, **options: Any) -> Any:
        monkeypatch.setitem(chance.__dict__, "chat_templates", chat)
        options = {"max_tokens": 500, "temperature": 1.0, "reasoning_budget": 8, "messages": [USER], **options}
        messages = options.pop("messages")
        return chance.create_chat_completion(messages, tools=tools, tool_choice=choice, seed=seed, **options)[
            "choices"
        ][0]

    return ask


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    """Return the calls of an answer that has nothing else."""
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls", message
    assert not (message.get("content") or "").strip()
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_a_forced_call_is_made(path: Path, answer: Any) -> None:
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    tools = [tool("count", COUNT), tool("switch", SWITCH)]
    for seed, choice in ((0, "required"), (1, named("count")), (2, "required"), (3, named("count"))):
        asked = {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": seed < 2}}
        ((name, arguments),) = calls_of(answer(chat, tools, choice, seed, **asked))
        assert name == "count" or (name == "switch" and choice == "required")
        assert arguments["n"] in range(1, 10) if name == "count" else isinstance(arguments["on"], bool)


HEADS = [
    (
        "Cohere2MoE.jinja",
        '<|END_THINKING|><|START_ACTION|>[\n {"tool_call_id": %s, "tool_name": "count", "parameters": {"n": 3}}]'
        "<|END_ACTION|>",
        ['"0"', "12", '"' + 64 * "a" + '"'],
        ['"' + 65 * "a" + '"', 66 * "1"],
    ),
    (
        "Cohere2MoE.jinja",
        '<|END_THINKING|><|START_ACTION|>[\n {%s"tool_name": "count", "parameters": {"n": 3}}]<|END_ACTION|>',
        ['"tool_call_id": "0", '],
        [", ", '"tool_call_id": "0"', ""],
    ),
    (
        "Kimi-K3.jinja",
        '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="count"%s<|sep|><|open|>argument key="n" type="x"'
        "<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ["", ' index="0"', 64 * "x"],
        [65 * "x", "\n"],
    ),
    (
        "muse-glimmer.jinja",
        ' to=%s<|message|><atem:function_calls>\n<atem:invoke name="count">\n<atem:parameter name="n">3'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        ["count", "größe", "selfish", "sel", "myself"],
        [65 * "x", "a\nb", "self"],
    ),
    (
        "Kimi-K2-Thinking.jinja",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.count:%s<|tool_call_argument_begin|>"
        '{"n": 3}<|tool_call_end|><|tool_calls_section_end|>',
        ["0", "123456789"],
        ["", "1234567890"],
    ),
]


@pytest.mark.parametrize(("name", "form", "right", "wrong"), HEADS)
def test_what_may_stand_around_names(
    name: str, form: str, right: list[str], wrong: list[str], chance: Eagle3Llama
) -> None:
    """In some formats llama.cpp's grammars take any text there, or a comma alone."""
    found = sorted(ROOT.glob(f"build/*/llama.cpp/models/templates/{name}"))
    if not found:
        pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")
    chat = ChatTemplates(template=found[-1].read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    params = chat.apply([USER], tools=[tool("count", COUNT)], tool_choice="required")
    for head in (*right, *wrong):
        assert accepts(chance, params.grammar, params.generation_prompt + form % head) == (head in right), head


NAMES = (
    *(
        "_a",
        "-a",
        "mcp--fs--read",
        "mcp__fs__read",
        "a_-b",
        "a.-b",
        "a-",
        "a b",
        "天气",
        "地图",
        "größe",
        "grüße",
        "🙂",
    ),
    *("read_file", "read-file", "read/file", "A", "a", "a-arg-n", "call", "calls", "call-root", "x", "x-schema"),
    *('c"d', "c&d", "c\\d", 'c\\"d', "c:d", "{c}"),
)


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_names_of_tools(path: Path, answer: Any) -> None:
    """Whatever the names: each tool can be called, with its own parameters."""
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    tools = [
        tool(
            name,
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": i, "maximum": i}}, "required": ["n"]},
        )
        for i, name in enumerate(NAMES)
    ]
    for seed, choice in enumerate(("required", "required", named(NAMES[len(path.name) % len(NAMES)]))):
        ((name, arguments),) = calls_of(answer(chat, tools, choice, seed, parallel_tool_calls=False))
        assert arguments == {"n": NAMES.index(name)}


KEYS = ("_id", "$filter", "@type", "名前", "市名", "a--b", "a-b", "a b", 'c"d', "c&d", "c:d", "c:d:e", "{c}")


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_names_of_parameters(path: Path, answer: Any) -> None:
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    parameters = {
        "type": "object",
        "properties": {key: {"type": "integer", "minimum": i, "maximum": i} for i, key in enumerate(KEYS)},
        "required": list(KEYS),
    }
    ((_, arguments),) = calls_of(
        answer(chat, [tool("f", parameters)], "required", max_tokens=2500, parallel_tool_calls=False)
    )
    assert arguments == {key: i for i, key in enumerate(KEYS)}


def test_white_space_before_a_forced_call_is_no_content(load: Load) -> None:
    """A call that came after content of blanks alone could not be told."""
    chat = load("Qwen-Qwen2.5-7B-Instruct.jinja")
    params = chat.apply([USER], tools=[tool("count", COUNT)], tool_choice="required")
    parser = params.new_parser()
    text = ' \n<tool_call>\n{"name": "count", "arguments": {"n": 3}}\n</tool_call>'
    deltas = [delta for letter in text for delta in parser.update(letter)]
    deltas += parser.update("", is_partial=False)
    content, _, ((call),) = joined(deltas)
    assert (content, call["name"], json.loads(call["arguments"])) == ("", "count", {"n": 3})


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b.jinja", "muse-glimmer.jinja"])
def test_one_thought_comes_before_a_forced_call(name: str) -> None:
    """A model could go on with thoughts, each within the budget."""
    folders = sorted(ROOT.glob("build/*/llama.cpp/models/templates"))
    if not folders:
        pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")
    chat = ChatTemplates(template=(folders[-1] / name).read_text(encoding="utf-8"))
    grammar = chat.apply([USER], tools=[tool("count", COUNT)], tool_choice="required").grammar
    (root,) = [line for line in grammar.splitlines() if line.startswith("root ")]
    assert root.startswith("root ::= (start a")
    assert root.endswith(")? start tool-call")


NO_TEXT_BEFORE = ("Cohere2MoE", "command-r", "gpt-oss")
"""Templates of answers that have either a text or calls."""
DATED = ("openai-gpt-oss-120b.jinja", "muse-glimmer.jinja", "meta-llama-Llama-3.1-8B-Instruct.jinja")


def with_dated() -> list[Path]:
    """Return all of these templates, those that write today's date too."""
    folders = sorted(ROOT.glob("build/*/llama.cpp/models/templates"))
    return [*templates(), *(folders[-1] / name for name in DATED if folders)]


@pytest.mark.parametrize("path", with_dated(), ids=lambda path: path.stem)
def test_a_forced_call_goes_on_from_a_text(path: Path, answer: Any) -> None:
    """Its text stays in the prompt, and the answer has the call alone."""
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    for seed, begun in enumerate(("Well, I", "It is\n\n", "größer ", "if a <")):
        asked = {"messages": [USER, {"role": "assistant", "content": begun}], "parallel_tool_calls": False}
        if any(name in path.name for name in NO_TEXT_BEFORE):
            with pytest.raises(ValueError, match="a call is required, and cannot follow the text"):
                answer(chat, [tool("count", COUNT)], "required", seed, **asked)
            continue
        params = chat.apply(
            asked["messages"], tools=[tool("count", COUNT)], tool_choice="required", continue_final_message=True,
            add_generation_prompt=False,
        )  # fmt: skip
        assert params.prompt.endswith(begun)
        ((name, arguments),) = calls_of(answer(chat, [tool("count", COUNT)], "required", seed, **asked))
        assert name == "count"
        assert arguments["n"] in range(1, 10)


HERMES = "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja"
HALVES = [
    (HERMES, '<tool_call>\n{"name": "count", "arguments": {"n"'),
    (HERMES, '<tool_call>\n{"name": "cou'),
    (HERMES, "<tool_call>"),
    (HERMES, 'I count.\n<tool_call>\n{"name": "count", "arguments": {'),
    (HERMES, '<tool_call>\n{"name": "count", "arguments": {"n": 3}}\n</tool_call>'),
    ("Qwen3-Coder.jinja", "I count.\n<tool_call>\n<function=count>\n<parameter=n>\n"),
    ("google-gemma-4-31B-it.jinja", "<|tool_call>call:count{n:"),
    ("google-gemma-2-2b-it.jinja", '<tool_call>\n{"name": "count", "argu'),
    ("HuggingFaceTB-SmolLM3-3B.jinja", 'I count. <tool_call>\n{"name": "count", "argu'),
]
WRONG_HALVES = [
    (HERMES, '<tool_call>\n{"name": "nothing", "arguments": {', "a call is required, and cannot follow the text"),
    (HERMES, '<tool_call>\n{"name": "count", "arguments": {"n": "x', "the grammar does not begin with the end"),
]


@pytest.mark.parametrize(("name", "begun"), HALVES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_forced_call_goes_on_from_half_of_it(
    name: str, begun: str, is_stream: bool, load: Load, answer: Any, chance: Eagle3Llama, monkeypatch: Any
) -> None:
    """The call is whole for the client, who could not tell its name otherwise."""
    messages = [USER, {"role": "assistant", "content": begun}]
    asked = {"messages": messages, "parallel_tool_calls": False}
    if is_stream:
        monkeypatch.setitem(chance.__dict__, "chat_templates", load(name))
        chunks: Any = chance.create_chat_completion(
            messages, tools=[tool("count", COUNT)], tool_choice="required", parallel_tool_calls=False, stream=True,
            max_tokens=300,
        )  # fmt: skip
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        text = "".join(call["function"].get("arguments", "") for call in calls)
        (first,) = [call for call in calls if "name" in call["function"]]
        assert (first["function"]["name"], bool(first["id"])) == ("count", True)
        assert json.loads(text)["n"] in range(1, 10)
        return
    ((called, arguments),) = calls_of(answer(load(name), [tool("count", COUNT)], "required", **asked))
    assert called == "count"
    assert arguments["n"] in range(1, 10)


@pytest.mark.parametrize(("name", "begun", "error"), WRONG_HALVES)
def test_a_forced_call_cannot_go_on_from_half_of_another(
    name: str, begun: str, error: str, load: Load, answer: Any
) -> None:
    messages = [USER, {"role": "assistant", "content": begun}]
    with pytest.raises(ValueError, match=error):
        answer(load(name), [tool("count", COUNT)], "required", messages=messages)


DEEP = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["a b", "c"]},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "maxItems": 2},
        "inner": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "digits": {"type": "string", "pattern": "^[0-9]{2}$"}},
            "required": ["on", "digits"],
            "additionalProperties": False,
        },
        "other": {"anyOf": [{"type": "null"}, {"const": 1.5}]},
    },
    "required": ["text", "kind", "list", "inner", "other"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["google-gemma-4-31B-it.jinja", "google-gemma-4-31B-it-interleaved.jinja"])
def test_arguments_that_are_no_json_match_their_schema(name: str, seed: int, load: Load, answer: Any) -> None:
    ((_, arguments),) = calls_of(
        answer(load(name), [tool("f", DEEP)], "required", seed, parallel_tool_calls=False, max_tokens=900)
    )
    Draft202012Validator(DEEP).validate(arguments)


WRITTEN = [
    (
        "Kimi-K3.jinja",
        '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="c&quot;&amp;d" index="1"<|sep|><|open|>argument '
        'key="c&quot;:{d}" type="string"<|sep|>1\n2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    ),
    (
        "mistralai-Mistral-Nemo-Instruct-2407.jinja",
        '[TOOL_CALLS][{"name": "c\\"&d", "arguments": {"c\\":{d}": "1\\n2"}, "id": "call00001"}]',
    ),
    (HERMES, '<tool_call>\n{"name": "c\\"&d", "arguments": {"c\\":{d}": "1\n2"}}\n</tool_call>'),
    ("google-gemma-4-31B-it.jinja", '<|tool_call>call:c"&d{c":{d}:<|"|>1\n2<|"|>}<tool_call|>'),
    ("LFM2.5-8B-A1B.jinja", "<|tool_call_start|>[c\"&d(c\":{d}='1\n2')]<|tool_call_end|>"),
    (
        "Qwen3-Coder.jinja",
        '<tool_call>\n<function=c"&d>\n<parameter=c":{d}>\n1\n2\n</parameter>\n</function>\n</tool_call>',
    ),
]


@pytest.mark.parametrize(("name", "text"), WRITTEN)
def test_names_come_back_as_the_client_gave_them(name: str, text: str, load: Load) -> None:
    """However the template writes them, whole and letter by letter; and arguments are JSON."""
    tools = [tool('c"&d', {"type": "object", "properties": {'c":{d}': {"type": "string"}}}), tool("c", SWITCH)]
    params = load(name).apply([USER], tools=tools)
    grown, whole = GrowingMessage(params), GrowingMessage(params)
    for letter in text:
        grown.add(letter)
    grown.add("", is_partial=False)
    whole.add_whole([text])
    for answer in (grown, whole):
        ((called, arguments),) = [
            (c["function"]["name"], c["function"]["arguments"]) for c in answer.message["tool_calls"]
        ]
        assert (called, json.loads(arguments)) == ('c"&d', {'c":{d}': "1\n2"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("google-gemma-4-31B-it.jinja", '<|tool_call>call:f{%s:<|"|>x<|"|>,%s:{%s:1}}<tool_call|>'),
        ("LFM2.5-8B-A1B.jinja", "<|tool_call_start|>[f(%s='x',%s={\"%s\": 1})]<|tool_call_end|>"),
    ],
)
@pytest.mark.parametrize("keys", [(" a", " b", " a"), ("a", " b", " a"), (" a", "b", " a")])
def test_names_may_begin_with_blanks(name: str, text: str, keys: tuple[str, str, str], load: Load) -> None:
    """Calls may have blanks before any name."""
    inner = {"type": "object", "properties": {" a": {"type": "integer"}}}
    tools = [tool("f", {"type": "object", "properties": {" a": {"type": "string"}, " b": inner}})]
    answer = GrowingMessage(load(name).apply([USER], tools=tools))
    for letter in text % keys:
        answer.add(letter)
    answer.add("", is_partial=False)
    ((call,),) = [answer.message["tool_calls"]]
    assert json.loads(call["function"]["arguments"]) == {" a": "x", " b": {" a": 1}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "MiniMax-M1.jinja",
            '<tool_calls>\n{"name": "count", "arguments": {"n": 3}}\n{"name": "switch", "arguments": {"on": true}}\n'
            "</tool_calls>",
        ),
        (
            "MiniMax-M2.jinja",
            '\n</think>\n<minimax:tool_call>\n<invoke name="count">\n<parameter name="n">3</parameter>\n</invoke>\n'
            '<invoke name="switch">\n<parameter name="on">true</parameter>\n</invoke>\n</minimax:tool_call>',
        ),
    ],
)
def test_calls_follow_each_other_as_the_template_writes_them(
    name: str, text: str, load: Load, chance: Eagle3Llama
) -> None:
    """llama.cpp wants a comma between them, from arrays of other templates."""
    tools = [tool("count", COUNT), tool("switch", SWITCH)]
    for choice in ("auto", "required"):
        params = load(name).apply([USER], tools=tools, tool_choice=choice, parallel_tool_calls=True)
        answer = GrowingMessage(params)
        answer.add_whole([text])
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer.message["tool_calls"]]
        assert calls == [("count", {"n": 3}), ("switch", {"on": True})]
    assert accepts(chance, params.grammar, params.generation_prompt + text)


def test_functionarys_first_call_is_held(load: Load, chance: Eagle3Llama) -> None:
    """The sign that triggers its grammar is in the prompt there."""
    params = load("meetkai-functionary-medium-v3.2.jinja").apply([USER], tools=[tool("f(x)", COUNT), tool("g", SWITCH)])
    patterns = [trigger.value for trigger in params.grammar_triggers]
    for text, is_call in (("f(x)\n", True), ("g\n", True), ("all\ng\n", False), ("fx\n", False), ("gg\n", False)):
        assert any(re.search(pattern, text) for pattern in patterns) == is_call
    assert accepts(chance, params.grammar, 'f(x)\n{"n": 3}')
    assert not accepts(chance, params.grammar, 'f(x)\n{"n": 10}')


@pytest.mark.parametrize("is_parallel", [True, False])
def test_functionarys_calls_follow_its_sign(load: Load, chance: Eagle3Llama, is_parallel: bool) -> None:
    """Its grammar begins with the sign that triggers it, which stands before a call that follows a text or a call.

    With llama.cpp's, a call after a text ended the answer with an error, and there was none after another call.
    """
    chat = load("meetkai-functionary-medium-v3.2.jinja")
    params = chat.apply([USER], tools=[tool("f", SWITCH)], parallel_tool_calls=is_parallel)
    call, text = 'f\n{"on": true}', "all\nI ask. "
    trigger, _ = params.grammar_triggers
    for answer, n, content in (
        (call, 1, ""),
        (f"{text}>>>{call}", 1, "I ask. "),
        (f"{text}>>>{call}>>>{call}", 2, "I ask. "),
    ):
        parser = params.new_parser()
        if n > 1 and not is_parallel:
            with pytest.raises(ValueError, match="format"):
                parser.update(answer, False)
        else:
            parser.update(answer, False)
            assert (len(parser.message["tool_calls"]), parser.message["content"]) == (n, content)
        found = re.search(trigger.value, answer)
        assert found is None or accepts(chance, params.grammar, answer[found.start() :]) == (n == 1 or is_parallel)
