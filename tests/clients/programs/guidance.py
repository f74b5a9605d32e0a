"""Guidance.

import guidance
llm = guidance.models.OpenAI("any", base_url="http://localhost:8080/v1", api_key="none")
with guidance.user(): llm += "Hello"
"""

from __future__ import annotations

from typing import Any

from checks import V1
from guidance import assistant, gen, json, models, user
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _model() -> Any:
    return models.OpenAI("any", base_url=V1, api_key="none", echo=False)


def text() -> None:
    llm = _model()
    with user():
        llm += "Say hello."
    with assistant():
        llm += gen("said", max_tokens=20)
    assert llm["said"]


def objects() -> None:
    llm = _model()
    with user():
        llm += "Ada is 36 years old. Answer as JSON."
    with assistant():
        llm += json("person", schema=Person)
    assert Person.model_validate_json(llm["person"])
