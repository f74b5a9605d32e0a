"""Grammars that would keep llama.cpp busy are refused; those that people write are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.serve.errors import ApiError
from llama_cpp_eagle3.serve.grammar import check_grammar, schema_to_grammar


def rules(n: int, form: str, last: str) -> str:
    return "\n".join(form.format(i=i, j=i + 1) for i in range(n)) + f"\nr{n} ::= {last}\nroot ::= r0"


TOO_MUCH = {
    "options": "root ::= " + " ".join(['"a"?'] * 2000),
    "doubling": rules(30, "r{i} ::= r{j} r{j}", '"a"?'),
    "doubling-alternatives": rules(30, "r{i} ::= r{j} | r{j}", '"a"'),
    "doubling-groups": rules(30, "r{i} ::= (r{j} | r{j})", '"a"'),
    "deep": rules(5000, "r{i} ::= r{j}", '"a"'),
    "groups": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
    "repeated": 'root ::= "a"{1000000}',
    "long": "root ::= [" + "a" * 300_000 + "]",
    "nothing": "this is no grammar (",
}
FINE = {
    "stars": 'root ::= ("a"* "b"*)*',
    "enumeration": "root ::= " + " | ".join(f'"word{i}"' for i in range(2000)),
    "options": "root ::= " + " ".join(['"a"?'] * 100),
    "repeated": 'root ::= ([a-z]{1,100} "." # a comment ( [ "\n)+',
    "chain": rules(1000, "r{i} ::= r{j}", '"a"'),
    "recursion": 'root ::= value\nvalue ::= "[" (value ("," value)*)? "]" | [0-9]+ | "(\\" |"',
    "escapes": r'root ::= "\"(" [\]"(|] . <think> !<[7]>',
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much(name: str) -> None:
    with pytest.raises(ApiError) as e:
        check_grammar(TOO_MUCH[name])
    assert e.value.code == 400


@pytest.mark.parametrize("name", FINE)
def test_fine(name: str) -> None:
    check_grammar(FINE[name])


def test_schemas() -> None:
    properties: dict[str, Any] = {f"p{i}": {"type": "string"} for i in range(200)}
    schema_to_grammar({"type": "object", "properties": properties, "required": ["p0"]})
    schema_to_grammar({"enum": [f"word{i}" for i in range(2000)]})
    nested: dict[str, Any] = {"type": "integer"}
    for i in range(20):
        nested = {"type": "object", "properties": {f"level{i}": nested, "other": {"type": "array", "items": nested}}}
        if i > 6:
            nested["properties"].pop("other")
    schema_to_grammar(nested)
    package = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    schema_to_grammar({"const": package["panels"][0]})
