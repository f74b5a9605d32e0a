"""Mistral's agent for terminals; its provider llamacpp, which it comes with, is at port 8080.

# ~/.vibe/config.toml
active_model = "local"
"""

from __future__ import annotations

from pathlib import Path

from checks import V1, model, program, run

TARGET = "qwen2.5-coder-1.5b"
CONFIG = """
active_model = "local"
enable_telemetry = false
[[providers]]
name = "llamacpp"
api_base = "{V1}"
api_key_env_var = ""
[[models]]
name = "{model}"
provider = "llamacpp"
alias = "local"
"""


def prompt() -> None:
    folder = Path.home() / ".vibe"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG.format(V1=V1, model=model()))
    assert run(program("vibe"), "--trust", "-p", "Say hello.", "--max-turns", "1").strip()


def a_file_is_written() -> None:
    call = '{"name": "write_file", "arguments": {"path": "hello.txt", "content": "hello"}}'
    task = f"Call the tool write_file. Answer with exactly this, tags included:\n<tool_call>\n{call}\n</tool_call>"
    run(program("vibe"), "--trust", "--auto-approve", "-p", task, "--max-turns", "4", "--enabled-tools", "write_file")
    assert Path("hello.txt").read_text().strip() == "hello"
