"""smolagents.

from smolagents import OpenAIServerModel, ToolCallingAgent
model = OpenAIServerModel("any", api_base="http://localhost:8080/v1", api_key="none")
ToolCallingAgent(tools=[], model=model).run("Hello")
"""

from __future__ import annotations

from checks import QUESTION, V1
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

CITIES: list[str] = []


@tool
def get_the_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name
    """
    CITIES.append(city)
    return "It is warm."


def tool_calling_agent() -> None:
    model = OpenAIServerModel("any", api_base=V1, api_key="none", max_tokens=200)
    agent = ToolCallingAgent(tools=[get_the_weather], model=model, max_steps=3)
    assert agent.run(QUESTION)
    calls = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
    assert calls and set(calls) <= {"get_the_weather", "final_answer"}
