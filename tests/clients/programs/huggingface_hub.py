"""InferenceClient of huggingface_hub.

from huggingface_hub import InferenceClient
client = InferenceClient(base_url="http://localhost:8080/v1", api_key="none")
client.chat_completion([{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

import json
from typing import Any

from checks import PARAMETERS, QUESTION, V1
from huggingface_hub import InferenceClient

CLIENT = InferenceClient(base_url=V1, api_key="none")
ASKED: Any = [{"role": "user", "content": QUESTION}]


def chat_and_stream() -> None:
    whole = CLIENT.chat_completion(ASKED, max_tokens=20).choices[0].message.content
    parts = CLIENT.chat_completion(ASKED, max_tokens=20, stream=True)
    assert whole and whole == "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def schema_of_text_generation_inference() -> None:
    form: Any = {"type": "json_object", "value": PARAMETERS}
    answer = CLIENT.chat_completion(ASKED, max_tokens=100, response_format=form)
    assert list(json.loads(answer.choices[0].message.content)) == ["city"]


def forced_call() -> None:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
    answer = CLIENT.chat_completion(ASKED, max_tokens=100, tools=[tool], tool_choice="required")
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
