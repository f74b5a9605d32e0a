"""The bundled target, whose tokens the goldens have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_cases import templates
from chatting import Load
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import ChatTemplates
from llama_cpp_eagle3.models import bundled_pair


@pytest.fixture(scope="package")
def llm() -> Iterator[Eagle3Llama]:
    """Load the bundled pair, which chats by llama.cpp's code."""
    target, head = bundled_pair()
    with pytest.MonkeyPatch.context():
        llm = Eagle3Llama(
            target, draft_model_path=head, draft="chain", n_ctx=512, verbose=False, chat_format="auto", seed=1
        )
        yield llm
        llm.close()


@pytest.fixture(scope="package")
def load() -> Load:
    """Return the loader of llama.cpp's templates by their names, without a model."""
    paths: dict[str, Path] = {path.name: path for path in templates()}

    def load(name: str) -> ChatTemplates:
        if name not in paths:
            pytest.skip("llama.cpp's templates are not there: they are unpacked when the package is built")
        return ChatTemplates(template=paths[name].read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")

    return load
