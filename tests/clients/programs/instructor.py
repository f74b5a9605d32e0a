"""Objects of pydantic from a model's answers.

import instructor
from openai import OpenAI
client = instructor.from_openai(OpenAI(base_url="http://localhost:8080/v1", api_key="none"))
"""

from __future__ import annotations

from typing import Any

import instructor
from checks import V1
from openai import OpenAI
from pydantic import BaseModel

ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": "Ada is 36 years old."}], "max_tokens": 200}


class Person(BaseModel):
    name: str
    age: int


def _ask(mode: instructor.Mode, **options: Any) -> Any:
    client = instructor.from_openai(OpenAI(base_url=V1, api_key="none"), mode=mode)
    return client.chat.completions.create(**ASKED, max_retries=0, **options)


def tools_mode() -> None:
    assert isinstance(_ask(instructor.Mode.TOOLS, response_model=Person), Person)


def json_schema_mode() -> None:
    assert isinstance(_ask(instructor.Mode.JSON_SCHEMA, response_model=Person), Person)


def partial_objects_of_a_stream() -> None:
    parts = list(_ask(instructor.Mode.TOOLS, response_model=instructor.Partial[Person], stream=True))
    assert len(parts) > 1
    assert parts[-1].name
