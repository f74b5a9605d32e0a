"""Constraints by the names of all clients: kept or refused, never ignored."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from accepting import accepts
from chatting import Load
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import (
    CONSTRAINTS,
    ChatTemplates,
    apply_request,
    constraint_of,
    input_schema,
    without_constraints,
)

SCHEMA = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}
IS_SCHEMA = ('{"a": 5}', '{"a": 6}')
IS_OBJECT = ('{"x": 1}', "[1]")
IS_CHOICE = ("yes", "ye")
IS_REGEX = ("ab1", "xab1")
GBNF = 'root ::= "yes" | "no"'
LARK = '?start: YES | "no"\nYES: "y" /es/'
ASKED: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"json_schema": SCHEMA}, IS_SCHEMA),
    ({"json_schema": json.dumps(SCHEMA)}, IS_SCHEMA),
    ({"json_schema": {}}, IS_OBJECT),
    ({"json_schema": True}, ("[1]", "x")),
    ({"grammar": GBNF}, IS_CHOICE),
    ({"grammar": {"type": "json", "value": SCHEMA}}, IS_SCHEMA),
    ({"grammar": {"type": "regex", "value": r"[a-z]{2}\d"}}, IS_REGEX),
    ({"guided_json": SCHEMA}, IS_SCHEMA),
    ({"guided_json": json.dumps(SCHEMA)}, IS_SCHEMA),
    ({"guided_json_object": True}, IS_OBJECT),
    ({"guided_regex": r"[a-z]{2}\d"}, IS_REGEX),
    ({"guided_choice": ["yes", "no"]}, IS_CHOICE),
    ({"guided_grammar": GBNF, "guided_decoding_backend": "xgrammar"}, IS_CHOICE),
    ({"structured_outputs": {"json": SCHEMA}}, IS_SCHEMA),
    ({"structured_outputs": {"json_object": True}}, IS_OBJECT),
    ({"structured_outputs": {"regex": r"[a-z]{2}\d", "disable_any_whitespace": True}}, IS_REGEX),
    ({"structured_outputs": {"choice": ["yes", "no"], "grammar": None}}, IS_CHOICE),
    ({"structured_outputs": {"grammar": GBNF}}, IS_CHOICE),
    ({"structured_outputs": {"grammar": LARK}}, IS_CHOICE),
    *(({"grammar": f"\ufeff{text}"}, IS_CHOICE) for text in (GBNF, LARK)),
    ({"grammar": 'root ::= yes | "no"\ryes ::= "yes"\r'}, IS_CHOICE),
    ({"grammar": "// as on old machines\r" + LARK.replace("\n", "\r")}, IS_CHOICE),
    ({"json_schema": f"\ufeff{json.dumps(SCHEMA)}"}, IS_SCHEMA),
    *(({name: LARK}, IS_CHOICE) for name in ("grammar", "guided_grammar", "ebnf")),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, IS_CHOICE),
    ({"guided_decoding": {"choice": ["yes", "no"]}}, IS_CHOICE),
    ({"regex": r"[a-z]{2}\d"}, IS_REGEX),
    ({"ebnf": GBNF}, IS_CHOICE),
    ({"choice": ["yes", "no"]}, IS_CHOICE),
    ({"format": "json"}, IS_OBJECT),
    ({"format": SCHEMA}, IS_SCHEMA),
    ({"format": {"type": "json_schema", "schema": SCHEMA}}, IS_SCHEMA),
    ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, IS_SCHEMA),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}, IS_SCHEMA),
    ({"response_format": {"type": "json_object"}}, IS_OBJECT),
    ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, IS_SCHEMA),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, IS_SCHEMA),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "json", "value": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "json", "value": json.dumps(SCHEMA)}}, IS_SCHEMA),
    ({"response_format": {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}}}, IS_SCHEMA),
    ({"response_format": {"type": "json_object", "json_schema": {"name": "n", "schema": SCHEMA}}}, IS_SCHEMA),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}, "schema": SCHEMA}}, IS_SCHEMA),
    ({"response_format": {"type": "regex", "value": r"[a-z]{2}\d"}}, IS_REGEX),
    ({"response_format": {"type": "regex", "pattern": r"[a-z]{2}\d"}}, IS_REGEX),
    ({"response_format": {"type": "grammar", "grammar": GBNF}}, IS_CHOICE),
    ({"text": {"format": {"type": "grammar", "grammar": GBNF}}}, IS_CHOICE),
    ({"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}}, IS_SCHEMA),
    ({"json_schema": SCHEMA, "guided_json": SCHEMA}, IS_SCHEMA),
]
"""(request, (a text that it allows, a text that it forbids))."""
NOTHING: list[dict[str, Any]] = [
    {},
    {"grammar": ""},
    {"json_schema": None},
    {"response_format": {"type": "text"}},
    {"response_format": {}},
    {"guided_json_object": False},
    {"structured_outputs": {}},
    {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"format": ""},
    {"output_config": {"effort": "low"}},
    {"extra_body": {"temperature": 1}},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": "x"}, "'json_schema': expected a JSON schema, found a text that is no JSON"),
    ({"json_schema": [SCHEMA]}, "'json_schema': expected a JSON schema"),
    ({"json_schema": 5}, "found a number"),
    ({"json_schema": False}, "nothing matches"),
    ({"grammar": 5}, "'grammar': expected a text"),
    ({"grammar": "yes or no"}, "'grammar': expected a grammar in GBNF"),
    ({"grammar": {"type": "lark", "value": ""}}, "'grammar.type'"),
    ({"guided_json": 5}, "'guided_json'"),
    ({"guided_regex": "("}, "'guided_regex': the regular expression"),
    ({"guided_regex": ["a"]}, "'guided_regex': expected a text"),
    ({"guided_choice": "yes"}, "'guided_choice': expected a list of texts"),
    ({"guided_choice": []}, "'guided_choice'"),
    ({"guided_choice": ["a", 5]}, "'guided_choice'"),
    ({"guided_grammar": "start: WORD"}, "'guided_grammar': line 1: there is no terminal WORD"),
    ({"structured_outputs": {"grammar": "start: %json {}"}}, "'structured_outputs.grammar': line 1: '%json'"),
    ({"ebnf": 'a = "b";'}, "'ebnf': expected a grammar in GBNF, which has rules"),
    ({"guided_whitespace_pattern": " ?"}, "'guided_whitespace_pattern' is not supported"),
    ({"structural_tag": {}}, "'structural_tag' is not supported"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"jsons": {}}}, "found jsons"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "both"),
    ({"regex": 5}, "'regex'"),
    ({"ebnf": []}, "'ebnf'"),
    ({"choice": {}}, "'choice'"),
    ({"format": "xml"}, "'format'"),
    ({"format": 5}, "'format'"),
    ({"output_format": {"type": "xml"}}, "output_format type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format type"),
    ({"text": {"format": "json"}}, "'text.format'"),
    ({"response_format": "json_object"}, "'response_format'"),
    ({"response_format": {"type": "xml"}}, "response_format type"),
    ({"response_format": {"type": "json_schema"}}, "'response_format.json_schema.schema' is required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "is required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "json_schema.schema': expected"),
    ({"response_format": {"type": "text", "schema": SCHEMA}}, "'response_format.type'"),
    ({"response_format": {"schema": SCHEMA}}, "'response_format.type'"),
    ({"response_format": {"type": "text", "value": SCHEMA}}, "'response_format.type'"),
    ({"response_format": {"type": "json_object", "regex": "a"}}, "expected one of schema, json_schema, value, found"),
    ({"response_format": {"type": "json_object", "value": SCHEMA, "schema": {"enum": [1]}}}, "found schema, value"),
    ({"response_format": {"type": "json_object", "value": "x"}}, "'response_format.value': expected a JSON schema"),
    ({"text": {"format": {"type": "grammar"}}}, "'text.format' of type grammar: expected one of grammar, value"),
    (
        {"text": {"format": {"type": "grammar", "syntax": "regex", "definition": "a"}}},
        "'text.format' of type grammar: expected one of grammar, value",
    ),
    ({"response_format": {"type": "grammar", "grammar": ""}}, "'response_format' of type grammar"),
    ({"response_format": {"type": "regex"}}, "'response_format' of type regex: expected one of regex, pattern, value"),
    ({"output_config": 5}, "'output_config'"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format type"),
    ({"grammar": GBNF, "json_schema": SCHEMA}, "both grammar and json_schema"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "both"),
    ({"extra_body": {"guided_json": SCHEMA}}, "'extra_body': its fields belong into the body"),
]
USER = {"role": "user", "content": "Hello"}


def case(body: dict[str, Any]) -> str:
    return json.dumps(body)[:70]


@pytest.mark.parametrize(("body", "texts"), ASKED, ids=[case(body) for body, _ in ASKED])
def test_constraints_that_are_kept(llm: Eagle3Llama, body: dict[str, Any], texts: tuple[str, str]) -> None:
    constraint = constraint_of({"prompt": "x", **body})
    assert constraint is not None
    assert constraint.name.split(".")[0] in body
    grammar = constraint.compile()
    assert not grammar.loosened
    assert [accepts(llm, grammar.text, text) for text in texts] == [True, False]
    assert without_constraints({"prompt": "x", **body}).keys() <= {"prompt", "guided_decoding_backend"}


@pytest.mark.parametrize("body", NOTHING, ids=case)
def test_no_constraint(body: dict[str, Any]) -> None:
    assert constraint_of(body) is None


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[case(body) for body, _ in REFUSED])
def test_constraints_that_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        apply_request(ChatTemplates(template="chatml"), {"messages": [USER], **body})


@pytest.mark.parametrize("pattern", ["(", r"[^\s\S]", "a(?=b)", "(a{200}){200}"])
def test_patterns_of_custom_tools_are_refused_alike(pattern: str) -> None:
    with pytest.raises(ValueError, match="'guided_regex': the regular expression cannot be a grammar: ") as of_answer:
        constraint_of({"guided_regex": pattern})
    with pytest.raises(ValueError, match="regular expression") as of_tool:
        input_schema({"type": "grammar", "syntax": "regex", "definition": pattern})
    assert str(of_tool.value) == str(of_answer.value).replace("guided_regex", "format.definition")


def test_every_name_is_tried() -> None:
    kept = {name for body, _ in ASKED for name in body}
    refused = {name for body, _ in REFUSED for name in body}
    assert kept | refused >= CONSTRAINTS
    assert kept - {"guided_decoding_backend"} <= CONSTRAINTS


@pytest.mark.parametrize(("body", "texts"), ASKED, ids=[case(body) for body, _ in ASKED])
def test_constraints_of_chats(llm: Eagle3Llama, body: dict[str, Any], texts: tuple[str, str]) -> None:
    params = apply_request(ChatTemplates(template="chatml"), {"messages": [USER], **body})
    start = params.generation_prompt if params.grammar_begins_in_prompt else ""
    assert [accepts(llm, params.grammar, start + text) for text in texts] == [True, False]


def test_grammars_beside_tools() -> None:
    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
    for more in ({"guided_choice": ["a"]}, {"regex": "a"}, {"grammar": GBNF}):
        with pytest.raises(ValueError, match="with tools: '"):
            apply_request(ChatTemplates(template="chatml"), {"messages": [USER], "tools": [tool], **more})


def test_python(llm: Eagle3Llama) -> None:
    """`create_completion`, `create_chat_completion` and `generate_batch` use one converter."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\d{2}$"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    options: Any = {"max_tokens": 40, "temperature": 1.0, "seed": 3}
    texts = [
        llm.create_completion("x", json_schema=schema, **options)["choices"][0]["text"],
        llm.create_completion("x", response_format=form, **options)["choices"][0]["text"],
        llm.create_chat_completion([USER], response_format=form, **options)["choices"][0]["message"]["content"],
        llm.create_chat_completion([USER], json_schema=schema, **options)["choices"][0]["message"]["content"],
        llm.generate_batch(["x"], json_schema=schema, **options)[0].text,
        llm.generate_batch(["x"], response_format=form, **options)[0].text,
    ]
    for text in texts:
        assert len(json.loads(text)["a"]) == 2
        assert json.loads(text)["a"].isdigit()
    with pytest.raises(ValueError, match="both json_schema and grammar"):
        llm.create_completion("x", json_schema=schema, grammar="root ::= [a]")
    with pytest.raises(TypeError, match="guided_json"):
        llm.create_chat_completion([USER], guided_json=schema)


def test_python_with_llama_cpps_own_formats(llm: Eagle3Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chat_format", "chatml")
    for form in (
        {"type": "json_object", "schema": {"type": "string", "pattern": r"^\d{3}$"}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": r"^\d{3}$"}}},
    ):
        answer: Any = llm.create_chat_completion([USER], response_format=form, max_tokens=20, temperature=1.0)
        assert json.loads(answer["choices"][0]["message"]["content"]).isdigit()


STRICT = {
    "type": "function",
    "function": {
        "name": "dial",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "string", "pattern": r"^\d{3}$"}, "odd": {"$ref": "#/nowhere"}},
            "required": ["n"],
        },
    },
}
PLAIN = {"type": "function", "function": {"name": "wait"}}
DIAL = {"type": "function", "function": {"name": "dial"}}


@pytest.mark.parametrize("chat_format", ["chatml", "llama-2", "chatml-function-calling"])
@pytest.mark.parametrize(
    "given",
    [
        {"tools": [PLAIN, STRICT], "tool_choice": DIAL},
        {"tools": [STRICT], "tool_choice": "required"},
        {"functions": [STRICT["function"]], "function_call": {"name": "dial"}},
    ],
    ids=["named", "required", "older"],
)
def test_forced_tools_with_llama_cpps_own_formats(
    llm: Eagle3Llama,
    monkeypatch: pytest.MonkeyPatch,
    chat_format: str,
    given: dict[str, Any],
) -> None:
    """llama_cpp's own converter would allow any text for the pattern, and any object for the reference."""
    monkeypatch.setattr(llm, "chat_format", chat_format)
    options: dict[str, Any] = {**given, "max_tokens": 60, "temperature": 1.0, "seed": 5}
    answer: Any = llm.create_chat_completion([USER], **options)
    message = answer["choices"][0]["message"]
    (call,) = message.get("tool_calls") or [{"function": message["function_call"]}]
    assert call["function"]["name"] == "dial"
    assert re.fullmatch(r"[0-9]{3}", json.loads(call["function"]["arguments"])["n"])
    if chat_format == "chatml":
        text = ""
        for chunk in llm.create_chat_completion([USER], stream=True, **options):
            for call in chunk["choices"][0]["delta"].get("tool_calls") or ():
                text += call["function"]["arguments"]
        assert re.fullmatch(r"[0-9]{3}", json.loads(text)["n"])


def test_forced_tools_that_are_refused(llm: Eagle3Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chat_format", "chatml")
    for tools, choice, message in (
        ([STRICT, PLAIN], "required", "'required' with 2 tools"),
        ([], "required", "'required' with 0 tools"),
        ([STRICT], {"type": "function", "function": {"name": "no"}}, "expected one of the tools' names, found 'no'"),
        ([STRICT], 5, "found 5"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.create_chat_completion([USER], tools=tools, tool_choice=choice, max_tokens=5)
    answer: Any = llm.create_chat_completion(
        [USER], tools=[PLAIN], tool_choice={"type": "function", "function": {"name": "wait"}}, max_tokens=20
    )
    assert json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {}


def test_reasoning_comes_first(load: Load, llm: Eagle3Llama) -> None:
    """After a prompt that ends with <think>, a constraint holds for the content, llama-server's `grammar` for all."""
    chat = load("Qwen3.5-4B.jinja")
    params = apply_request(chat, {"messages": [USER], "guided_choice": ["yes", "no"]})
    assert params.begins_in_reasoning

    def may_say(text: str) -> bool:
        return accepts(llm, params.grammar, text, params.grammar_root)

    assert may_say("so <b> </thin </think>\n\nyes")
    assert may_say("</think>no")
    assert not may_say("yes")
    assert not may_say("so </think>\n\nmaybe")
    parser = params.new_parser()
    parser.update("so</think>\n\nyes", is_partial=False)
    assert parser.message["content"] == "yes"
    lines = apply_request(load("Qwen-QwQ-32B.jinja"), {"messages": [USER], "guided_choice": ["yes", "no"]})
    assert accepts(llm, lines.grammar, "so</think>yes", lines.grammar_root)
    # the parser leaves the lines in the content
    assert not accepts(llm, lines.grammar, "so</think>\n\nyes", lines.grammar_root)
    whole = apply_request(chat, {"messages": [USER], "grammar": GBNF})
    assert (whole.grammar, whole.grammar_root) == (GBNF, "root")
    without = apply_request(
        chat, {"messages": [USER], "regex": "a", "chat_template_kwargs": {"enable_thinking": False}}
    )
    assert without.grammar_root == "root"
