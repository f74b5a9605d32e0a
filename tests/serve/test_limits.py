"""The limits of a request's fields, its cost before it runs, and requests that are refused before any work."""

from __future__ import annotations

import ctypes
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_origin

import httpx
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from llama_cpp_eagle3.chat.json_limits import MAX_DIGITS, MAX_NAMES, MAX_VALUES
from llama_cpp_eagle3.engine import sampler_chain
from llama_cpp_eagle3.serve import server as server_module
from llama_cpp_eagle3.serve.api_errors import ApiError
from llama_cpp_eagle3.serve.fields import Completion
from llama_cpp_eagle3.serve.jsons import (
    LIMITS,
    N_EMBEDDINGS_MAX,
    N_LOGPROBS_MAX,
    check_body,
    dumps,
    dumps_large,
    parse_json,
)
from llama_cpp_eagle3.serve.queue import Place
from serving import Running

DOC = Path(__file__).parents[2] / "docs" / "serving.md"
TEXT = "the self"


def too_much(field: str) -> Iterator[tuple[Any, int, int]]:
    """Yield (value, its limit, the number found in it) for each way to exceed a limit."""
    limit = LIMITS[field]
    if limit.n_entries is not None:
        yield ["a"] * (limit.n_entries + 1), limit.n_entries, limit.n_entries + 1
    if limit.n_bytes is not None:
        yield "a" * (limit.n_bytes + 1), limit.n_bytes, limit.n_bytes + 1
        yield ["é" * (limit.n_bytes // 2), "a"], limit.n_bytes, limit.n_bytes + 1
    if limit.n_values is not None and limit.n_entries is None:
        yield [[1]] * limit.n_values, limit.n_values, 2 * limit.n_values
    if limit.largest is not None:
        yield limit.largest + 1, limit.largest, limit.largest + 1
        yield 2**63, limit.largest, 2**63


@pytest.mark.parametrize("field", LIMITS)
def test_each_limit(field: str) -> None:
    cases = list(too_much(field))
    assert cases
    for value, n_max, n in cases:
        with pytest.raises(ApiError) as caught:
            check_body({field: value})
        assert caught.value.code == 400
        assert f"'{field}'" in caught.value.message
        assert re.findall(r"\d+", caught.value.message) == [str(n_max), str(n)]
    limit = LIMITS[field]
    if limit.n_entries is not None:
        check_body({field: [1] * limit.n_entries})
    if limit.n_bytes is not None:
        check_body({field: "a" * limit.n_bytes})
    if limit.largest is not None:
        check_body({field: limit.largest})


def test_every_field_that_can_grow_has_a_limit() -> None:
    growing = {
        name
        for name, field in Completion.model_fields.items()
        if any(word in str(field.annotation) for word in ("list", "dict", "str"))
        or get_origin(field.annotation) in (list, dict)
    }
    assert growing - {"speculative", "stream_options"} <= set(LIMITS)  # these are objects of few scalars


def test_files_do_not_count_as_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (20 << 20)}}
    check_body({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "a"}]}]})


def test_what_the_documents_say() -> None:
    table = re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]*) \|$", DOC.read_text(encoding="utf-8"), re.M)
    rows = {field: text for fields, text in table for field in re.findall(r"[a-z_]+", fields)}
    said = {field: " ".join(re.findall(r"\d+", re.sub(r"(?<=\d),(?=\d)", "", text))) for field, text in rows.items()}
    for field, limit in LIMITS.items():
        numbers = (limit.n_entries, limit.n_bytes, limit.n_values, limit.largest)
        assert said.get(field) == " ".join(str(n) for n in numbers if n is not None), field


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["x"] * 50_000},
        {"stop": "x" * 1_000_000},
        {"dry_sequence_breakers": ["x"] * 65},
        {"n_probs": 2**31 - 1},
        {"samplers": ["top_k"] * 33},
        {"logit_bias": [[1, 1.0]] * 65537},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_request_that_is_too_large(more: dict[str, Any], running: Running) -> None:
    response = running.post("/completion", {"prompt": TEXT, "n_predict": 1, **more})
    assert response.status_code == 400
    assert f"Field '{next(iter(more))}'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("begin", "part", "n_max", "end"),
    [
        (b'{"prompt":[', b"{},", MAX_VALUES // 2, b"1]}"),  # of three bytes each, they take 64 and more of memory
        (b"{", b'"a\\\\":1,', MAX_NAMES, b'"b":1}'),
        (b'{"prompt":[', b"1.5,", MAX_NAMES, b"1]}"),
        (b'{"prompt":[', b"1E5,", MAX_NAMES, b"1]}"),
        (b'{"prompt":[-', b"9", MAX_DIGITS, b"]}"),
    ],
    ids=["values", "names", "fractions", "exponents", "digits"],
)
def test_bodies_that_take_long_to_parse(begin: bytes, part: bytes, n_max: int, end: bytes, running: Running) -> None:
    response = running.client.post("/completion", content=begin + part * (n_max + 1) + end)
    assert response.status_code == 400
    n_found = int(re.findall(r"expected at most (\d+) [a-z ]+, found (\d+)", response.text)[0][1])
    assert n_max < n_found <= 2 * n_max + 6
    text = b'{"prompt":"' + part.replace(b'"', b"'") * (n_max + 1) + b'"}'
    assert parse_json(text)["prompt"][:3] == text[11:14].decode()  # what a text says takes no time


def test_large_answers_are_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads run between two pieces; they are together what one would be."""
    token = {"token": "é", "bytes": [1, 2], "logprob": -0.5, "top_logprobs": [{"token": "a", "bytes": []}] * 200}
    value = {
        "choices": [{"logprobs": {"content": [token] * 300, "top": [None, {"a": 1}] * 200}, "text": None}] * 2,
        "n": [1.5] * 1000,
        "empty": [[], {}, [[]]],
        "odd": [math.inf, "\ud800"],
        "": {},
    }
    sizes: list[int] = []
    monkeypatch.setattr(
        "llama_cpp_eagle3.serve.jsons.dumps", lambda part: sizes.append(len(dumps(part))) or dumps(part)
    )
    assert dumps_large(value) == dumps(value)
    assert max(sizes) < 5000
    assert dumps_large(iter([])) == b"[]"
    assert dumps_large({"a": (i for i in range(3))}) == b'{"a":[0,1,2]}'


def test_a_request_that_never_fits(running: Running) -> None:
    n_most = running.server.n_slots + running.server.options.n_queue_max
    for body in ({"prompt": [TEXT] * (n_most + 1)}, {"prompt": [TEXT] * (n_most // 2 + 1), "n": 2}):
        response = running.post("/completion", {**body, "n_predict": 1})
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "never fits" in message
        assert str(len(body["prompt"]) * int(str(body.get("n", 1)))) in message
        assert str(n_most) in message
    assert len(running.ask("/completion", {"prompt": [TEXT] * n_most, "n_predict": 1})) == n_most


def test_breakers_are_looked_for_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers are searched once, since each takes a pass over all tokens of the vocabulary."""
    made: list[Any] = []
    init = lib.llama_sampler_init_dry
    monkeypatch.setattr(lib, "llama_sampler_init_dry", lambda *args: made.append(args) or init(*args))
    body = {"prompt": "a b a b a b a b", "n_predict": 8, "dry_multiplier": 1.7, "temperature": 0}
    first = [answer["content"] for answer in running.ask("/completion", {**body, "n": 4})]
    assert len(made) == 1
    assert [answer["content"] for answer in running.ask("/completion", {**body, "n": 2})] == first[:2]
    assert len(made) == 1
    running.ask("/completion", {**body, "dry_sequence_breakers": ["b"]})
    assert len(made) == 2


def test_a_grammar_is_read_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of many texts takes the time and the memory of one grammar."""
    made: list[Any] = []
    read = sampler_chain.grammar_sampler
    monkeypatch.setattr(
        sampler_chain, "grammar_sampler", lambda *args, **more: made.append(args) or read(*args, **more)
    )
    body: Any = {
        "prompt": ["a b", "c d"],
        "n_predict": 12,
        "seed": 5,
        "grammar": 'root ::= [a-f]+ "g" | "x" [0-9]+ "y"',
    }
    together = [answer["content"] for answer in running.ask("/completion", {**body, "n": 3})]
    assert len(made) == 1
    alone = [
        running.ask("/completion", {**body, "prompt": prompt, "seed": 5 + i})["content"]
        for prompt in body["prompt"]
        for i in range(3)
    ]
    assert together == alone
    assert len(made) == 7
    assert len(set(together)) > 1


def test_log_probabilities_of_all_tokens_together(running: Running) -> None:
    body = {"prompt": TEXT, "n_predict": 400, "n": 128, "n_probs": 320}
    response = running.post("/completion", body)
    assert response.status_code == 400
    assert "'n_probs'" in response.text
    assert f"{N_LOGPROBS_MAX}" in response.text
    assert "content" in running.ask("/completion", {**body, "n": 1, "n_predict": 2})


def test_memory_that_ends_in_a_pass(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often memory runs out, running requests get an error, and the server goes on."""

    def step() -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(running.server.engine, "step", step)
        for _ in range(5):
            response = running.post("/completion", {"prompt": TEXT})
            assert response.status_code == 503
            assert "memory" in response.json()["error"]["message"]
    assert "content" in running.ask("/completion", {"prompt": TEXT, "n_predict": 1})


FLOATS = [name for name, field in Completion.model_fields.items() if field.annotation is float]


def record_floats(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Return (function, number) for all arguments of llama.cpp's samplers from now on, in the 32 bits that it gets."""
    given: list[tuple[str, float]] = []

    def recording(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            floats = [x for x in args if isinstance(x, float)]
            biases = [x for x in args if isinstance(x, ctypes.Array) and x._type_ is lib.llama_logit_bias]
            floats += [
                item.bias for array in biases for item in array if item.bias != -math.inf
            ]  # -inf forbids a token
            with np.errstate(over="ignore"):
                given.extend((name, float(np.float32(x))) for x in floats)
            return function(*args)

        return call

    for name in dir(lib):
        if name.startswith("llama_sampler_init_"):
            monkeypatch.setattr(lib, name, recording(name, getattr(lib, name)))
    return given


@pytest.mark.parametrize("name", [*FLOATS, "logit_bias"])
def test_numbers_that_are_infinite_in_32_bits(name: str, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite numbers are clamped before llama.cpp gets them, and so are its divisors."""
    given = record_floats(monkeypatch)
    body = {"prompt": "a b a b", "n_predict": 6, "grammar": "root ::= [a-z]+", "seed": 3, "ignore_eos": True}
    body |= {"repeat_penalty": 1.2, "dry_multiplier": 0.5, "frequency_penalty": 0.1, "dynatemp_range": 0.1}
    statuses = set()
    for value in (3.5e38, 1e308, -3.5e38, -1e308, 1e-45, 1e-320):
        response = running.post("/completion", {**body, name: [["b", value]] if name == "logit_bias" else value})
        assert response.status_code in (200, 400), response.text
        statuses.add(response.status_code)
        if response.status_code == 200:
            assert re.fullmatch("[a-z]+", response.json()["content"]), value
    assert given or statuses == {400}
    assert not [(function, x) for function, x in given if not math.isfinite(x)]
    assert all(math.isfinite(1.0 / x) for function, x in given if function.endswith("_penalties") and x > 0.0)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repeat_penalty", "logit_bias"])
def test_a_grammar_that_wants_what_a_penalty_forbids(name: str, running: Running) -> None:
    body = {"prompt": "a a a", "n_predict": 9, "grammar": 'root ::= "aaaa"', "temperature": 0}
    for value in (3e38, 1e308) if name == "logit_bias" else (1e9, 3e38):
        more = {"logit_bias": [["a", -value]]} if name == "logit_bias" else {name: value}
        assert running.ask("/completion", {**body, **more})["content"] == "aaaa"
    response = running.post("/completion", {**body, "logit_bias": [["a", False], ["aa", False], ["aaa", False]]})
    assert response.status_code == 400
    assert "forbids" in response.text


class Held:
    """A function that waits until it may continue."""

    def __init__(self, function: Any):
        self.n_calls, self.go_on, self._function = 0, threading.Event(), function

    def __call__(self, *args: Any) -> Any:
        self.n_calls += 1
        assert self.go_on.wait(60)
        return self._function(*args)


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/responses"])
def test_a_full_queue_refuses_before_it_does_anything(
    path: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, seen = running.server, []
    tokenize = server.tokenizer.tokenize
    apply = server.templates.apply
    monkeypatch.setattr(server.tokenizer, "tokenize", lambda *args: seen.append(args) or tokenize(*args))
    monkeypatch.setattr(server.templates, "apply", lambda *args, **kw: seen.append(args) or apply(*args, **kw))
    message = [{"role": "user", "content": TEXT}]
    body = {"prompt": TEXT, "messages": message, "input": TEXT, "n_predict": 1}
    others = Place(server.queue)
    others.take(server.n_slots + server.options.n_queue_max)
    response = running.post(path, body)
    others.start([])
    assert response.status_code == 429
    assert not seen
    assert running.post(path, body).status_code == 200
    assert seen


def test_two_slow_requests_do_not_hold_the_others(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow requests get an error and lose their places, and the server ends though they still run."""
    monkeypatch.setattr(server_module, "_STOP_SECONDS", 0.1)
    with Running(*pair, options={"prepare_seconds": 2.0}) as running:
        server = running.server
        held = Held(server.tokenizer.prompts)
        with ThreadPoolExecutor(8) as threads, monkeypatch.context() as patch:
            patch.setattr(server.tokenizer, "prompts", held)
            slow = [threads.submit(running.post, "/completion", {"prompt": TEXT}) for _ in range(2)]
            wait_for(lambda: held.n_calls == 2)
            for answer in slow:
                error = answer.result().json()["error"]
                assert error["code"] == 503
                assert "within 2 s" in error["message"]
        assert held.n_calls == 2
        assert "content" in running.ask("/completion", {"prompt": TEXT, "n_predict": 1})  # the slow requests still run
        assert not server.queue.n_waiting
    assert server.llm.engine.n_ctx  # it was not freed while in use
    held.go_on.set()
    assert server.executor.stop(20.0)
    server.llm.close()


def test_who_waits_for_a_server_does_not_hold_a_place(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    server = running.server
    held = Held(server.tokenizer.prompts)

    def fetches(value: Any) -> Any:
        if value == "fetch":
            server.executor.detach()
            return held(TEXT)
        return server.tokenizer.__class__.prompts(server.tokenizer, value)

    monkeypatch.setattr(server.tokenizer, "prompts", fetches)
    with ThreadPoolExecutor(8) as threads:
        slow = [threads.submit(running.ask, "/completion", {"prompt": "fetch", "n_predict": 1}) for _ in range(6)]
        wait_for(lambda: held.n_calls == 6)
        assert "content" in running.ask("/completion", {"prompt": TEXT, "n_predict": 1})
        held.go_on.set()
        for answer in slow:
            assert "content" in answer.result()


def leave(running: Running, path: str, body: Any) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
    data = httpx.Request("POST", running.url + path, json=body).read()
    opened.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return opened


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_a_client_leaves_while_its_request_is_prepared(
    path: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = running.server
    held = Held(server.tokenizer.check_length)
    with monkeypatch.context() as patch:
        patch.setattr(server.tokenizer, "check_length", held)
        with leave(running, path, {"prompt": TEXT, "messages": [{"role": "user", "content": TEXT}]}):
            wait_for(lambda: held.n_calls == 1)
            assert server.queue.n_preparing == 1
        wait_for(lambda: not server.queue.n_preparing)
        held.go_on.set()
    assert "content" in running.ask("/completion", {"prompt": TEXT, "n_predict": 1})
    assert not server.engine_thread.answers


def test_a_client_of_embeddings_leaves(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(tiny_target, options={"embeddings": True, "pooling": 1}) as running:
        embedder = running.server.embedder
        assert embedder is not None
        held = Held(embedder.embed)
        monkeypatch.setattr(embedder, "embed", held)
        with leave(running, "/v1/embeddings", {"input": [TEXT] * 50}):
            wait_for(lambda: held.n_calls == 1)
        wait_for(lambda: not running.server.queue.n_preparing)
        held.go_on.set()
        assert "data" in running.ask("/v1/embeddings", {"input": TEXT})
        assert held.n_calls == 2  # the other 49 were not computed
        response = running.post("/v1/embeddings", {"input": ["a"] * (N_EMBEDDINGS_MAX + 1)})
        assert response.status_code == 400
        assert str(N_EMBEDDINGS_MAX) in response.text
