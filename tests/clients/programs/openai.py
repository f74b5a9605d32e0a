"""OpenAI's package for Python: chats, completions and responses.

from openai import OpenAI
client = OpenAI(base_url="http://localhost:8080/v1", api_key="none")
client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

import json
from typing import Any

from checks import PARAMETERS, QUESTION, V1
from openai import NotFoundError, OpenAI
from pydantic import BaseModel

CLIENT = OpenAI(base_url=V1, api_key="none")
ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
NAMESPACE: Any = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "Weather",
    "tools": [{"type": "function", "name": "get", "parameters": PARAMETERS, "strict": True}],
}


class City(BaseModel):
    name: str
    population: int


def chat_and_stream() -> None:
    whole = CLIENT.chat.completions.create(**ASKED, max_tokens=24, seed=1)
    stream = CLIENT.chat.completions.create(
        **ASKED, max_tokens=24, seed=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text and text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def several_answers() -> None:
    answer = CLIENT.chat.completions.create(**ASKED, max_tokens=8, n=3, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def forced_call() -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = CLIENT.chat.completions.create(
        **ASKED, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert list(json.loads(call.function.arguments)) == ["city"]


def allowed_tools() -> None:
    other: Any = {"type": "function", "function": {"name": "other", "parameters": PARAMETERS}}
    allowed: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = CLIENT.chat.completions.create(**ASKED, tools=[other, TOOL], tool_choice=choice, max_tokens=200)
    assert {call.function.name for call in answer.choices[0].message.tool_calls} == {"get_weather"}


def custom_tool() -> None:
    grammar = {"syntax": "regex", "definition": "[a-z]{3,9}"}
    tool: Any = {"type": "custom", "custom": {"name": "say", "format": {"type": "grammar", "grammar": grammar}}}
    answer = CLIENT.chat.completions.create(**ASKED, tools=[tool], tool_choice="required", max_tokens=200)
    assert answer.choices[0].message.tool_calls[0].custom.input.islower()


def parsed_output() -> None:
    answer = CLIENT.chat.completions.parse(**ASKED, response_format=City, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, City)


def completion_with_suffix() -> None:
    options: Any = {"model": "any", "prompt": "def area(r):\n    return ", "max_tokens": 16}
    assert CLIENT.completions.create(**options).choices[0].text
    try:
        assert CLIENT.completions.create(**options, suffix="\n\nprint(area(2))\n").choices[0].text
    except Exception as e:  # a model without such tokens says so
        assert "fill" in str(e).lower() or "infill" in str(e).lower(), e


def echo_with_logprobs() -> None:
    answer = CLIENT.completions.create(model="any", prompt="The sky is blue", echo=True, logprobs=1, max_tokens=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "".join(logprobs.tokens) == "The sky is blue"
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])


def responses() -> None:
    whole = CLIENT.responses.create(model="any", input=QUESTION, max_output_tokens=24)
    events = list(CLIENT.responses.create(model="any", input=QUESTION, max_output_tokens=24, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[0].type == "response.created" and "".join(deltas) == whole.output_text
    assert events[-1].response.status == whole.status


def namespaces_of_responses() -> None:
    response = CLIENT.responses.create(
        model="any", input=QUESTION, tools=[NAMESPACE, {"type": "web_search"}], tool_choice="required",
        max_output_tokens=200,
    )  # fmt: skip
    call = next(item for item in response.output if item.type == "function_call")
    assert (call.namespace, call.name, list(json.loads(call.arguments))) == ("mcp__weather", "get", ["city"])
    turn: Any = [
        {"role": "user", "content": QUESTION},
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "It is warm."},
    ]
    again = CLIENT.responses.create(model="any", input=turn, tools=[NAMESPACE], max_output_tokens=24)
    assert again.usage.input_tokens_details.cached_tokens > 0


def custom_tools_of_responses() -> None:
    digits: Any = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}"}
    tool: Any = {"type": "custom", "name": "dial", "format": digits}
    with CLIENT.responses.stream(
        model="any", input=QUESTION, tools=[tool], tool_choice="required", max_output_tokens=200
    ) as stream:
        done = [event for event in stream if event.type == "response.custom_tool_call_input.done"]
    assert done and all(len(event.input) == 2 and event.input.isdigit() for event in done)


def models() -> None:
    (model,) = CLIENT.models.list().data
    assert CLIENT.models.retrieve(model.id).id == model.id
    try:
        CLIENT.models.retrieve("another")
    except NotFoundError as e:
        assert model.id in str(e)
