"""Strands Agents.

from strands import Agent; from strands.models.openai import OpenAIModel
options = {"base_url": "http://localhost:8080/v1", "api_key": "none"}
Agent(model=OpenAIModel(client_args=options, model_id="any"))("Hello")
"""

from __future__ import annotations

from contextlib import suppress

from checks import QUESTION, V1
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import MaxTokensReachedException

MODEL = OpenAIModel(client_args={"base_url": V1, "api_key": "none"}, model_id="any", params={"max_tokens": 200})
CITIES: list[str] = []


class Person(BaseModel):
    name: str
    age: int


@tool
def _get_weather(city: str) -> str:
    """The weather in a city."""
    CITIES.append(city)
    return "It is warm."


def agent_with_a_tool() -> None:
    agent = Agent(model=MODEL, tools=[_get_weather], callback_handler=None)
    with suppress(MaxTokensReachedException):  # the 0.5B may repeat its call as a text until then
        agent(QUESTION)
    assert CITIES[0] == "Rome" and len(agent.messages) >= 4, agent.messages


def structured_output() -> None:
    result = Agent(model=MODEL, callback_handler=None)("Ada is 36 years old.", structured_output_model=Person)
    assert isinstance(result.structured_output, Person)
