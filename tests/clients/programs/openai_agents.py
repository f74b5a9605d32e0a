"""OpenAI's Agents SDK, by responses or by chats.

from agents import Agent, OpenAIResponsesModel, Runner
model = OpenAIResponsesModel("any", AsyncOpenAI(base_url="http://localhost:8080/v1", api_key="none"))
Runner.run_sync(Agent("helper", model=model), "Hello")
"""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)  # fmt: skip
from checks import QUESTION, V1
from openai import AsyncOpenAI

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=V1, api_key="none")
CITIES: list[str] = []


@function_tool
def _get_weather(city: str) -> str:
    """The weather in a city."""
    CITIES.append(city)
    return "It is warm."


def _run(model: Any) -> None:
    CITIES.clear()
    settings = ModelSettings(tool_choice="required", max_tokens=200)
    agent = Agent("helper", model=model, tools=[_get_weather], model_settings=settings)
    result = Runner.run_sync(agent, QUESTION, max_turns=4)
    assert CITIES and result.final_output


def tool_loop_by_responses() -> None:
    _run(OpenAIResponsesModel("any", CLIENT))


def tool_loop_by_chats() -> None:
    _run(OpenAIChatCompletionsModel("any", CLIENT))
