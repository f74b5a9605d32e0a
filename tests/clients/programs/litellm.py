"""LiteLLM's package, and its proxy in front of the server.

import litellm
options = {"api_base": "http://localhost:8080/v1", "api_key": "none"}
litellm.completion("openai/any", [{"role": "user", "content": "Hello"}], **options)
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import litellm
from checks import PARAMETERS, QUESTION, URL, V1, program
from pydantic import BaseModel

ASKED: Any = [{"role": "user", "content": QUESTION}]
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
OPENAI: Any = {"model": "openai/any", "api_base": V1, "api_key": "none", "messages": ASKED, "max_tokens": 200}
ANTHROPIC: Any = {**OPENAI, "model": "anthropic/any", "api_base": URL}


class Person(BaseModel):
    name: str
    age: int


def stream() -> None:
    for asked in (OPENAI, ANTHROPIC):
        parts = litellm.completion(**asked | {"max_tokens": 20}, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts)


def forced_call() -> None:
    for asked in (OPENAI, ANTHROPIC):
        answer: Any = litellm.completion(**asked, tools=[TOOL], tool_choice="required")
        call, *_ = answer.choices[0].message.tool_calls
        assert (call.function.name, list(json.loads(call.function.arguments))) == ("get_weather", ["city"])


def json_schema() -> None:
    messages = [{"role": "user", "content": "Ada is 36 years old."}]
    for asked in (OPENAI, ANTHROPIC):
        answer: Any = litellm.completion(**{**asked, "messages": messages}, response_format=Person)
        assert Person.model_validate_json(answer.choices[0].message.content)


def responses() -> None:
    answer: Any = litellm.responses(
        model="openai/any", api_base=V1, api_key="none", input=QUESTION, max_output_tokens=20
    )
    assert answer.output_text


def proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    entry = {"model_name": "local", "litellm_params": {"model": "openai/any", "api_base": V1, "api_key": "none"}}
    Path("proxy.json").write_text(json.dumps({"model_list": [entry]}))  # YAML has JSON in it
    command = [program("litellm"), "--config", "proxy.json", "--host", "127.0.0.1", "--port", str(port)]
    key = f"sk-{secrets.token_hex(32)}"
    process = subprocess.Popen(command, env={**os.environ, "LITELLM_MASTER_KEY": key})
    try:
        body = json.dumps({"model": "local", "messages": ASKED, "max_tokens": 20}).encode()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(url, body, headers)
        for _ in range(120):
            try:
                with urllib.request.urlopen(request, timeout=300) as response:
                    assert json.load(response)["choices"][0]["message"]["content"]
                return
            except urllib.error.HTTPError as e:
                raise AssertionError(e.read().decode()) from None
            except OSError:
                assert process.poll() is None, "the proxy has ended"
                time.sleep(1)
        raise AssertionError("the proxy does not answer")
    finally:
        process.kill()
