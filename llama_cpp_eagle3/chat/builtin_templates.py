"""Chat templates that flags choose: the model's own, a Jinja template, or one of llama.cpp's by its name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as lib

from .schema import log_loosened, schema_grammar
from .templates import ChatParams, ChatTemplates


def builtin_names() -> list[str]:
    """Names that llama.cpp has."""
    n = int(lib.llama_chat_builtin_templates(None, 0))
    names = (ctypes.c_char_p * n)()
    lib.llama_chat_builtin_templates(names, n)
    return [name.decode() for name in names if name]


def named_templates(model: int, template: str, jinja: bool = True) -> ChatTemplates:
    """Parse a template.

    Args:
        model: address of the loaded llama_model.
        template: Jinja, or a name; empty: the model's own.
        jinja: False takes the built-in template that resembles it, as llama-server's --no-jinja does.

    Raises:
        ValueError: there is no such template, or it is no Jinja.
    """
    names = builtin_names()
    if template in names and (template != "chatml" or not jinja):
        return _BuiltinTemplates(model, template)
    if template and template not in names and "{" not in template:
        raise ValueError(
            f"expected a chat template in Jinja, or one of the names {', '.join(names)}; found {template!r:.80}"
        )
    try:
        templates = ChatTemplates(model, template)
    except ValueError as e:
        whose = "--chat-template or --chat-template-file" if template else "the model's file"
        raise ValueError(f"expected a chat template in Jinja in {whose}, or a built-in one's name: {e}") from None
    if jinja:
        return templates
    builtin = _BuiltinTemplates(model, templates.source() if templates.is_explicit else "chatml", template)
    if builtin.render([{"role": "user", "content": ""}], False) is None:
        raise ValueError("--no-jinja: llama.cpp has no built-in template like this one")
    return builtin


class _BuiltinTemplates(ChatTemplates):
    """Templates of llama.cpp that are C++ code and not Jinja."""

    def __init__(self, model: int, builtin: str, template: str = "chatml"):
        """builtin: a name, or a Jinja template that one resembles. template: for everything but prompts."""
        super().__init__(model, template)
        self._builtin = builtin

    def apply(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatParams:
        """Render a conversation.

        Raises:
            ValueError: as `ChatTemplates.apply`; or there are tools.
        """
        if options.get("tools"):
            raise ValueError("tools need a template in Jinja, and the server was started with a built-in one")
        schema = options.pop("json_schema", None)
        prompt = self.render(messages, bool(options.get("add_generation_prompt", True)))
        if prompt is None:
            raise ValueError("the built-in template cannot render these messages")
        params = super().apply(messages, **options)
        if schema is None:
            return replace(params, prompt=prompt)
        grammar = schema_grammar(schema)
        log_loosened(grammar.loosened)
        return replace(params, prompt=prompt, grammar=grammar.text, loosened=grammar.loosened)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str | None:
        """A conversation's prompt; None if the template has none."""
        pairs = [(str(message.get("role")).encode(), _text(message).encode()) for message in messages]
        array = (lib.llama_chat_message * len(pairs))(*(lib.llama_chat_message(*pair) for pair in pairs))
        template = self._builtin.encode()
        size = 64 + 2 * sum(len(role) + len(text) for role, text in pairs)
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_chat_apply_template(template, array, len(pairs), add_generation_prompt, buffer, size)
            if n < 0:
                return None
            if n <= size:
                return buffer.raw[:n].decode()
            size = n


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
