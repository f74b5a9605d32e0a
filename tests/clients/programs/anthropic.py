"""Anthropic's package for Python.

from anthropic import Anthropic
client = Anthropic(base_url="http://localhost:8080", api_key="none")
client.messages.create(model="any", max_tokens=100, messages=[{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, NotFoundError
from checks import PARAMETERS, QUESTION, URL
from pydantic import BaseModel

CLIENT = Anthropic(base_url=URL, api_key="none")
ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
TOOL: Any = {"name": "get_weather", "input_schema": PARAMETERS}


class City(BaseModel):
    name: str
    population: int


def messages_and_stream() -> None:
    whole = CLIENT.messages.create(**ASKED, max_tokens=24)
    with CLIENT.messages.stream(**ASKED, max_tokens=24) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and text == whole.content[0].text
    usage = final.usage
    assert usage.output_tokens == whole.usage.output_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )


def forced_call_and_its_result() -> None:
    answer = CLIENT.messages.create(
        **ASKED, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200
    )
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert (call.name, list(call.input)) == ("get_weather", ["city"])
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "It is warm."}
    turn: Any = [*ASKED["messages"], {"role": "assistant", "content": answer.content}]
    again = CLIENT.messages.create(
        model="any", messages=[*turn, {"role": "user", "content": [result]}], tools=[TOOL], max_tokens=24
    )
    assert again.usage.cache_read_input_tokens > 0


def parsed_output() -> None:
    answer = CLIENT.messages.parse(**ASKED, output_format=City, max_tokens=200)
    assert isinstance(answer.parsed_output, City)


def deferred_tools() -> None:
    deferred: Any = {"name": "later", "input_schema": PARAMETERS, "description": "word " * 50, "defer_loading": True}
    counts = [CLIENT.messages.count_tokens(**ASKED, tools=tools).input_tokens for tools in ([TOOL], [TOOL, deferred])]
    assert counts[0] == counts[1]


def tokens_counted() -> None:
    counted = CLIENT.messages.count_tokens(**ASKED).input_tokens
    usage = CLIENT.messages.create(**ASKED, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def models_and_errors() -> None:
    (model,) = CLIENT.models.list().data
    assert (model.type, model.display_name) == ("model", model.id)
    try:
        CLIENT.models.retrieve("another")
    except NotFoundError as e:
        assert e.body["type"] == "error"
