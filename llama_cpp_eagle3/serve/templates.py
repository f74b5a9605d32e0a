"""The server's chat template: the model's own, one in Jinja, or one of llama.cpp's by its name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as lib

from ..chat import ChatParams, ChatTemplates


def builtin_names() -> list[str]:
    """Names that llama.cpp knows."""
    n = int(lib.llama_chat_builtin_templates(None, 0))
    names = (ctypes.c_char_p * n)()
    lib.llama_chat_builtin_templates(names, n)
    return [name.decode() for name in names if name]


class Templates(ChatTemplates):
    """`ChatTemplates` that know llama.cpp's names, whose templates are code of its own and not Jinja."""

    def __init__(self, model: int, template: str):
        """template: Jinja or a name; empty: the model's own.

        Raises:
            ValueError: it is neither.
        """
        self._name = template if template != "chatml" and template in builtin_names() else ""
        super().__init__(model, "chatml" if self._name else template)

    def apply(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatParams:
        """Render a conversation.

        Raises:
            ValueError: as `ChatTemplates.apply`; or the template is one of the names, and there are tools.
        """
        if not self._name:
            return super().apply(messages, **options)
        if options.get("tools"):
            raise ValueError(f"the built-in template {self._name!r} knows no tools: give one in Jinja")
        params = super().apply(messages, **options)
        return replace(params, prompt=self._render(messages, bool(options.get("add_generation_prompt", True))))

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        pairs = [(str(message.get("role")).encode(), _text(message).encode()) for message in messages]
        array = (lib.llama_chat_message * len(pairs))(*(lib.llama_chat_message(*pair) for pair in pairs))
        name = self._name.encode()
        size = 64 + 2 * sum(len(role) + len(text) for role, text in pairs)
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_chat_apply_template(name, array, len(pairs), add_generation_prompt, buffer, size)
            if n < 0:
                raise ValueError(f"the built-in template {self._name!r} cannot render these messages")
            if n <= size:
                return buffer.raw[:n].decode()
            size = n


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
