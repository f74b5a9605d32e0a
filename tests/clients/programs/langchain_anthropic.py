"""LangChain with Anthropic's API.

from langchain_anthropic import ChatAnthropic
llm = ChatAnthropic(base_url="http://localhost:8080", api_key="none", model="any")
llm.invoke("Hello")
"""

from __future__ import annotations

from typing import Any

from checks import QUESTION, URL
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from pydantic import BaseModel

LLM: Any = ChatAnthropic(base_url=URL, api_key="none", model="any", max_tokens=200, max_retries=0)


class Person(BaseModel):
    name: str
    age: int


@tool
def _get_weather(city: str) -> str:
    """The weather in a city."""
    return "It is warm."


def invoke_and_stream() -> None:
    whole = LLM.invoke("Hello")
    parts = list(LLM.stream("Hello"))
    assert whole.text == "".join(part.text for part in parts)
    assert sum(part.usage_metadata["input_tokens"] for part in parts if part.usage_metadata) > 0


def forced_call() -> None:
    call, *_ = LLM.bind_tools([_get_weather], tool_choice="any").invoke(QUESTION).tool_calls
    assert (call["name"], list(call["args"])) == ("_get_weather", ["city"])


def structured_output() -> None:
    for method in ("function_calling", "json_schema"):
        assert isinstance(LLM.with_structured_output(Person, method=method).invoke("Ada is 36 years old."), Person)
