"""Keys, other sites, limits of size and time, and contents that the log must not have."""

from __future__ import annotations

import io
import json
import logging
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.cli.server_options import add_server_flags, serve_options
from llama_cpp_eagle3.serve.log_lines import ACCESS, configure
from serving import Running

BODY = {"prompt": "the self", "n_predict": 2}
KEY = "sk-a-secret-key"
UNICODE_KEY = "schlüssel"


@pytest.fixture(scope="module")
def locked(tiny_target: Any) -> Iterator[Running]:
    options = {
        "api_keys": (KEY, "another", UNICODE_KEY, "caf\udce9"),
        "cors_origins": "localhost",
        "n_body_max": 4096,
        "timeout_seconds": 0.5,
    }
    with Running(tiny_target, options=options) as running:
        yield running


def test_keys(locked: Running) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY[:-1]}, {"X-Api-Key": "ünicode"}):
        encoded = {name: value.encode() for name, value in headers.items()}
        response = locked.client.post("/completion", json=BODY, headers=encoded)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert KEY not in response.text
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer  {KEY}"},
        {"X-Api-Key": "another"},
        {"Authorization": KEY},
        {"Authorization": f"Bearer {UNICODE_KEY}".encode()},
        {"Authorization": b"Bearer caf\xe9"},
        {"Authorization": "Bearer of-another-service", "X-Api-Key": KEY},
    ):
        assert locked.client.post("/completion", json=BODY, headers=headers).status_code == 200
    assert locked.client.get("/health").status_code == 200
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/nothing"):
        assert locked.client.get(path).status_code == 401


def test_other_sites(locked: Running, running: Running) -> None:
    def origin_of(server: Running, origin: str) -> str | None:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        response = server.client.options("/completion", headers=headers)
        assert response.status_code == 200
        return response.headers.get("Access-Control-Allow-Origin")

    for origin in ("http://localhost:3000", "http://127.0.0.1", "http://[::1]:5"):
        assert origin_of(locked, origin) == origin
    for origin in ("http://evil.com", "http://localhost.evil.com", "null", "http://[::1", "localhost"):
        assert origin_of(locked, origin) is None
    assert origin_of(running, "http://localhost") is None  # off by default
    response = locked.client.get("/health", headers={"Origin": "http://localhost:1"})
    assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:1"


def test_characters_in_a_row(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text for which no stack is large enough is the client's error, even if the context is large enough."""
    monkeypatch.setattr(running.server.tokenizer, "check_length", lambda text: None)
    response = running.client.post("/tokenize", json={"content": "a" * 1_048_577})
    assert response.status_code == 400
    assert "characters in a row" in response.text


LONG = "a " * 500_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": LONG}),
        ("/completion", {"prompt": [{"prompt_string": LONG}]}),
        ("/completion", {"prompt": ["x", 5, LONG]}),
        ("/completion", {"prompt": "x", "logit_bias": [[LONG, 1.0]]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/tokenize", {"content": LONG}),
        ("/tokenize", {"content": ["x", LONG]}),
        ("/tokenize", {"prompt": LONG}),
    ],
)
def test_texts_that_cannot_fit_are_not_tokenized(
    path: str, body: dict[str, Any], running: Running, tokenized: list[int]
) -> None:
    response = running.client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] < error["n_prompt_tokens"] <= len(LONG)
    assert max(tokenized, default=0) < 1000


def test_many_texts_that_cannot_fit_together(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are tokenized only until the context is known to be too small."""
    n_texts = 0
    tokenize = running.server.llm.tokenize

    def count(*args: Any, **more: Any) -> list[int]:
        nonlocal n_texts
        n_texts += 1
        return tokenize(*args, **more)

    monkeypatch.setattr(running.server.llm, "tokenize", count)
    response = running.client.post("/tokenize", json={"content": ["a b c d"] * 10_000})
    assert response.json()["error"]["type"] == "exceed_context_size_error"
    assert n_texts <= response.json()["error"]["n_ctx"]


def connect(running: Running) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
    opened.settimeout(120)
    return opened


def test_large_bodies(locked: Running) -> None:
    response = locked.client.post("/completion", json={"prompt": "x" * 5000}, headers={"X-Api-Key": KEY})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == 413
    with connect(locked) as opened:  # a body without a stated size
        opened.sendall(f"POST /completion HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\n".encode())
        opened.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 5)
        assert b" 413 " in opened.recv(1000).split(b"\r\n")[0]


def test_slow_bodies(locked: Running) -> None:
    with connect(locked) as opened:
        opened.sendall(
            f"POST /completion HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: 9\r\n\r\n{{".encode()
        )
        start = time.monotonic()
        assert b" 408 " in opened.recv(1000).split(b"\r\n")[0]
        assert time.monotonic() - start < 5.0


def test_the_log(locked: Running, caplog: pytest.LogCaptureFixture) -> None:
    path = "/completions"
    caplog.set_level(logging.INFO, logger=ACCESS.name)
    headers = {"Authorization": f"Bearer {KEY}"}
    locked.client.post(f"{path}?token=query-secret", json={**BODY, "prompt": "private words"}, headers=headers)
    locked.client.post(path, json=BODY, headers={"Authorization": "Bearer sk-wrong-key"})
    end = time.monotonic() + 60
    records: list[Any] = []
    while len(records) < 2 and time.monotonic() < end:
        time.sleep(0.01)
        # log lines come after the answer: those of earlier tests may come now, but none has this path
        records = [r for r in caplog.records if r.name == ACCESS.name and vars(r)["fields"]["path"] == path]
    records.sort(key=lambda record: record.fields["status"])
    fields = records[0].fields
    assert (fields["method"], fields["path"], fields["status"]) == ("POST", path, 200)
    assert fields["n_tokens"] == 2
    assert fields["finish"] == "length"
    assert records[1].fields["status"] == 401
    text = json.dumps([record.__dict__ for record in records], default=str)
    for secret in (KEY, "sk-wrong-key", "query-secret", "private words"):
        assert secret not in text


def test_the_log_cannot_be_forged(running: Running) -> None:
    """Control characters are escaped in a path, in both forms of a line, and in messages."""
    stream = io.StringIO()
    for form in ("text", "json"):
        configure(form, verbose=False)
        (handler,) = logging.getLogger("llama_cpp_eagle3").handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        running.client.get("/a%0A00:00:00%20I%20forged%1b%5B2J%c2%9b2J%E2%80%AE%7F%20status=200")
        end = time.monotonic() + 60
        while not stream.getvalue().endswith("\n") and time.monotonic() < end:
            time.sleep(0.01)
        for name in ("serve", "chat.schema.converter"):  # what is said of a schema has its properties' names
            logging.getLogger(f"llama_cpp_eagle3.{name}").error("%s failed", "/b\nforged\x1b[2J")
        lines = stream.getvalue().removesuffix("\n").split("\n")
        assert len(lines) == 3
        assert all(line.isprintable() for line in lines)
        assert form == "text" or all(json.loads(line) for line in lines)
        assert "status=404" in lines[0] if form == "text" else json.loads(lines[0])["status"] == 404
        if form == "json":
            assert json.loads(lines[0])["path"] == "/a\n00:00:00 I forged\x1b[2J\x9b2J\u202e\x7f status=200"
        else:
            assert 'status=200"' in lines[0]  # within the quotes of the path
        stream.seek(0)
        stream.truncate()


def test_other_hosts(tiny_target: Any) -> None:
    """A page whose name leads to this machine (DNS rebinding) names its own host, and gets nothing."""
    with Running(tiny_target, options={"local_only": True}) as running:
        port = running.url.rsplit(":", 1)[1]
        for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "127.8.8.8", "[::1]:80", "a.localhost"):
            assert running.client.get("/props", headers={"Host": host}).status_code == 200, host
        for host in (
            "evil.com",
            f"evil.com:{port}",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "10.0.0.1",
            "",
            "[::1",
        ):
            for path in ("/props", "/", "/health"):
                response = running.client.get(path, headers={"Host": host})
                assert response.status_code == 403, host
                assert "--api-key" in response.json()["error"]["message"]
            assert running.client.post("/completion", json=BODY, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], True),
        (["--host", "localhost,::1"], True),
        (["--host", "x.sock,127.0.0.1"], True),
        (["--host", "127.0.0.1,0.0.0.0"], False),
        (["--host", "192.168.0.1"], False),
        (["--api-key", KEY], False),
    ],
)
def test_which_servers_look_at_hosts(flags: list[str], expected: bool) -> None:
    parser = Parser("prog")
    add_server_flags(parser)
    assert serve_options(parser.parse_args(["-m", "x.gguf", *flags])).local_only == expected


def test_keys_of_a_file(tmp_path: Path) -> None:
    """Lines with # are comments, as llama-server has them, and an editor of Windows changes no key."""
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n# old\r\n\r\n  second  \r\n#third\r\n")
    parser = Parser("prog")
    add_server_flags(parser)
    options = serve_options(parser.parse_args(["-m", "x.gguf", "--api-key-file", str(path), "--api-key", "zero"]))
    assert options.api_keys == ("zero", "first", "second")
    path.write_bytes(b"first\r\n\xef\xbb\xbfsecond\rthird\r#old\r")  # joined files, and an editor of a Mac
    options = serve_options(parser.parse_args(["-m", "x.gguf", "--api-key-file", str(path)]))
    assert options.api_keys == ("first", "second", "third")
    path.write_text("# of the team\nfirst#1\nsecond  # of Tom\n")
    with pytest.raises(ValueError, match=r"a key alone in line 3 of .*keys', found a # after it"):
        serve_options(parser.parse_args(["-m", "x.gguf", "--api-key-file", str(path)]))
    path.write_text("# all of them are old\n")
    with pytest.raises(ValueError, match="has no keys"):
        serve_options(parser.parse_args(["-m", "x.gguf", "--api-key-file", str(path)]))


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-A: " + b"y" * 1000 + b"\r\n"),  # headers without an end
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ", b"y" * 1000),  # one header without an end
        (b"GET /", b"y" * 1000),  # a path without an end
        (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b""),  # all at once
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"y" * 70_000 + b"\r\n\r\n", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: y\r\n" * 20_000 + b"\r\n", b""),
        (CHUNKED, b"X-A: " + b"y" * 1000 + b"\r\n"),  # trailers
        (CHUNKED + b"X-A: ", b"y" * 1000),
        (CHUNKED.removesuffix(b"0\r\n") + b"2;", b"y" * 1000),  # an extension may follow a chunk's size
        (b"", b"\r\n" * 500),  # empty lines, which may come before a request
    ],
)
def test_large_headers(running: Running, begin: bytes, more: bytes) -> None:
    answer = b""
    with connect(running) as opened:
        opened.sendall(begin)
        try:
            for _ in range(2000):  # 2 MB
                opened.sendall(more)
                if select.select([opened], [], [], 0.0)[0]:
                    break
            answer = opened.recv(4000)
        except ConnectionError:  # the server closes while the client still sends: also an end
            pass
        else:
            assert b" 431 " in answer.split(b"\r\n")[0]
            head, _, text = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(text)}".encode() in head
    assert running.client.get("/health").status_code == 200


def test_headers_of_usual_size_and_bodies_after_them(running: Running) -> None:
    """Bytes of one request do not count for the next one on the same connection, nor do bodies."""
    for _ in range(4):
        assert running.client.get("/health", headers={"X-A": "y" * 30_000}).status_code == 200
        body = {"tokens": [100] * 40_000}
        assert running.client.post("/detokenize", json=body, headers={"X-A": "y" * 30_000}).status_code == 200
