"""AutoGen.

from autogen_ext.models.openai import OpenAIChatCompletionClient
info = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}
client = OpenAIChatCompletionClient(model="any", base_url="http://localhost:8080/v1", api_key="none", model_info=info)
"""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from checks import QUESTION, V1
from pydantic import BaseModel

INFO: Any = {
    "vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"
}  # fmt: skip


class Person(BaseModel):
    name: str
    age: int


def _client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="any", base_url=V1, api_key="none", model_info=INFO, max_tokens=200)


def agent() -> None:
    result = asyncio.run(AssistantAgent("helper", _client()).run(task="Say hello."))
    assert result.messages[-1].content


def forced_call() -> None:
    async def get_weather(city: str) -> str:
        return "warm"

    tool = FunctionTool(get_weather, description="The weather in a city")
    asked = [UserMessage(content=QUESTION, source="user")]
    result: Any = asyncio.run(_client().create(asked, tools=[tool], tool_choice="required"))
    assert {call.name for call in result.content} == {"get_weather"}


def structured_output() -> None:
    asked = [UserMessage(content="Ada is 36 years old.", source="user")]
    result: Any = asyncio.run(_client().create(asked, json_output=Person))
    assert Person.model_validate_json(result.content)
