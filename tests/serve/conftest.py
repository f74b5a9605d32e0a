"""Fixtures: a perfect pair, served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.engine import ScheduledSequence
from serving import Running
from tiny import write_perfect_pair

TOOL_TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "{% elif m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return a target and a head that is always right."""
    folder: Path = tmp_path_factory.mktemp("serve")
    return write_perfect_pair(folder / "target.gguf", folder / "head.gguf")


@pytest.fixture(scope="module")
def running(pair: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve the pair with two slots; drafts are chains of four."""
    folder = tmp_path_factory.mktemp("slots")
    with Running(*pair, draft_n_max=4, options={"slot_save_path": folder}) as running:
        yield running


@pytest.fixture
def tokenized(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the bytes of each text that the module's server tokenizes from now on."""
    lengths: list[int] = []
    tokenize = running.server.llm.tokenize
    monkeypatch.setattr(
        running.server.llm, "tokenize", lambda t, *a, **more: lengths.append(len(t)) or tokenize(t, *a, **more)
    )
    return lengths


@pytest.fixture(scope="module")
def tools(pair: Any) -> Iterator[Running]:
    with Running(*pair, n_ctx=2048, draft_n_max=3, options={"chat_template": TOOL_TEMPLATE}) as running:
        yield running


@pytest.fixture(scope="module")
def roomy_tools(pair: Any) -> Iterator[Running]:
    """Serve the pair with room for an agent's tools."""
    with Running(*pair, n_ctx=20480, draft_n_max=3, options={"chat_template": TOOL_TEMPLATE}) as running:
        yield running


@pytest.fixture
def says(tools: Running) -> Iterator[Callable[[str], None]]:
    """Yield `says(text)`, which sets the model's next texts."""
    engine, scripts = tools.server.engine, {}
    script: list[int] = []

    def draw(part: ScheduledSequence, token: int) -> int:
        return next(scripts.setdefault(part.sequence, iter(script)), tools.server.llm.token_eos())

    def say(text: str) -> None:
        script[:] = tools.ask("/tokenize", {"content": text})["tokens"]

    engine.stepper.on_sample = draw
    yield say
    engine.stepper.on_sample = None
