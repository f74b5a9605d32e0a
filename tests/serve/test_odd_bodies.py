"""Requests with one invalid field: the error names it, by the request's own name."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Running

USER = {"role": "user", "content": "x"}
CHAT = {"messages": [USER], "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NOTHING = {"allOf": [{"type": "string"}, {"type": "null"}]}


def schema(inner: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": inner}}}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": []}, "tool_choice"),
        ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
        ("/v1/chat/completions", CHAT | {"max_tokens": -7}, "max_tokens"),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ("/v1/chat/completions", CHAT | schema({"enum": []}), "response_format"),
        ("/v1/chat/completions", CHAT | schema({"$ref": "#"}), "response_format"),
        ("/v1/chat/completions", CHAT | {"guided_json": NOTHING}, "guided_json"),
        ("/v1/messages", CHAT | {"max_tokens": "x"}, "max_tokens"),
        ("/completion", {"prompt": "x", "n_predict": 1.5}, "n_predict"),
        ("/v1/completions", {"prompt": "x", "logprobs": -1}, "logprobs"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/completions", {"prompt": [10**9]}, "prompt"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["x", []]}, "content"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
    ],
)  # fmt: skip
def test_errors_name_the_field(running: Running, path: str, body: dict[str, Any], named: str) -> None:
    response = running.post(path, body)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]
    assert running.post("/v1/chat/completions", CHAT).status_code == 200
