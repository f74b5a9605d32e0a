"""Conversations that are put through all chat templates of llama.cpp, and what its llama-server made of them.

    python tests/support/chat_cases.py LLAMA_SERVER

writes chat_goldens.json anew: for each template and conversation the SHA-256 of the prompt that llama-server's
/apply-template gives, or the beginning of its error.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.models import bundled_pair

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
    """llama.cpp's chat templates, which the build has unpacked; but for those that write today's date."""
    folders = sorted(ROOT.glob("build/*/llama.cpp/models/templates"))
    found = sorted(folders[-1].glob("*.jinja")) if folders else []
    dated = ("strftime_now", "date_string", "datetime")
    return [path for path in found if not any(word in path.read_text(encoding="utf-8") for word in dated)]


def digest(prompt: str) -> str:
    """What stands for a prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _ask(port: int, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/apply-template", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return digest(json.load(response)["prompt"])
    except urllib.error.HTTPError as e:
        return f"error {e.code}"


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("llama-server does not start")


def main() -> None:
    goldens: dict[str, dict[str, str]] = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    for i, path in enumerate(templates()):
        if path.name in goldens:
            continue
        port = 18200 + i
        command = [sys.argv[1], "-m", str(bundled_pair()[0]), "--port", str(port), "--chat-template-file", str(path)]
        command += ["--jinja", "-c", "256", "-np", "1", "--no-warmup", "--no-ui", "-t", "1"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            goldens[path.name] = {name: _ask(port, body) for name, body in CASES.items()}
        finally:
            server.kill()
            server.wait()
        GOLDENS.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
