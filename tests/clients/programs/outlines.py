"""Outlines.

import openai, outlines
client = openai.OpenAI(base_url="http://localhost:8080/v1", api_key="none")
model = outlines.from_vllm(client, "any")
"""

from __future__ import annotations

import re
from typing import Any

import openai
import outlines
from checks import V1
from outlines.types import CFG, Regex
from pydantic import BaseModel

CLIENT = openai.OpenAI(base_url=V1, api_key="none")


class Person(BaseModel):
    name: str
    age: int


def objects() -> None:
    for make in (outlines.from_openai, outlines.from_vllm, outlines.from_sglang):
        text: Any = make(CLIENT, "any")("Ada is 36 years old.", Person, max_tokens=200)
        assert Person.model_validate_json(text)


def regular_expressions() -> None:
    text: Any = outlines.from_vllm(CLIENT, "any")("A date:", Regex(r"\d{4}-\d{2}"), max_tokens=30)
    assert re.fullmatch(r"\d{4}-\d{2}", text)


def grammars_in_Lark() -> None:
    grammar = CFG('start: "yes" | "no" " " /[a-z]{1,3}/')
    text: Any = outlines.from_vllm(CLIENT, "any")("Is it?", grammar, max_tokens=30)
    assert re.fullmatch("yes|no [a-z]{1,3}", text)
