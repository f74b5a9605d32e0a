"""Ollama's own API is not served: use its API for OpenAI's clients, which is at the same address.

from openai import OpenAI
client = OpenAI(base_url="http://localhost:8080/v1", api_key="none")
"""

from __future__ import annotations

from checks import URL
from ollama import Client, ResponseError


def errors_say_which_API_there_is() -> None:
    client = Client(host=URL)
    for ask in (lambda: client.chat("any", [{"role": "user", "content": "a"}]), client.list, client.ps):
        try:
            ask()
        except ResponseError as e:
            assert e.status_code == 404
            assert "/v1/chat/completions" in str(e), e
        else:
            raise AssertionError("expected a 404")
