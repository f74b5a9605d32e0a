"""A schema's grammar allows only JSON that matches the schema, and keywords that it cannot keep are reported."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from accepting import accepts
from chat_cases import WEATHER, templates
from chatting import Load
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates, json_schema_to_grammar, schema_grammar
from random_schemas import ODD, PATTERNS, document, random_schema
from tiny import write_target

USER = {"role": "user", "content": "Hello"}
HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja"
QWEN3_CODER = "Qwen3-Coder.jinja"
N_TEXTS = 4


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eagle3Llama]:
    """Load a model of random weights: it may write any text that a grammar allows."""
    path: Path = tmp_path_factory.mktemp("chance") / "target.gguf"
    llm = Eagle3Llama(str(write_target(path, n_layer=2).path), verbose=False, n_ctx=2048, n_parallel=4, n_threads=1)
    yield llm
    llm.close()


def written(llm: Eagle3Llama, schema: Any, n: int = N_TEXTS, max_tokens: int = 250) -> list[str]:
    """Return whole answers."""
    results = llm.generate_batch(
        [[1, 2, 3]] * n,
        [{"seed": seed} for seed in range(n)],
        max_tokens=max_tokens,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        json_schema=schema,
    )
    assert [result.error for result in results] == [None] * n
    return [result.text for result in results if result.finish_reason == "stop"]


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_random_schemas(chance: Eagle3Llama, start: int) -> None:
    n_kept = n_whole = 0
    for seed in range(start, start + 40):
        dice = random.Random(seed)
        schema = document(dice) if seed % 3 else {"anyOf": [random_schema(dice)]}
        loosened = schema_grammar(schema).loosened
        n_kept += not loosened
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        for text in written(chance, schema):
            value = json.loads(text)
            n_whole += 1
            errors = [] if loosened else [error.message for error in validator.iter_errors(value)]
            assert not errors, (schema, text)
    assert n_kept > 25
    assert n_whole > 80


@pytest.mark.parametrize("start", range(1000, 1120, 40))
def test_random_nonsense(chance: Eagle3Llama, start: int) -> None:
    """Answers are JSON for every schema, and every schema is kept as far as it is valid."""
    n_whole = n_loosened = 0
    for seed in range(start, start + 40):
        schema = {"type": "object", "properties": {"x": document(random.Random(seed), odd=0.2)}}
        n_loosened += bool(schema_grammar(schema).loosened)
        for text in written(chance, schema, 2):
            json.loads(text)
            n_whole += 1
    assert n_loosened > 15
    assert n_whole > 30


MORE_PATTERNS = (
    *(r"^[^@]{1,4}@[^@]{1,4}$", r"^.{1,6}$", r"^[^x]{2,6}$", r"^[ -~]{3,8}$", r"^\d{3}$", r"^\w{1,8}$", r"^\S{1,8}$"),
    *(r"^\W{2}$", r"^\s\S$", r"^(?:a|b(c|d)){2,3}$", r"^(a*)*$", r"^(a|)+x$", r"^(?P<n>a)?$", r"^\x41\u0042[\]\\^-]$"),
    *(r"^[^\\\"]{2}$", r"^/\/$", r"^a{2}{$", r"^x*?y+?$", r"^[a\-z]$", r"^[\w-]{3}$", r"^\p{L}$", '^[\t\n"]{3}$', ""),
)


@pytest.mark.parametrize("pattern", [*PATTERNS, *MORE_PATTERNS])
def test_patterns(chance: Eagle3Llama, pattern: str) -> None:
    asked = {"type": "string", "pattern": pattern, "maxLength": 12}
    schema = {"type": "object", "properties": {"p": asked}, "required": ["p"]}
    assert not schema_grammar(schema).loosened
    texts = written(chance, schema, 8)
    assert len(texts) > 4
    for text in texts:
        value = json.loads(text)["p"]
        if r"\p" not in pattern:  # Python does not know \p
            assert re.search(pattern, value), value
        else:
            assert value.isalpha()


@pytest.mark.parametrize("pattern", [r"[^x]{2,5}", r"\w+@\w+", r"a|b c", r"(?:yes|no)\n", r"\"[^\"]*\""])
def test_patterns_of_whole_texts(chance: Eagle3Llama, pattern: str) -> None:
    """A pattern of a whole text is not within JSON: nothing is escaped, and all of the text has to match."""
    for seed in range(8):
        answer: Any = chance.create_completion(
            [1, 2, 3],
            max_tokens=60,
            seed=seed,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            response_format={"type": "regex", "regex": pattern},
        )
        if answer["choices"][0]["finish_reason"] == "stop":
            assert re.fullmatch(pattern, answer["choices"][0]["text"])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "without ')'"),
        (")", "without '('"),
        ("[a", "ends too early"),
        ("[b-a]", "is empty"),
        ("a**", "repetition is repeated"),
        ("a{3,2}", "less often"),
        ("*a", "nothing to repeat"),
        (r"(?=x)y", "lookarounds"),
        (r"(?i)x", "lookarounds, flags"),
        (r"(a)\1", r"\1 has no grammar"),
        (r"\bx", r"\b has no grammar"),
        ("a^b", "an anchor in its middle"),
        ("(a$)*", "an anchor in its middle"),
        ("[]a]", "dialects disagree"),
        ("a{50000}", "repeats more than"),
        (r"\ud800", "surrogate"),
        (r"^[^\s\S]$", "no characters"),
        ("((((" * 50 + "))))" * 50, "nested too deep"),
    ],
)
def test_patterns_that_are_not_kept(pattern: str, reason: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern, "maxLength": 3}, "b": {"const": 1}}}
    grammar = schema_grammar(schema)
    (item,) = grammar.loosened
    assert (item.tool, item.property) == ("", "a")
    assert reason in item.reason
    assert repr(pattern)[1:20] in item.reason
    assert "{0,3}" in grammar.text  # the rest of the property is kept


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 5000}, ['"' + "a" * n + '"' for n in (5000, 5001)], ['"' + "a" * 4999 + '"']),
        ({"type": "string", "maxLength": 3000}, ['""', '"' + "a" * 3000 + '"'], ['"' + "a" * 3001 + '"']),
        (
            {"type": "string", "minLength": 300, "maxLength": 700},
            ['"' + "a" * n + '"' for n in (300, 428, 429, 700)],
            ['"' + "a" * n + '"' for n in (299, 701)],
        ),
        ({"type": "array", "items": {"const": 1}, "minItems": 2500}, [f"[1{',1' * 2499}]"], [f"[1{',1' * 2498}]"]),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ['"abc"'], ['"abcd"', '""', '"a1"']),
        ({"type": "string", "pattern": "^(a|bb)+$", "minLength": 3}, ['"abb"', '"aaaa"'], ['"bb"', '"aa"']),
        ({"type": "integer", "minimum": 10**18}, ["1000000000000000000"], ["999999999999999999", "1"]),
        ({"type": "integer", "minimum": 10**40}, [str(10**40)], [str(10**40 - 1)]),
        ({"type": "integer", "multipleOf": 7, "minimum": 0}, ["0", "7", "98", "700"], ["1", "-7", "99"]),
        ({"type": "integer", "multipleOf": 7}, ["-7", "0", "21"], ["-8", "07"]),
        ({"type": "number", "multipleOf": 0.01}, ["1", "-0.25", "3.1"], ["0.001"]),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            ["1", "0.5", "1.0", "0.01"],
            ["0", "0.0", "1.1", "-1"],
        ),
        ({"type": "object", "properties": {}}, ["{}", "{ }"], ['{"a":1}']),
        ({"type": "object"}, ["{}", '{"a": [1, null]}'], ["[]"]),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": {"const": 3}},
            ["{}", '{"a":1,"b":2,"ab":3}', '{"b":2}', '{"c":3,"d":3}'],
            ['{"b":2,"a":1}', '{"a":3}', '{"a":1,"a":3}', '{"\\u0061":3}', '{"c":1}'],
        ),
        (
            {"properties": {f"p{i}": {"const": i} for i in range(3)}, "required": ["p1"], "maxProperties": 2},
            ['{"p1":1}', '{"p0":0,"p1":1}', '{"p1":1,"p2":2}'],
            ['{"p0":0}', '{"p0":0,"p1":1,"p2":2}', "{}"],
        ),
        ({"properties": {"a": False, "b": True}}, ["{}", '{"b":[]}'], ['{"a":1}']),
        ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}}, ["[1,2]", "[1, 2,3]"], ["[1]", "[3]"]),
        ({"prefixItems": [{"const": 1}], "minItems": 3}, ['[1,"x",null]'], ["[1]", "[1,2]"]),
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"enum": [1, "x", None, {"a": [True]}]}, ["1", '"x"', "null", '{"a":[true]}'], ["2", "true"]),
        ({"enum": [f"v{i}" for i in range(20_000)]}, ['"v0"', '"v19999"', '"v777"'], ['"v20000"', '"v"', '"w1"']),
        ({"const": 'a"\n\\'}, ['"a\\"\\n\\\\"'], ['"a"']),
        ({"type": ["string", "null"], "enum": ["a", None, 5]}, ['"a"', "null"], ["5"]),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}, ["3", "5"], ["2", "6", '"3"']),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
                ]
            },
            ['{"a":3}'],
            ['{"a":2}', "{}"],
        ),
        ({"anyOf": [{"const": 1}, {"type": "string", "pattern": "^a$"}]}, ["1", '"a"'], ['"b"', "2"]),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}}, ["{}", '{"n":{"n":{}}}'], ['{"n":1}']),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 5}}}, ["5"], ["6"]),
        (  # within a part that has an $id references begin there
            {
                "$id": "https://a/root",
                "properties": {
                    "p": {"$id": "part", "$defs": {"x": {"const": 1}}, "items": {"$ref": "#/$defs/x"}},
                    "q": {"$id": "#old-anchor", "items": {"$ref": "#/$defs/x"}},
                },
                "$defs": {"x": {"const": 2}},
            },
            ['{"p":[1],"q":[2]}'],
            ['{"p":[2]}', '{"q":[1]}'],
        ),
        ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
        ({"properties": {"a": {"type": "null", "required": True}}}, ['{"a":null}'], ["{}"]),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"const": 1}]}, "b": {"$ref": "#/$defs/a"}},
            },
            ["1"],
            ["2"],
        ),
        ({"type": "string", "format": "date"}, ['"2024-02-28"', '"2024-12-31"'], ['"2024-02-30"', '"2024-1-1"']),
        ({"type": "string"}, ['"\\ud83d\\ude00"', '"ü"', '"\\n"'], ['"\n"', '"\\ud83d"', '"\\x"', '"a']),
    ],
)
def test_what_schemas_allow(llm: Eagle3Llama, schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = schema_grammar(schema)
    assert not grammar.loosened
    assert [text for text in good if not accepts(llm, grammar.text, text)] == []
    assert [text for text in bad if accepts(llm, grammar.text, text)] == []


def test_bounds_of_integers(llm: Eagle3Llama) -> None:
    """Each grammar accepts exactly the numbers within its bounds, at random and at the edges."""
    dice = random.Random(1)
    for _ in range(12):
        low = dice.choice([None, dice.randrange(-250, 250)])
        high = dice.choice([None, (low or -150) + dice.randrange(0, 300)])
        schema: dict[str, Any] = {"type": "integer"}
        schema |= {"minimum": low} if low is not None else {}
        schema |= {"maximum": high} if high is not None else {}
        grammar = json_schema_to_grammar(schema)
        for n in {dice.randrange(-1100, 1100) for _ in range(60)} | {
            x + d for x in (low, high) if x for d in (-1, 0, 1)
        }:
            fits = (low is None or n >= low) and (high is None or n <= high)
            assert accepts(llm, grammar, str(n)) == fits, (schema, n)


def test_bounds_of_numbers(llm: Eagle3Llama) -> None:
    dice = random.Random(2)
    for _ in range(12):
        digits = dice.randrange(4)
        low = round(dice.uniform(-12, 12), digits)
        high = round(low + dice.choice([0.125, 0.5, 3, 111]), digits + 1)
        above, below = dice.random() < 0.5, dice.random() < 0.5
        keys = ("exclusiveMinimum" if above else "minimum", "exclusiveMaximum" if below else "maximum")
        grammar = json_schema_to_grammar({"type": "number", keys[0]: low, keys[1]: high})
        tries = [round(dice.uniform(low - 1, high + 1), dice.randrange(5)) for _ in range(40)]
        for x in (*tries, low, high):
            fits = (x > low or (x == low and not above)) and (x < high or (x == high and not below))
            for text in {f"{x:.{n}f}" for n in range(7) if float(f"{x:.{n}f}") == x}:
                assert accepts(llm, grammar, text) == fits, (low, high, above, below, text)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "integer"}}, "not is not kept"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {"const": 1}, "then": {"const": 1}}, "if is not kept"),
        ({"enum": []}, "enum: expected values"),
        ({"type": "strin"}, "none of JSON schemas"),
        ({"$ref": "#/nowhere"}, "cannot resolve"),
        ({"$ref": "https://example.org/x"}, "cannot resolve"),
        (None, "expected a schema, found null"),
        (5, "expected a schema, found 5"),
        ({"type": "string", "minLength": 10**9}, "minLength 1000000000 is kept as 100000"),
        ({"type": "string", "maxLength": 10**9}, "maxLength 1000000000 is not kept"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "no number is between"),
        ({"type": "integer", "minimum": 1e300, "maximum": 1e308, "multipleOf": 3}, "multiples"),
        ({"type": "number", "multipleOf": -2}, "multipleOf: expected a number above 0, found -2"),
        ({"type": "array", "uniqueItems": "true"}, "uniqueItems is not kept"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "is less than minLength"),
        ({"type": "string", "pattern": "^a$", "minLength": 5}, "no text of its lengths"),
        ({"type": "string", "pattern": "^(a+b?)+$", "maxLength": 5000}, "too many ways"),
        ({"type": "string", "enum": [1]}, "no value of its enum has its type"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no value matches it"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf is kept as anyOf"),
        ({"type": "string", "format": "json-pointer"}, "format json-pointer is not kept"),
        ({"type": "object", "patternProperties": {"(": {}}}, "patternProperties '(' is not kept"),
        ({"type": "object", "properties": [1]}, "expected an object of schemas"),
    ],
)
def test_what_is_not_kept_is_said(chance: Eagle3Llama, schema: Any, reason: str) -> None:
    whole = {"type": "object", "properties": {"odd": schema, "n": {"const": 7}}, "required": ["n", "odd"]}
    found = schema_grammar(whole).loosened
    assert any(item.property.startswith("odd") and reason in item.reason for item in found), found
    for text in written(chance, whole, 2):
        assert json.loads(text)["n"] == 7  # the other property is kept


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, "x": {}}, "required": ["kind"]}
                for kind in ("a", "b")
            ]
        },
        {
            "oneOf": [
                {"type": "object", "properties": {name: {}}, "required": [name], "additionalProperties": False}
                for name in ("a", "b")
            ]
        },
    ],
)
def test_alternatives_that_exclude_each_other(schema: Any) -> None:
    assert not schema_grammar(schema).loosened


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"properties": {"said_once": {"pattern": "("}}}
    with caplog.at_level(logging.WARNING):
        json_schema_to_grammar(schema)
        json_schema_to_grammar(schema)
    assert caplog.text.count("property said_once: pattern '(' is not kept") == 1


# tools


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def of_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"odd": schema, "n": {"type": "integer"}}, "required": ["odd"]}


ODD_PARAMETERS = (
    *(True, False, None, [], "x", {"type": "string"}, {"type": "object", "properties": None}, {"$ref": "#"}),
    *({"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"}, {"properties": {"a": {}}}),
    {"anyOf": [of_property({"type": "string"}), of_property({"type": "integer"})]},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"properties": {"b": {"$ref": "#"}}}},
    },
    *map(of_property, ODD),
    *map(of_property, (True, False, {"type": ["string", "null"]}, {"$ref": "#"}, {"description": 5})),
    *map(of_property, ({"type": "string", "minLength": 5000}, {"type": "array", "items": {}, "minItems": 2500})),
    *map(of_property, ({"type": "integer", "minimum": 10**30}, {"enum": [{"a": 1}, None]})),
)


def test_no_tool_fails_the_others() -> None:
    """No tool makes the others fail, with every template: most write tools as JSON, others read their schemas."""
    odd = [tool(f"odd{i}", parameters) for i, parameters in enumerate(ODD_PARAMETERS)]
    n = 0
    for path in templates():
        chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
        plain = chat.apply([USER], tools=[WEATHER], tool_choice="required")
        params = chat.apply([USER], tools=[WEATHER, *odd], tool_choice="required")
        assert ("get_weather" in params.prompt) == ("get_weather" in plain.prompt)
        assert bool(params.grammar) == bool(plain.grammar)
        names = re.findall(r"^([\w-]+) ::=", params.grammar, re.MULTILINE)
        assert len(names) == len(set(names)), path.name
        n += 1
    assert n > 40


def test_one_bad_pattern_of_forty_tools(load: Load, llm: Eagle3Llama) -> None:
    good = [
        tool(
            f"tool{i}",
            {
                "type": "object",
                "properties": {"path": {"type": "string", "pattern": "^[a-z/]+$"}, "n": {"type": "integer"}},
                "required": ["path"],
            },
        )
        for i in range(39)
    ]
    bad = tool("bad", {"type": "object", "properties": {"q": {"type": "string", "pattern": "("}, "n": {"const": 7}}})
    chat = load(HERMES)
    params = chat.apply([USER], tools=[*good[:20], bad, *good[20:]], tool_choice="required")
    assert [(item.tool, item.property) for item in params.loosened] == [("bad", "q")]
    assert "pattern '('" in params.loosened[0].reason

    def may_call(name: str, arguments: str) -> bool:
        call = f'{params.generation_prompt}<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        return accepts(llm, params.grammar, call)

    for i in (0, 19, 20, 38):
        assert may_call(f"tool{i}", '{"path": "a/b", "n": 3}')
        assert not may_call(f"tool{i}", '{"path": "A"}')
        assert not may_call(f"tool{i}", '{"n": 3}')
    assert may_call("bad", '{"q": "anything (", "n": 7}')
    assert not may_call("bad", '{"q": 5}')
    assert not may_call("bad", '{"n": 8}')


def test_formats_of_tool_calls_that_hold_texts_to_nothing(load: Load) -> None:
    """Qwen3-Coder writes strings without quotes, so any text is allowed."""
    properties = {
        "free": {"type": "string"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "n": {"type": "integer", "minimum": 3},
        "when": {"type": "string", "pattern": "^x$", "description": "y"},
    }
    params = load(QWEN3_CODER).apply([USER], tools=[tool("t", {"type": "object", "properties": properties})])
    assert [(item.tool, item.property) for item in params.loosened] == [("t", "unit"), ("t", "when")]
    assert "[3-9]" in params.grammar


def test_schema_of_the_answer_beside_tools(load: Load) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string", "pattern": "("}}}
    params = load(HERMES).apply([USER], json_schema=schema)
    assert [(item.tool, item.property) for item in params.loosened] == [("", "answer")]
    with pytest.raises(ValueError, match="nothing is left of the JSON schema"):
        load(HERMES).apply([USER], json_schema={"type": "strin"})
