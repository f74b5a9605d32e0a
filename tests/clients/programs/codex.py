"""OpenAI's Codex, whose program is in the wheel of openai-codex-cli-bin; set OPENAI_API_KEY to anything.

# ~/.codex/config.toml
model = "qwen2.5-coder-1.5b"    # as /v1/models names it: there Codex reads how long its context is
model_provider = "local"
features.api_key_model_discovery = true
[model_providers.local]
name = "local"
base_url = "http://localhost:8080/v1"
model_catalog_url = "http://localhost:8080/v1/models"
env_key = "OPENAI_API_KEY"
"""

from __future__ import annotations

import json
from pathlib import Path

from checks import V1, Counted, model, restart, run
from codex_cli_bin import bundled_codex_path

TARGET = "qwen2.5-coder-1.5b"
CONFIG = """
model = "{model}"
model_provider = "local"
features.api_key_model_discovery = true
[model_providers.local]
name = "local"
base_url = "{V1}"
model_catalog_url = "{V1}/models"
env_key = "OPENAI_API_KEY"
"""
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"


def _codex(*arguments: str) -> str:
    config = Path.home() / ".codex" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(CONFIG.format(model=model(), V1=V1))
    common = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return run(str(bundled_codex_path()), "exec", *common, *arguments, OPENAI_API_KEY="none")


def a_turn_and_the_model_is_known() -> None:
    _codex("-o", "said.txt", "What is the capital of France? Answer in a sentence, and call no tool.")
    assert Path("said.txt").read_text().strip()
    assert [entry["slug"] for entry in json.loads((Path.home() / ".codex/models_cache.json").read_text())["models"]]


def the_second_turn_finds_its_prompt() -> None:
    with Counted() as cost:
        _codex("resume", "--last", "Say it again.")
    assert cost.n_found > 0.9 * cost.n_prompt, cost


def a_new_start_of_both_finds_its_prompt() -> None:
    restart()
    with Counted() as cost:
        _codex("Say goodbye.")
    assert cost.n_found > 0.8 * cost.n_prompt, cost


def a_file_is_edited_by_apply_patch() -> None:
    call = json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}})
    _codex(f"Call the tool apply_patch. Answer with exactly this, tags included:\n<tool_call>\n{call}\n</tool_call>")
    assert Path("hello.txt").read_text() == "hello\n"


def a_command_is_run() -> None:
    call = json.dumps({"name": "exec_command", "arguments": {"cmd": "echo ran > ran.txt"}})
    _codex(f"Call the tool exec_command. Answer with exactly this, tags included:\n<tool_call>\n{call}\n</tool_call>")
    assert Path("ran.txt").read_text() == "ran\n"
