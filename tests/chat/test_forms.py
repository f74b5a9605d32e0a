"""Values as Gemma 4 writes them in calls: texts between marks, names without quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accepting import accepts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat.schema.tools import complete

Q = '<|"|>'


def grammar_of(parameters: dict[str, Any]) -> str:
    """Return the grammar of a tool's arguments, and check that all of the schema is kept."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    opened = [("schema-0", "gemma4-tool-f-schema", json.dumps(parameters), "")]
    grammar = complete("root ::= schema-0\n", opened, [tool])
    assert grammar.loosened == ()
    return grammar.text


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]},
        ["{n:5}", f"{{n:5,s:{Q}a < b <| \n{Q}}}", f"{{n:5,s:{Q}<<|{Q}}}", f"{{ n: 5, s: {Q}{Q} }}"],
        ["{}", '{"n":5}', "{n:x}", '{n:5,s:"a"}', f"{{s:{Q}a{Q}}}", f"{{n:5,s:{Q}a{Q}b{Q}}}", "{n :5}"],
    ),
    (
        {"properties": {"k": {"enum": ["a b", "c", 1, None]}}, "required": ["k"]},
        [f"{{k:{Q}a b{Q}}}", "{k:1}", "{k:null}"],
        ["{k:a b}", f"{{k:{Q}d{Q}}}", "{k:2}"],
    ),
    (
        {"properties": {"d": {"type": "string", "pattern": "^[0-9]{2}$"}, "m": {"type": "string", "maxLength": 2}}},
        ["{}", f"{{d:{Q}12{Q}}}", f"{{d:{Q}12{Q},m:{Q}ab{Q}}}"],
        [f"{{d:{Q}1{Q}}}", f"{{m:{Q}abc{Q}}}", f"{{m:{Q}<{Q}}}"],
    ),
    (
        {"properties": {"c": {"const": {"a": [1, "x"]}}}, "required": ["c"]},
        [f"{{c:{{a:[1,{Q}x{Q}]}}}}"],
        ['{c:{"a":[1,"x"]}}'],
    ),
    (
        {"additionalProperties": {"type": "integer"}},
        ["{}", "{a:1}", "{a:1,größe:2}"],
        ['{"a":1}', "{a b:x}", "{:1}"],
    ),
    (
        {"properties": {"ab": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}},
        ["{ab:true}", "{ab:true,ac:1}", "{b:2}"],
        ["{ab:1}", "{ab:true,ac:true}"],
    ),
    ({"type": "object"}, ["{}", f"{{a:{{b:[1,{Q}x{Q},true,null]}}}}"], ["[]", '{"a":1}']),
]


@pytest.mark.parametrize(("parameters", "good", "bad"), CASES)
def test_arguments(llm: Eagle3Llama, parameters: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(parameters)
    assert [text for text in good if not accepts(llm, grammar, text)] == []
    assert [text for text in bad if accepts(llm, grammar, text)] == []


def test_a_name_that_cannot_be_written_is_said() -> None:
    parameters = {"properties": {"a\tb": {"type": "string"}, "c": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    opened = [("schema-0", "gemma4-tool-f-schema", json.dumps(parameters), "")]
    (item,) = complete("root ::= schema-0\n", opened, [tool]).loosened
    assert (item.tool, item.property) == ("f", "a\tb")
    assert "cannot write its name" in item.reason
