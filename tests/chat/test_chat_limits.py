"""Nothing that a client sends or a model writes hangs or ends the process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from chat_cases import WEATHER
from chatting import GEMMA4, QWEN3, Load
from llama_cpp_eagle3 import _chat
from llama_cpp_eagle3.chat import ChatTemplates, apply_request, json_limits, json_schema_to_grammar
from llama_cpp_eagle3.chat.fitting import apply_fitting
from llama_cpp_eagle3.chat.templates import PLAIN

USER = {"role": "user", "content": "Hello"}
REQUEST = PLAIN | {"parallel_tool_calls": True, "add_generation_prompt": True}
HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"


def nested(n: int) -> Any:
    value: Any = 1
    for _ in range(n):
        value = [value]
    return value


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def with_parameters(n: int) -> dict[str, Any]:
    """A tool for which llama.cpp's parser would take gigabytes, where each parameter has a tag of its own."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def in_a_small_thread(work: Callable[[], Any]) -> Any:
    """Run work in a thread with a stack as small as on some systems."""
    results = []
    size = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    return results[0]


CYCLE: list[Any] = [1]
CYCLE[:] = [CYCLE[0], {"again": CYCLE}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_template_kwargs": {"x": CYCLE}}, r"no JSON: chat_template_kwargs\.x\[1\]\.again contains itself"),
        ({"chat_template_kwargs": {"x": [inf, {}, {}]}}, r"kwargs\.x\[0\]: .* JSON has, found inf"),
        ({"chat_template_kwargs": {"x": nested(600)}}, "nested too deep"),
        ({"chat_template_kwargs": {"x": nested(100_000)}}, "nested too deep"),
        ({"messages": [USER, call("[" * 100_000 + "]" * 100_000), USER]}, "arguments of a tool call is nested"),
        ({"messages": [USER, call("{}"), {"role": "tool", "content": '{"a":' * 9999}]}, "tool's message is nested"),
        ({"messages": [USER] * 10_001}, "at most 10000 messages"),
        ({"tools": [WEATHER] * 513}, "at most 512 tools"),
        ({"tools": [with_parameters(45_000)]}, r"at most 1000 parameters \(properties\) of a tool, found 45000"),
        ({"tools": [with_parameters(1000)] * 6}, "at most 5000 parameters of all tools together, found 6000"),
        ({"json_schema": {"anyOf": nested(600)}}, "nested too deep"),
        ({"json_schema": {"anyOf": [{}, {"const": inf}]}}, r"json_schema\.anyOf\[1\]\.const: .* JSON has, found inf"),
        ({"chat_template_kwargs": {"a": nan}}, r"chat_template_kwargs\.a: .* JSON has, found nan"),
    ],
)
def test_requests_beyond_a_limit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChatTemplates(template="chatml").apply(**{"messages": [USER], **options})


def test_requests_at_the_limits(load: Load) -> None:
    chat = load(HERMES)
    deep = "[" * json_limits.MAX_NESTING + "]" * json_limits.MAX_NESTING
    messages = [USER, call(deep), {"role": "tool", "content": deep}, USER]
    variables = {"x": nested(json_limits.MAX_NESTING - 10)}
    prompt = in_a_small_thread(lambda: chat.apply(messages, chat_template_kwargs=variables).prompt)
    assert deep in prompt.replace(" ", "")
    brackets = "(" * 20_000  # a text that is no JSON
    assert brackets in chat.apply([{"role": "user", "content": brackets}]).prompt
    colours = "\x1b[1m\x1b[31merror\x1b[0m " * 2000  # a tool's log, which no parser reads
    assert colours in chat.apply([USER, call("{}"), {"role": "tool", "content": colours}]).prompt


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "items": nested(600)}, "nested too deep"),
        ({"$ref": "#/nowhere"}, "cannot resolve $ref"),
        ({"type": "nothing"}, "nothing is left"),
        (False, "nothing matches"),
        ("object", "expected a JSON schema"),
        ({"type": "array", "items": object()}, "no JSON"),
        ({"type": "number", "maximum": inf}, "maximum: expected a number that JSON has, found inf"),
    ],
)
def test_schemas_that_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        json_schema_to_grammar(schema)


def test_large_schemas_end() -> None:
    refs = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(120)}
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}
    schemas: list[Any] = [
        {"$ref": "#/$defs/a0", "$defs": {**chain, "a5000": {"type": "integer"}}},
        {"$ref": "#/$defs/a0", "$defs": {**refs, "a120": {"type": "integer"}}},
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}},
        {"type": "array", "items": {"type": "string", "minLength": 10**9}, "minItems": 10**6},
        {"enum": [f"v{i}" for i in range(20_000)]},
        {"type": "string", "pattern": "^" + "(" * 60 + "a{1000}" + ")" * 60 + "$"},
    ]
    for schema in schemas:
        start = time.process_time()
        assert "root ::=" in in_a_small_thread(lambda schema=schema: json_schema_to_grammar(schema))
        assert time.process_time() - start < 5.0


@pytest.mark.parametrize("n", [90, 500, 9_900])
def test_deep_answers(load: Load, n: int) -> None:
    parser = load(HERMES).apply([USER], tools=[{**WEATHER, "function": {"name": "f", "parameters": {}}}]).new_parser()
    text = '<tool_call>\n{"name": "f", "arguments": {"x": ' + "[" * n
    message = in_a_small_thread(lambda: parser.parse(text, is_partial=True))
    assert message["tool_calls"][0]["function"]["arguments"].count("[") == n


def test_answers_that_are_too_deep(load: Load) -> None:
    parser = load(HERMES).apply([USER]).new_parser()
    with pytest.raises(ValueError, match="nested too deep"):
        parser.update("{" * 10_001)


def test_long_answer_takes_no_long_time(load: Load) -> None:
    parser = load(HERMES).apply([USER], tools=[WEATHER]).new_parser()
    text = json.dumps({"text": "word " * 4000})
    start = time.process_time()
    assert parser.parse(text)["content"] == text
    assert time.process_time() - start < 1.0


LONG = "chat template that was given (calls itself without end, or goes on for too long|takes more than 512 MiB)"
LONG_TEXTS = [
    "{{ 'a'|indent(2000000000, true) }}",
    "{{ [[1]]|tojson(indent=2000000000) }}",
    "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
    "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}",
]
RECURSION = "{% macro f(x) %}{{ f(x) }}{% endmacro %}"


@pytest.mark.parametrize(
    "source",
    [
        RECURSION + "{{ f(1) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}"
        "{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns|tojson }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        *LONG_TEXTS,
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
        "{% for i in range(3000) %}{{ messages|tojson }}{% for j in range(1000) %}{{ i }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_without_an_end(source: str) -> None:
    """llama.cpp's Jinja would overflow its stack, or be analyzed for ever."""
    with pytest.raises(ValueError, match=LONG):
        ChatTemplates(template=source, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("source", LONG_TEXTS)
def test_templates_without_an_end_for_some_conversations(source: str) -> None:
    source = "{% if messages|length > 20 %}" + source + "{% endif %}{{ messages[0].content }}"
    templates = ChatTemplates(template=source, bos_token="<s>", eos_token="</s>")
    with pytest.raises(ValueError, match="^the " + LONG):
        templates.apply([USER] * 21)
    assert templates.apply([USER]).prompt == "Hello"


def test_a_template_that_calls_itself_for_some_conversations() -> None:
    source = "{% if messages|length > 20 %}" + RECURSION + "{{ f(1) }}{% endif %}{{ messages[0].content }}"
    templates = ChatTemplates(template=source, bos_token="<s>", eos_token="</s>")
    assert templates.apply([USER] * 20).prompt == "Hello"
    with pytest.raises(ValueError, match=LONG):
        templates.apply([USER] * 21)
    assert templates.apply([USER]).prompt == "Hello"


@pytest.mark.parametrize(("name", "n"), [(QWEN3, 5001), ("Reka-Edge.jinja", 1001), (GEMMA4, 501)])
def test_long_conversations_are_rendered(load: Load, name: str, n: int) -> None:
    """Also by templates that copy the whole text, or look back to the beginning, for each message."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"message {i} " * 20} for i in range(n)]
    assert f"message {n - 1}" in load(name).apply(messages).prompt


TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}{% endfor %}"
)


def test_neighbours_are_joined_in_one_go() -> None:
    """A conversation of one role does not take a time that grows with the square of its length."""
    templates = ChatTemplates(template=TURNS + "{{ messages[0].content }}", bos_token="<s>", eos_token="</s>")
    text = "a" * 1600
    start = time.thread_time()
    body = {"messages": [{"role": "user", "content": text}] * 9_000}
    assert len(apply_request(templates, body).prompt) >= 9_000 * 1_602 - 2
    with pytest.raises(ValueError, match="at most 10000 messages, found 29000"):
        apply_request(templates, {"messages": body["messages"][:1] * 29_000})
    assert time.thread_time() - start < 2.0


@pytest.mark.parametrize("slow", ["{% for i in range(1000000000) %}{% endfor %}", "{% set s = 'a' * 1000000000 %}"])
@pytest.mark.parametrize(("where", "then"), [("messages|length > 20", TURNS), ("tools and tools|length > 20", "")])
def test_a_conversation_that_takes_too_long_is_rendered_once(
    slow: str, where: str, then: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with plainer tools nor in another form: it would take as long again."""
    source = "{% if " + where + " %}" + slow + "{% endif %}" + then + load(HERMES).source()
    templates = ChatTemplates(template=source, bos_token="<s>", eos_token="</s>")
    assert templates.apply([USER], tools=[WEATHER])
    n_long = 0
    render = _chat.Templates.apply

    def counted(self: _chat.Templates, request: str) -> Any:
        nonlocal n_long
        try:
            return render(self, request)
        except ValueError as e:
            n_long += re.search(LONG, str(e)) is not None
            raise

    monkeypatch.setattr(_chat.Templates, "apply", counted)
    tools = [WEATHER] * 21
    with pytest.raises(ValueError, match=LONG):
        apply_fitting(templates.apply, templates.habits, [USER] * 21, tools=tools)
    assert n_long == 1


@pytest.mark.parametrize("slow", ["{% for i in range(1000000000) %}{% endfor %}", "{% set s = 'a' * 1000000000 %}"])
def test_a_template_that_is_slow_for_the_tools_of_an_analysis(slow: str) -> None:
    """llama.cpp looks at its tools where it is asked for thoughts, too."""
    source = "{{ tools }}{% if tools and tools|length > 1 %}" + slow + "{% endif %}{{ messages[0].content }}"
    templates = ChatTemplates(template=source, bos_token="<s>", eos_token="</s>")
    start = time.process_time()
    with pytest.raises(ValueError, match=LONG):
        templates.apply([USER])
    assert time.process_time() - start < 5.0


@pytest.mark.slow
def test_a_destructor_that_takes_memory_at_the_limit(load: Load) -> None:
    """JSON is taken apart on a list of its parts: an error there would end the process."""
    source = load("Kimi-K3.jinja").source()
    tools = []
    for k in range(10):
        properties = {f"p{k}_{i}": {"type": "string", "description": "a thing"} for i in range(1000)}
        schema = {"type": "object", "properties": properties, "required": [f"p{k}_0"]}
        tools.append(
            {"type": "function", "function": {"name": f"tool_{k}", "description": "does", "parameters": schema}}
        )
    request = {**REQUEST, "messages": [USER], "tools": tools}
    code = (
        "import sys, json; from llama_cpp_eagle3 import _chat; source, request = json.load(sys.stdin)\n"
        "try: _chat.Templates(0, source, '<s>', '</s>').apply(request)\n"
        "except ValueError as e: print(e)"
    )
    given = json.dumps([source, json.dumps(request)])
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout or re.search(LONG, done.stdout), done.stdout
