"""What flags of the server mean for requests that do not say it."""

from __future__ import annotations

from typing import Any

from serving import Running


def test_grammar_of_the_server(pair: Any) -> None:
    """--grammar holds for texts and chats that bring none of their own."""
    with Running(*pair, options={"defaults": {"grammar": 'root ::= "yes" | "no"', "temperature": 0}}) as running:
        assert running.ask("/completion", {"prompt": "the"})["content"] in ("yes", "no")
        chat = {"messages": [{"role": "user", "content": "the"}]}
        assert running.ask("/v1/chat/completions", chat)["choices"][0]["message"]["content"] in ("yes", "no")
        own = running.ask("/v1/chat/completions", {**chat, "grammar": 'root ::= "maybe"'})
        assert own["choices"][0]["message"]["content"] == "maybe"


def test_reasoning_budget_of_the_server(pair: Any) -> None:
    """A template that begins with a thought: the budget ends it, with the message."""
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
