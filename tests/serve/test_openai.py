"""The `openai` package as a client: chat, tools, schemas, streams, async, errors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import ResponseErrorEvent
from pydantic import BaseModel

from serving import Running

MESSAGES: Any = [{"role": "user", "content": "the self"}]
N = 12


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{running.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


class Choice(BaseModel):
    letter: Literal["x", "y"]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_completions(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "prompt": "the self", "max_tokens": N, "temperature": 0}
    whole = client.completions.create(**options)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == N
    parts = list(client.completions.create(**options, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == "length"
    logprobs = client.completions.create(**options, logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == whole.choices[0].text


def test_chat(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": N, "temperature": 0}
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content
    assert text
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text
    usage = parts[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert (usage.completion_tokens, usage.prompt_tokens) == (N, whole.usage.prompt_tokens)
    probs = client.chat.completions.create(**options, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert probs is not None
    assert probs.content is not None
    assert "".join(item.token for item in probs.content) == text
    assert all(len(item.top_logprobs) == 2 for item in probs.content)


def test_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Choice, temperature=0, max_tokens=100
    )
    parsed = answer.choices[0].message.parsed
    assert parsed is not None
    assert parsed.letter in ("x", "y")


def test_tool_that_is_forced(pair: tuple[Any, Any]) -> None:
    """The answer is a call of the tool, with arguments of its schema; a template without tools describes it."""
    tool: Any = {"type": "function", "function": {"name": "pick", "parameters": Choice.model_json_schema()}}
    with (
        Running(*pair, draft_n_max=4, n_ctx=2048) as running,
        openai.OpenAI(
            base_url=f"{running.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
        ) as client,
    ):
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=[tool], tool_choice="required", max_tokens=200, temperature=0
        )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "pick"
    assert Choice.model_validate_json(call.function.arguments)


def test_responses(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "input": "the self", "max_output_tokens": N, "temperature": 0}
    whole = client.responses.create(**options)
    assert whole.output_text
    text = ""
    for event in client.responses.create(**options, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert event.type == "response.incomplete"
    assert event.response.incomplete_details.reason == "max_output_tokens"
    assert event.response.output_text == text == whole.output_text


def test_responses_that_end(client: openai.OpenAI, running: Running) -> None:
    """Responses end by themselves, as a grammar allows, and the last event says so."""
    options: Any = {"model": "tiny", "input": "the self", "max_output_tokens": 40, "temperature": 0}
    *_, last = client.responses.create(**options, stream=True, extra_body={"json_schema": {"const": 5}})
    assert last.type == "response.completed"
    assert last.response.status == "completed"
    assert last.response.incomplete_details is None


def test_async(running: Running) -> None:
    async def ask(i: int, client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=N, temperature=0, stream=True, seed=i
        )
        return "".join([part.choices[0].delta.content or "" async for part in stream])

    async def ask_all() -> list[str]:
        http = httpx.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", http_client=http) as client:
            return list(await asyncio.gather(*(ask(i, client) for i in range(6))))

    texts = asyncio.run(ask_all())
    assert len(set(texts)) == 1
    assert texts[0]


def test_an_error_in_a_stream_of_a_response(pair: Any) -> None:
    """After the first tokens passes fail for good: an event named "error" comes, as OpenAI's client expects it."""
    with (
        Running(*pair) as running,
        openai.OpenAI(
            base_url=f"{running.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
        ) as client,
    ):
        engine, step = running.server.engine, running.server.engine.step
        n_steps, has_begun = 0, threading.Event()

        def fail() -> Any:
            nonlocal n_steps
            n_steps += 1
            if n_steps > 3:
                assert has_begun.wait(120.0)
                raise RuntimeError("no device")
            return step()

        engine.step = fail  # type: ignore[method-assign]
        stream = client.responses.create(model="tiny", input="the self", max_output_tokens=100, stream=True)
        has_begun.set()
        lines = [line for line in stream.response.iter_lines() if line]
        stream.close()
    assert lines[-2] == "event: error"
    *others, last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert last == {
        "type": "error",
        "code": "server_error",
        "message": "no device",
        "param": None,
        "sequence_number": len(others),
    }
    assert ResponseErrorEvent.model_validate(last)
    assert any(event["type"] == "response.output_text.delta" for event in others)


def test_errors(client: openai.OpenAI, running: Running) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], n=0)
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt=[3] * 5000)
    assert json.loads(long.value.response.text)["error"]["n_prompt_tokens"] == 5000
    with pytest.raises(openai.NotFoundError):
        client.images.generate(model="tiny", prompt="x")
    with pytest.raises(openai.APIStatusError) as embeddings:
        client.with_options(max_retries=0).embeddings.create(model="tiny", input="x")
    assert embeddings.value.status_code == 501


def test_a_model_by_its_name(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert client.models.retrieve(listed.id).model_dump(exclude={"created"}) == listed.model_dump(exclude={"created"})
    for wrong in ("another", "an/other"):
        with pytest.raises(openai.NotFoundError, match=wrong):
            client.models.retrieve(wrong)
