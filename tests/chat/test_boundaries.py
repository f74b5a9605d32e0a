"""Boundaries of messages in prompts: with each template, they are where the prompts of conversations part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chat_cases import WEATHER, templates
from llama_cpp_eagle3.chat import ChatTemplates, message_boundaries, thought_ends

TALK = [
    {"role": "system", "content": "You are terse."},
    *({"role": "user" if i % 2 == 0 else "assistant", "content": f"m{i} is here"} for i in range(5)),
]
N_WRAPPER = 105
"""Bytes that templates put at most between a message's beginning and its text."""


def tokenize(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_conversations_part_after_a_boundary(path: Path) -> None:
    """The last boundary that two conversations share is at the beginning of the message in which they differ."""
    loaded = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")

    def render(messages: list[dict[str, Any]]) -> Any:
        # where a template knows no tools, they are a part of the first message that is longer than the wrapper
        return loaded.apply(messages, tools=[WEATHER] if loaded.takes_tools else None)

    try:
        params = render(TALK)
    except ValueError:
        pytest.skip("the template refuses the conversation")
    prompt = tokenize(params.prompt)
    boundaries = message_boundaries(params, prompt, tokenize)
    assert list(boundaries) == sorted(set(boundaries))
    for i in (1, 4, 5):
        other = tokenize(render([*TALK[:i], {**TALK[i], "content": "other"}, *TALK[i + 1 :]]).prompt)
        n_common = next(n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b)
        assert 0 <= n_common - max(n for n in boundaries if n <= n_common) <= N_WRAPPER
    opening = tokenize(params.generation_prompt)
    if opening and prompt[-len(opening) :] == opening:
        assert len(prompt) - len(opening) <= boundaries[-1] <= len(prompt)
        assert all(n < len(prompt) - len(opening) for n in boundaries[:-1])


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_the_next_turn_begins_with_all_before_the_answer(path: Path) -> None:
    """The next turn begins with the same tokens up to the last boundary, with every template's handling of thoughts."""
    loaded = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
    try:
        params = loaded.apply(TALK[:4])
        later = loaded.apply([*TALK[:4], {"role": "assistant", "content": "an answer"}, TALK[4]])
    except ValueError:
        pytest.skip("the template refuses the conversation")
    if not later.prompt.startswith(params.prompt.removesuffix(params.generation_prompt)):
        pytest.skip("the template shows the last message otherwise than earlier ones")
    prompt = tokenize(params.prompt)
    last = message_boundaries(params, prompt, tokenize)[-1:]
    assert params.generation_prompt.startswith(params.answer_begin)
    assert all(tokenize(later.prompt)[:n] == prompt[:n] for n in last)


def test_a_thought_does_not_belong_to_the_beginning_of_the_answer() -> None:
    template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '.' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]<think>' }}{% endif %}"
    )
    params = ChatTemplates(template=template).apply([{"role": "user", "content": "one"}])
    assert (params.generation_prompt, params.answer_begin) == ("[assistant]<think>", "[assistant]")
    prompt = tokenize(params.prompt)
    assert message_boundaries(params, prompt, tokenize)[-1] == len(prompt) - len("<think>")
    joined = [*prompt[: -len("<think>") - 1], 1000, *tokenize("think>")]  # "]<" is one token
    assert message_boundaries(params, joined, tokenize)[-1] == len(joined) - len("think>")


def test_the_end_of_a_thought() -> None:
    """The end of a thought is found as tokens, each once; without thoughts there is none."""
    paths = {path.name: path for path in templates()}
    if not paths:
        pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")

    def ends(name: str) -> tuple[tuple[int, ...], ...]:
        loaded = ChatTemplates(template=paths[name].read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
        return thought_ends(loaded.apply(TALK), tokenize)

    assert ends("Qwen3.5-4B.jinja")[0] == tuple(b"</think>")
    assert len(set(ends("Qwen3.5-4B.jinja"))) == len(ends("Qwen3.5-4B.jinja"))
    assert ends("Qwen3-Coder.jinja") == ()
