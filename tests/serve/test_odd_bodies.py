"""Requests with one invalid field, halves of characters, compressed bodies, an older HTTP."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from llama_cpp_eagle3.serve.api_errors import ApiError
from llama_cpp_eagle3.serve.jsons import parse_json
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
        ("/v1/chat/completions", {"messages": [USER, {"role": 5, "content": "x"}]}, "messages.1: expected"),
        ("/v1/chat/completions", CHAT | {"thinking_budget": "many"}, "thinking by another name: expected a number"),
        ("/v1/chat/completions", CHAT | {"thinking_budget": "many"}, "found 'many'"),
        ("/v1/chat/completions", CHAT | {"choice": ["a", 17]}, "that are not empty, found ['a', 17]"),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ("/v1/chat/completions", CHAT | schema({"enum": []}), "response_format"),
        ("/v1/chat/completions", CHAT | schema({"$ref": "#"}), "response_format"),
        ("/v1/chat/completions", CHAT | {"guided_json": NOTHING}, "guided_json"),
        ("/v1/chat/completions", CHAT | {"continue_final_message": "yes"}, "'continue_final_message' to be true"),
        ("/v1/responses", {"input": "x", "instructions": {"a": 1}}, "'instructions': expected a text or an array"),
        ("/v1/messages", CHAT | {"system": {"a": 1}}, "'system': Input should be a valid string, or a valid list"),
        ("/v1/messages", CHAT | {"max_tokens": "x"}, "max_tokens"),
        ("/v1/messages", {"messages": [], "max_tokens": 2}, "Field 'messages': List should have at least 1 item"),
        ("/v1/messages/count_tokens", {"messages": []}, "Field 'messages': List should have at least 1 item"),
        ("/v1/messages", CHAT | {"tools": [{"name": 5}]}, "Field 'tools.0.name': "),
        ("/completion", {"prompt": "x", "n_predict": 1.5}, "n_predict"),
        ("/completion", {"prompt": "x", "stop": [1]}, "Field 'stop.0': "),
        ("/completion", {"prompt": "x", "stop": ["a", None]}, "Field 'stop.1': "),
        ("/completion", {"prompt": "x", "stop": {}}, "Field 'stop': "),
        ("/completion", {"prompt": "x", "samplers": [1]}, "Field 'samplers.0': "),
        ("/completion", {"prompt": "x", "speculative": {"n_max": 99}}, "Field 'speculative.n_max': Input should be l"),
        ("/completion", {"prompt": "x", "speculative": {"mode": 5}}, "Field 'speculative.mode': "),
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


HALF = "emoji \ud83d end"
MESSAGES = [{"role": "user", "content": HALF}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{**USER, "name": HALF}, *MESSAGES], "max_tokens": 2, "model": HALF}),
        ("/v1/chat/completions", CHAT | schema({"type": "object", "properties": {HALF: {"enum": [HALF]}}})),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"x": HALF}, "reasoning_budget_message": HALF}),
        ("/v1/completions", {"prompt": [HALF, "ok"], "max_tokens": 2, "echo": True, "logprobs": 1, "stop": "\ude00"}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "logit_bias": {HALF: -5}}),
        ("/completion", {"prompt": "a", "n_predict": 2, "dry_multiplier": 1, "dry_sequence_breakers": [HALF]}),
        ("/completion", {"prompt": "a", "n_predict": 2, "grammar": f'root ::= "{HALF}"', "bad_words": [HALF]}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2, "stop_sequences": [HALF]}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/v1/responses", {"input": HALF, "max_output_tokens": 2}),
        ("/tokenize", {"content": HALF, "with_pieces": True}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/markdown", {"markdown": HALF}),
    ],
)
def test_half_a_surrogate_pair_becomes_a_mark(running: Running, path: str, body: dict[str, Any]) -> None:
    """JavaScript cuts emojis in halves, and writes those as escapes."""
    found = running.client.post(path, content=json.dumps(body).encode())
    assert found.status_code == 200, found.text
    if path == "/apply-template":
        assert "emoji \ufffd end" in found.json()["prompt"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\ud83d\ude00", "\U0001f600"), (r"\ud83d", "\ufffd"), (r"\ude00", "\ufffd"), (r"\ud83d\ud83d", "\ufffd" * 2),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"), (r"\\ud83d", r"\ud83d"), (r"\\\ud83d", "\\\ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"), (r"\n\uD83D\"", '\n\ufffd"'), (r"\u00e9\uDE00x", "é\ufffdx"),
    ],
)  # fmt: skip
def test_escapes(text: str, expected: str) -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": "%s"}' % text.encode()) == {"a": expected}


def test_errors_quote_a_part_of_what_is_long() -> None:
    message = ApiError(400, "invalid_request_error", f"found {'many ' * 20_000}: expected one").message
    assert message.startswith("found many many")
    assert message.endswith("many : expected one")
    assert " characters] " in message
    assert len(message) < 1600


def test_bodies_that_are_no_utf8() -> None:
    for body in (b'{"a": "\xed\xa0\xbd"}', b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16")):
        with pytest.raises(ApiError, match="the body is not JSON"):
            parse_json(body)


def test_compressed_bodies_are_refused_with_a_reason(running: Running) -> None:
    data = gzip.compress(json.dumps(CHAT).encode())
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        found = running.client.post(path, content=data, headers={"Content-Encoding": "gzip"})
        assert found.status_code == 415
        assert "compressed (Content-Encoding: gzip)" in found.json()["error"]["message"]
        assert found.headers["accept-encoding"] == "identity"
    same = running.client.post("/tokenize", content=b'{"content": "a"}', headers={"Content-Encoding": "identity"})
    assert same.status_code == 200


@pytest.mark.parametrize("host", ["", "Host: localhost\r\n"])
def test_clients_of_http_1_0(local: Running, host: str) -> None:
    """Their requests need no Host, their answers have no chunks, and end with the connection."""
    data = json.dumps({"prompt": "the self", "n_predict": 3}).encode()
    stream = data[:-1] + b', "stream": true}'
    for line, body in (("GET /v1/models", b""), ("POST /completion", data), ("POST /completion", stream)):
        head = f"{line} HTTP/1.0\r\n{host}Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(local.url.rsplit(":", 1)[1])), timeout=120) as opened:
            opened.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: opened.recv(65536), b""))
        status, _, rest = answer.partition(b"\r\n")
        assert status.split(b" ", 1)[1] == b"200 OK"
        headers, _, found = rest.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in headers
        assert b"connection: close" in headers
        events = found.removesuffix(b"\n\n").split(b"\n\n") if body == stream else [found]
        assert all(json.loads(event.removeprefix(b"data: ")) for event in events)
        assert len(events) == (4 if body == stream else 1)
    rebound = local.client.get("/v1/models", headers={"Host": "evil.example"})
    assert rebound.status_code == 403


@pytest.fixture(scope="module")
def local(pair: Any) -> Iterator[Running]:
    """Serve for this machine alone."""
    with Running(*pair, options={"local_only": True}) as running:
        yield running


def test_requests_that_would_change_to_http_2(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Java's clients ask so with each request; the server goes on with HTTP/1.1, and reads the body."""
    body = b'{"prompt":"a","n_predict":1}'
    headers = (
        b"Connection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAA\r\n"
    )
    request = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n" + headers % len(body) + b"\r\n" + body
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection, connection.makefile("rb") as answers:
        for _ in range(2):
            connection.sendall(request)
            status, length = answers.readline(), 0
            while (line := answers.readline()) != b"\r\n":
                length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
            assert b" 200 " in status, answers.read(length)
            assert b'"tokens_predicted":1' in answers.read(length)
    assert not [record for record in caplog.records if "pgrade" in record.getMessage()]
