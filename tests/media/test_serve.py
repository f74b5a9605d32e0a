"""Images in requests to the server, and on the command line."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from llama_cpp_eagle3.chat import conversation
from llama_cpp_eagle3.cli import main
from serving import Running
from tiny import write_head
from vlm_pairs import BEFORE, load_vlm
from web import answering

N = 12


@pytest.fixture(scope="module")
def vlm():
    return load_vlm("qwen25vl")


@pytest.fixture(scope="module")
def head(vlm, tmp_path_factory):
    return write_head(tmp_path_factory.mktemp("serve") / "head.gguf", vlm.target)


@pytest.fixture(scope="module")
def running(vlm, head, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slots")
    with Running(
        vlm, head, draft="chain", mmproj_path=vlm.mmproj, options={"slot_save_path": folder, "jinja": True}
    ) as running:
        yield running


def body(url, text=BEFORE, **more):
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": N, "temperature": 0, **more}


@pytest.fixture(scope="module")
def url(vlm):
    return f"data:image/png;base64,{base64.b64encode(vlm.file).decode()}"


def test_what_was_said_of_images_is_not_recorded(vlm, head, url, tmp_path):
    path = tmp_path / "record.jsonl"
    with Running(vlm, head, draft="chain", mmproj_path=vlm.mmproj, options={"record": path}) as other:
        other.ask("/v1/chat/completions", body(url))
        # enough tokens for some text
        words = {"messages": [{"role": "user", "content": "no image"}], "max_tokens": 8, "temperature": 0}
        other.ask("/v1/chat/completions", words)
    (line,) = map(json.loads, path.read_text().splitlines())
    assert "no image" in line["text"]


def test_chat_with_an_image(running, url):
    whole = running.ask("/v1/chat/completions", body(url))
    text = whole["choices"][0]["message"]["content"]
    local = running.server.llm.projector
    n_prompt = len(local.prompt(f"{BEFORE}{local.marker} It is a", [base64.b64decode(url.partition(",")[2])]).tokens)
    assert whole["usage"]["prompt_tokens"] == n_prompt
    assert running.ask("/v1/chat/completions/input_tokens", body(url))["input_tokens"] == n_prompt
    chunks = running.stream("/v1/chat/completions", body(url))[:-1]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == text
    again = running.ask("/v1/chat/completions", body(url))
    assert again["timings"]["cache_n"] >= 36  # text and image were cached
    without = running.ask("/v1/chat/completions", body(url, speculative={"n_max": 0}))
    assert without["choices"][0]["message"]["content"] == text


def test_messages_with_an_image(running, url):
    """An image comes in Anthropic's form, also in a tool's result."""
    chat = running.ask("/v1/chat/completions", body(url))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}}
    parts = [{"type": "text", "text": BEFORE}, image]
    asked = {"messages": [{"role": "user", "content": parts}], "max_tokens": N, "temperature": 0}
    message = running.ask("/v1/messages", asked)
    assert message["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert (
        sum(message["usage"][name] for name in ("input_tokens", "cache_read_input_tokens"))
        == (chat["usage"]["prompt_tokens"])
    )
    count = running.ask("/v1/messages/count_tokens", asked)
    assert count == {"input_tokens": chat["usage"]["prompt_tokens"]}
    use = {"type": "tool_use", "id": "x", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": parts}
    asked["messages"] = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert running.ask("/v1/messages/count_tokens", asked) == count  # the template writes only contents


def test_responses_with_an_image(running, url):
    """An image comes in OpenAI's newer form, also in a tool's result."""
    n_prompt = running.ask("/v1/chat/completions", body(url))["usage"]["prompt_tokens"]
    parts = [{"type": "input_text", "text": BEFORE}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    for items in (
        [{"role": "user", "content": parts}],
        [call, {"type": "function_call_output", "call_id": "c", "output": parts}],
    ):
        answer = running.ask("/v1/responses", {"input": items, "max_output_tokens": 2})
        assert answer["usage"]["input_tokens"] == n_prompt  # the template writes only contents
        count = running.ask("/v1/responses/input_tokens", {"input": items})
        assert count["input_tokens"] == n_prompt


def test_slots_with_images(running, url):
    first = running.ask("/v1/chat/completions", body(url, id_slot=0))
    running.ask("/slots/0?action=save", {"filename": "image.bin"})
    running.ask("/slots/0?action=erase", {})
    running.ask("/slots/0?action=restore", {"filename": "image.bin"})
    again = running.ask("/v1/chat/completions", body(url, id_slot=0))
    assert again["choices"] == first["choices"]
    assert again["timings"]["cache_n"] >= 36


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("http://127.0.0.1:1/image.png", "addresses are not fetched"),
        ("file:///etc/passwd", "expected a data URL"),
        ("data:image/png;base64,AAAA", "is no PNG"),
        ("%%%%", "no base64"),
    ],
)
def test_what_is_refused(running, source, message):
    n_batches = running.server.engine.target.n_batches
    response = running.post("/v1/chat/completions", body(source))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert running.server.engine.target.n_batches == n_batches


def test_addresses_are_fetched_if_the_server_may(running, vlm, url, monkeypatch):
    """An image server's error is reported to the client that named it: no 500."""

    def ask(port, media_http):
        monkeypatch.setattr(running.server, "options", replace(running.server.options, media_http=media_http))
        return running.post("/v1/chat/completions", body(f"http://127.0.0.1:{port}/image.png"))

    with answering(b"HTTP/1.1 200 OK\r\n\r\n", vlm.file) as (port, _):
        assert (
            ask(port, "private").json()["choices"][0]["message"]
            == (running.ask("/v1/chat/completions", body(url))["choices"][0]["message"])
        )
        refused = ask(port, True)
        assert (refused.status_code, "--media-http-private" in refused.text) == (400, True)
    for answer in (b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"):
        with answering(answer) as (port, _):
            failed = ask(port, "private")
            assert (failed.status_code, "no answer of HTTP" in failed.text) == (400, True)
    failed = ask("1/a b", "private")
    assert (failed.status_code, "InvalidURL" in failed.text or "refused" in failed.text) == (400, True)


def test_servers_of_images_that_trickle(running, monkeypatch):
    """There are more of them than threads that prepare requests: other requests are answered, and these end in time."""
    monkeypatch.setattr(running.server, "options", replace(running.server.options, media_http="private"))
    ending, n_sent = threading.Event(), [0] * 3

    def trickle(i):
        while not ending.is_set():
            n_sent[i] += 1
            yield b"a"

    def ask(port):
        return httpx.post(
            f"{running.url}/v1/chat/completions", json=body(f"http://127.0.0.1:{port}/image.png"), timeout=120
        )

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    for seconds in (60.0, 2.0):  # servers that close in the end, and servers that do not
        monkeypatch.setattr(conversation, "TIMEOUT_S", seconds)
        ending.clear()
        n_sent[:] = [0] * 3
        with ThreadPoolExecutor(3) as threads, contextlib.ExitStack() as stack:
            ports = [stack.enter_context(answering(head, trickle(i), pause=0.02))[0] for i in range(3)]
            answers = [threads.submit(ask, port) for port in ports]
            end = time.monotonic() + 120
            while min(n_sent) < 3:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert "content" in running.ask("/completion", {"prompt": BEFORE, "n_predict": 2})
            if seconds > 10:
                assert not any(answer.done() for answer in answers)
                ending.set()
            messages = [answer.result().json()["error"]["message"] for answer in answers]
            ending.set()
        assert all(("too early" if seconds > 10 else "did not come within") in message for message in messages)


def test_props_say_what_is_taken(running):
    assert running.client.get("/props").json()["modalities"] == {"vision": True, "audio": False, "video": False}


def test_command_line(vlm, head, tmp_path, capsys):
    (tmp_path / "image.png").write_bytes(vlm.file)
    arguments = ["speculative-simple", "-m", vlm.path, "-md", head.path, "--mmproj", vlm.mmproj, "-n", "8", "-c", "256"]
    arguments += ["--image", str(tmp_path / "image.png"), "--temp", "0", "-t", "1", "--spec-draft-n-max", "2"]
    texts = []
    for prompt in ("What is <__media__>?", "What is this?"):
        assert main([*arguments, "-p", prompt]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith("What is <__media__>?")
    assert len(texts[1]) > len("What is this?\n")
    assert main([*arguments, "--mmproj", vlm.path, "-p", "x"]) != 0
    assert "expected a multimodal projector" in capsys.readouterr().err
