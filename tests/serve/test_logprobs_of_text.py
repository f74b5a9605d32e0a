"""Log-probabilities are those of the text that was sent: joined, their tokens are the text, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from serving import Running

PROMPT = "the self"
FENCED = '```json\n{"name": "Bob"}\n```'
USER = {"role": "user", "content": PROMPT}


def joined(items: list[Any]) -> str:
    return b"".join(bytes(item["bytes"]) for item in items).decode()


@pytest.mark.parametrize("text", ["It is größer.", "<think>\nhm\n</think>\n\nSo it is.", "a\n<tool_call>\n{{{"])
def test_chats(tools: Running, says: Callable[[str], None], text: str) -> None:
    says(text)
    body = {"messages": [USER], "max_tokens": 200, "logprobs": True, "top_logprobs": 1}
    choice = tools.ask("/v1/chat/completions", body)["choices"][0]
    content = choice["message"]["content"]
    assert joined(choice["logprobs"]["content"]) == content
    events = tools.stream("/v1/chat/completions", body)[:-1]
    parts = [event["choices"][0] for event in events]
    assert "".join(part["delta"].get("content") or "" for part in parts) == content
    for part in parts:
        items = (part.get("logprobs") or {"content": []})["content"]
        assert joined(items) == (part["delta"].get("content") or "")


def test_a_fence_that_is_left_out(tools: Running, says: Callable[[str], None]) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "A", "schema": schema}}
    says(FENCED)
    body = {"messages": [USER], "max_tokens": 200, "logprobs": True, "response_format": form}
    choice = tools.ask("/v1/chat/completions", body)["choices"][0]
    assert choice["message"]["content"] == joined(choice["logprobs"]["content"]) == FENCED[8:-4]


def test_responses(tools: Running, says: Callable[[str], None]) -> None:
    says("<think>\nhm\n</think>\n\nSo it is.")
    body = {"input": PROMPT, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    *_, item = tools.ask("/v1/responses", body)["output"]
    (part,) = item["content"]
    assert joined(part["logprobs"]) == part["text"] == "So it is."
    assert all(len(token["top_logprobs"]) == 1 for token in part["logprobs"])
    events = tools.stream_named("/v1/responses", body)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(joined(event["logprobs"]) == event["delta"] for event in deltas)
    assert [token for event in deltas for token in event["logprobs"]] == part["logprobs"]
    for more in ({"top_logprobs": 1}, {}):
        assert tools.ask("/v1/responses", {"input": PROMPT, **more})["output"][-1]["content"][0]["logprobs"] == []


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"n": 2, "seed": 1}])
def test_completions(running: Running, more: dict[str, Any]) -> None:
    """A stop string has none; what was held back for it has."""
    plain = running.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0})["choices"][0]["text"]
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 1, **more}
    for stop in (plain[9:13], plain[10:12] + "\0", plain[:2]):
        for choice in running.ask("/v1/completions", {**body, "stop": [stop]})["choices"]:
            logprobs = choice["logprobs"] or {"tokens": []}
            assert "".join(logprobs["tokens"]) == choice["text"]
            events = [e["choices"][0] for e in running.stream("/v1/completions", {**body, "stop": [stop]})[:-1]]
            own = [event for event in events if event["index"] == choice["index"]]
            assert "".join(event["text"] for event in own) == choice["text"]
            tokens = [token for event in own for token in (event["logprobs"] or {"tokens": []})["tokens"]]
            assert tokens == logprobs["tokens"]
        answers = running.ask("/completion", {**body, "n_probs": 1, "stop": [stop], "return_tokens": True})
        for answer in answers if isinstance(answers, list) else [answers]:
            assert joined(answer["completion_probabilities"]) == answer["content"]
