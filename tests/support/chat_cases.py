"""Conversations for all chat templates of llama.cpp, with llama-server's results.

chat_goldens.json has, for each template and conversation, the SHA-256 of the prompt that llama-server's /apply-template
gives, or the beginning of its error; `tools/chat_goldens.py` writes it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).with_name("chat_goldens.json")
ROOT = Path(__file__).parents[2]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "Time", "parameters": {}}}
_SYSTEM = {"role": "system", "content": "You are terse.\nÄöü 😀"}
_USER = {"role": "user", "content": 'What about <Paris> & "Berlin"?'}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"sky": "grey"}'}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [_SYSTEM, _USER]},
    "turns": {"messages": [_USER, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": " And? "}]},
    "tools": {"messages": [_SYSTEM, _USER], "tools": [WEATHER, CLOCK]},
    "result": {"messages": [_USER, _CALL, _RESULT, {"role": "user", "content": "Thanks"}], "tools": [WEATHER]},
    "thought": {
        "messages": [
            _USER,
            {"role": "assistant", "content": "Rain.", "reasoning_content": "It always rains."},
            {"role": "user", "content": "Sure?"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "prefill": {"messages": [_USER, {"role": "assistant", "content": "It is"}]},
}


def templates() -> list[Path]:
    """Return llama.cpp's chat templates, which the build has unpacked, without those that write today's date."""
    folders = sorted(ROOT.glob("build/*/llama.cpp/models/templates"))
    found = sorted(folders[-1].glob("*.jinja")) if folders else []
    dated = ("strftime_now", "date_string", "datetime")
    return [path for path in found if not any(word in path.read_text(encoding="utf-8") for word in dated)]


def digest(prompt: str) -> str:
    """Return the first 16 digits of a prompt's SHA-256."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]
