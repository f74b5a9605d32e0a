"""Simon Willison's command llm; the model is an entry of extra-openai-models.yaml in its folder (llm logs path).

- {model_id: local, model_name: any, api_base: "http://localhost:8080/v1", supports_tools: true, supports_schema: true}
llm keys set openai
llm -m local "Hello"
"""

from __future__ import annotations

import json
from pathlib import Path

from checks import V1, program, run

ENTRY = {"model_id": "local", "model_name": "any", "api_base": V1, "supports_tools": True, "supports_schema": True}
Path("extra-openai-models.yaml").write_text(json.dumps([ENTRY]))


def _llm(*arguments: str) -> str:
    options = ["-m", "local", "--key", "none", "-o", "max_tokens", "100"]
    return run(program("llm"), *options, *arguments, LLM_USER_PATH=str(Path.cwd()))


def prompt() -> None:
    assert _llm("Say hello.").strip()


def conversation() -> None:
    assert _llm("-c", "Say it again.").strip()


def schema() -> None:
    assert set(json.loads(_llm("--schema", "name, age int", "Ada is 36 years old."))) == {"name", "age"}


def tools() -> None:
    assert _llm("-T", "llm_version", "Which version of llm is this?").strip()
