"""Pydantic AI.

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel; from pydantic_ai.providers.openai import OpenAIProvider
agent = Agent(OpenAIChatModel("any", provider=OpenAIProvider(base_url="http://localhost:8080/v1", api_key="none")))
"""

from __future__ import annotations

from typing import Any

from checks import V1
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = OpenAIChatModel("any", provider=OpenAIProvider(base_url=V1, api_key="none"))
SETTINGS: Any = {"max_tokens": 200}


class Person(BaseModel):
    name: str
    age: int


def output_by_a_tool() -> None:
    agent = Agent(MODEL, output_type=Person, model_settings=SETTINGS)
    assert isinstance(agent.run_sync("Ada is 36 years old.").output, Person)


def output_by_a_schema() -> None:
    agent = Agent(MODEL, output_type=NativeOutput(Person), model_settings=SETTINGS)
    assert isinstance(agent.run_sync("Ada is 36 years old.").output, Person)


def stream() -> None:
    import asyncio

    async def texts() -> list[str]:
        async with Agent(MODEL, model_settings=SETTINGS).run_stream("Hello") as result:
            return [text async for text in result.stream_text(delta=True)]

    assert len(asyncio.run(texts())) > 1
