"""Haystack.

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.utils import Secret
llm = OpenAIChatGenerator(api_base_url="http://localhost:8080/v1", api_key=Secret.from_token("none"), model="any")
"""

from __future__ import annotations

from typing import Any

from checks import PARAMETERS, QUESTION, V1
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret


def _ask(**options: Any) -> Any:
    options = {"max_tokens": 200, **options}
    llm = OpenAIChatGenerator(
        api_base_url=V1, api_key=Secret.from_token("none"), model="any", generation_kwargs=options
    )
    tools = [Tool("get_weather", "The weather in a city", PARAMETERS, lambda city: "warm")]
    return llm.run([ChatMessage.from_user(QUESTION)], tools=tools if "tool_choice" in options else None)["replies"][0]


def chat() -> None:
    assert _ask(max_tokens=20).text


def forced_call() -> None:
    call, *_ = _ask(tool_choice="required").tool_calls
    assert (call.tool_name, list(call.arguments)) == ("get_weather", ["city"])


def structured_output() -> None:
    import json

    schema = {"name": "city", "schema": PARAMETERS}
    assert list(json.loads(_ask(response_format={"type": "json_schema", "json_schema": schema}).text)) == ["city"]
