"""What a client gets while nothing happens: events of its API, since some do not count comments as signs of life."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from llama_cpp_eagle3.serve.answer import Came
from llama_cpp_eagle3.serve.reply import Reply
from serving import Running

MESSAGES: Any = [{"role": "user", "content": "the self"}]


@pytest.fixture
def impatient(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Return a server whose streams begin with two times in which nothing happened."""
    batches = Reply.batches

    async def slow(self: Reply, idle_seconds: float = 1e6) -> AsyncGenerator[list[Came], None]:
        for _ in range(2):
            yield []
        async for batch in batches(self, idle_seconds):
            yield batch

    monkeypatch.setattr(Reply, "batches", slow)
    return running


def test_responses(impatient: Running) -> None:
    asked: dict[str, Any] = {"input": "the self", "max_output_tokens": 8, "temperature": 0}
    events = impatient.stream_named("/v1/responses", asked)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types.count("response.created") == 1
    assert types.count("response.in_progress") == 2
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(event["response"]["status"] == "in_progress" for event in events if "in_progress" in event["type"])
    with openai.OpenAI(
        base_url=f"{impatient.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    ) as client:
        stream = list(client.responses.create(model="tiny", stream=True, **asked))
    assert stream[-1].type == "response.incomplete"
    assert stream[-1].response.output_text == impatient.ask("/v1/responses", asked)["output"][0]["content"][0]["text"]


def test_messages(impatient: Running) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 8}
    greedy = asked | {"temperature": 0}
    events = impatient.stream_named("/v1/messages", greedy)
    types = [event["type"] for event in events]
    assert types[:3] == ["ping", "ping", "message_start"]
    http = anthropic.DefaultHttpxClient(trust_env=False)
    with (
        anthropic.Anthropic(base_url=impatient.url, api_key="none", http_client=http) as client,
        client.messages.stream(model="tiny", extra_body={"temperature": 0}, **asked) as stream,
    ):
        final = stream.get_final_message()
    assert final.content[0].model_dump()["text"] == impatient.ask("/v1/messages", greedy)["content"][0]["text"]


def test_chats_have_comments(impatient: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "stream": True}
    with impatient.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.read().startswith(b":\n\n:\n\ndata: ")
