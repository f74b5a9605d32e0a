"""Flags of the server hold for requests that leave them open."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from llama_cpp_eagle3.cli import serve
from llama_cpp_eagle3.cli.load_server import load_server
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.cli.server_options import serve_options
from loading import path_of
from serving import Running


def test_grammar_of_the_server(pair: Any) -> None:
    """--grammar holds for texts and chats without a grammar."""
    with Running(*pair, options={"defaults": {"grammar": 'root ::= "yes" | "no"', "temperature": 0}}) as running:
        assert running.ask("/completion", {"prompt": "the"})["content"] in ("yes", "no")
        chat = {"messages": [{"role": "user", "content": "the"}]}
        assert running.ask("/v1/chat/completions", chat)["choices"][0]["message"]["content"] in ("yes", "no")
        own = running.ask("/v1/chat/completions", {**chat, "grammar": 'root ::= "maybe"'})
        assert own["choices"][0]["message"]["content"] == "maybe"


def test_reasoning_budget_of_the_server(pair: Any) -> None:
    """A template begins with a thought: the budget ends it, with the message."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    options = {"chat_template": template, "reasoning_budget": 3, "reasoning_budget_message": " enough"}
    with Running(*pair, options=options) as running:
        body = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 40, "temperature": 0}
        message = running.ask("/v1/chat/completions", body)["choices"][0]["message"]
    assert "enough" in message["reasoning_content"]
    assert message["content"]


@pytest.mark.parametrize(
    ("flags", "has_flash"),
    [
        ([], True),
        (["-np", "2", "-kvu"], True),
        (["-fa", "off"], False),
        (["-np", "1"], False),
        (["-np", "2"], False),
        (["-np", "1", "--cpu-kernels", "on"], True),
        (["-np", "2", "--cpu-kernels", "on"], True),
    ],
)
def test_flash_attention_by_default(tiny_target: Any, flags: list[str], has_flash: bool) -> None:
    """Flash attention is on if our kernels have it or slots share cells: without it a row reads the cells of all."""
    parser = Parser()
    serve.add_arguments(parser)
    model = ["-m", path_of(tiny_target), "-c", "256", "-t", "1", "-dev", "none", "--spec-type", "none"]
    args = parser.parse_args([*model, "--cpu-kernels", "off", *flags])
    server = load_server(args, serve_options(args))
    try:
        found = server.llm.context_params.flash_attn_type
        assert (found == llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED) == has_flash
        assert server.engine.target.is_pooled == (flags[:2] != ["-np", "2"] or "-kvu" in flags)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temp", "nan"], "expected temperature to be a number, found nan"),
        (["--repeat-penalty", "inf"], "expected repeat_penalty to be finite"),
        (["--grammar", "root ::= x"], "Undefined rule identifier 'x'"),
        (["--grammar", 'root ::= "a" root'], "no text of it ends"),
        (["-l", "99999999+1"], "99999999"),
    ],
    ids=" ".join,
)
def test_what_can_never_work_is_refused_at_the_start(tiny_target: Any, flags: list[str], message: str) -> None:
    parser = Parser()
    serve.add_arguments(parser)
    args = parser.parse_args(["-m", path_of(tiny_target), "-c", "256", "-t", "1", "--spec-type", "none", *flags])
    with pytest.raises(ValueError, match=message):
        load_server(args, serve_options(args))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are texts")
def test_a_name_that_is_no_utf8(tiny_target: Any, tmp_path: Path) -> None:
    """Its bytes have marks wherever clients read it: neither /metrics nor JSON could have them."""
    path = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    shutil.copyfile(path_of(tiny_target), path)
    parser = Parser()
    serve.add_arguments(parser)
    args = parser.parse_args(["-m", str(path), "--tags", os.fsdecode(b"\xff")])
    options = serve_options(args)
    with Running(path, options={"model_name": options.model_name, "tags": options.tags}) as running:
        assert 'model_name="caf\ufffd.gguf"' in running.client.get("/metrics").text
        assert running.client.get("/v1/models/caf\ufffd.gguf").json()["tags"] == ["\ufffd"]
        assert running.client.get("/props").content.count("caf\ufffd.gguf".encode()) == 2
        answer = running.post("/completion", {"prompt": "a", "n_predict": 1, "model": "x"})
        assert "caf\ufffd.gguf".encode() in answer.content
        assert b"\\ud" not in answer.content
