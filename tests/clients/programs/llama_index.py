"""LlamaIndex.

from llama_index.llms.openai_like import OpenAILike
options = {"api_base": "http://localhost:8080/v1", "api_key": "none"}
llm = OpenAILike(model="any", is_chat_model=True, is_function_calling_model=True, **options)
"""

from __future__ import annotations

from checks import V1
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

LLM = OpenAILike(
    model="any", api_base=V1, api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=200
)


class Person(BaseModel):
    name: str
    age: int


def complete_and_stream() -> None:
    whole = LLM.complete("Hello").text
    assert whole and whole == "".join(part.delta or "" for part in LLM.stream_complete("Hello"))


def called_tool() -> None:
    cities: list[str] = []

    def get_weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return "warm"

    LLM.predict_and_call([FunctionTool.from_defaults(get_weather)], "What is the weather in Rome?", tool_required=True)
    assert cities


def structured_output() -> None:
    from llama_index.core.llms import ChatMessage

    answer = LLM.as_structured_llm(Person).chat([ChatMessage("Ada is 36 years old.")])
    assert isinstance(answer.raw, Person)
