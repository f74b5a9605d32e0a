"""Helpers for tests of the chat code: names of templates, the loading of templates, deltas as clients see them."""

from __future__ import annotations

from collections.abc import Callable

from llama_cpp_eagle3.chat import ChatTemplates, Message

Load = Callable[[str], ChatTemplates]
"""Loads one of llama.cpp's templates by its name, without a model."""
QWEN3 = "Qwen-Qwen3-0.6B.jinja"
GEMMA4 = "google-gemma-4-31B-it.jinja"


def joined(deltas: list[Message]) -> tuple[str, str, list[dict[str, str]]]:
    """Join deltas as clients do: content, reasoning, calls."""
    content, reasoning, calls = "", "", list[dict[str, str]]()
    for delta in deltas:
        content += delta.get("content", "")
        reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            assert call["index"] in (len(calls) - 1, len(calls))
            if call["index"] == len(calls):
                assert call["type"] == "function"
                calls.append({"id": call["id"], "name": "", "arguments": ""})
            function = call.get("function", {})
            # a name may come in pieces, each of which has all of it so far
            calls[-1]["name"] = function.get("name", calls[-1]["name"])
            calls[-1]["arguments"] += function.get("arguments", "")
    return content, reasoning, calls
