"""An answer by a schema is its JSON and nothing else: what a client gets is what was sampled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from accepting import accepts
from chat_cases import templates
from chatting import QWEN3, Load
from grammar_texts import GrammarTexts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates, apply_request

USER = {"role": "user", "content": "Hello"}
FORM = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}},
}


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_nothing_but_the_json(path: Path) -> None:
    """With every template: no fence, and without a thought no white space around it either."""
    chat = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    params = apply_request(chat, {"messages": [USER], "response_format": FORM})
    start = params.generation_prompt if params.grammar_begins_in_prompt else ""
    writer = GrammarTexts(params.grammar)
    for seed in range(8):
        text = writer.write(random.Random(seed))
        assert "```" not in text
        if (
            not text.startswith(start) or params.grammar_root != "root"
        ):  # a thought that the prompt begins can be written in other ways
            continue
        parser = params.new_parser()
        parser.update(text[len(start) :], is_partial=False)
        message = parser.message
        assert json.loads(message["content"]) == {"a": 5}
        if "reasoning" not in params.grammar and not params.thinking_end_tags:
            assert text[len(start) :].endswith(message["content"])


def test_a_fence_that_the_last_message_begins(load: Load, llm: Eagle3Llama) -> None:
    """A client that begins the answer with a fence gets it closed, as before."""
    chat = load("Qwen-Qwen2.5-7B-Instruct.jinja")
    messages = [USER, {"role": "assistant", "content": "```json\n"}]
    for more, text, is_allowed in (
        ({"messages": [USER]}, '{"a": 5}', True),
        ({"messages": [USER]}, ' {"a": 5}', False),
        ({"messages": [USER]}, '```json\n{"a": 5}\n```', False),
        ({"messages": messages}, '{"a": 5}\n```', True),
    ):
        params = apply_request(chat, {**more, "response_format": FORM})
        assert accepts(llm, params.grammar, params.generation_prompt + text, params.grammar_root) == is_allowed


def test_a_format_that_names_the_reader(load: Load, llm: Eagle3Llama) -> None:
    """It knows no schemas of answers: the schema holds after the name."""
    params = apply_request(load("meetkai-functionary-medium-v3.2.jinja"), {"messages": [USER], "response_format": FORM})
    assert accepts(llm, params.grammar, 'all\n{"a": 5}', params.grammar_root)
    assert not accepts(llm, params.grammar, '{"a": 5}', params.grammar_root)
    assert not accepts(llm, params.grammar, 'all\n{"a": 6}', params.grammar_root)


def test_white_space_after_a_thought(load: Load, llm: Eagle3Llama) -> None:
    """It belongs to the thought's end as the model writes it."""
    params = apply_request(load(QWEN3), {"messages": [USER], "response_format": FORM})
    for text in ('<think>\nso\n</think>\n\n{"a": 5}', '{"a": 5}'):
        assert accepts(llm, params.grammar, params.generation_prompt + text, params.grammar_root)


def test_logprobs_are_of_what_is_sent(llm: Eagle3Llama) -> None:
    """Clients that build the text from log-probabilities get the content, token by token."""
    options: dict[str, Any] = {"response_format": FORM, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    answer: Any = llm.create_chat_completion([USER], temperature=1.0, seed=3, **options)
    (choice,) = answer["choices"]
    tokens = choice["logprobs"]["content"]
    assert json.loads(choice["message"]["content"]) == {"a": 5}
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] == len(tokens)
