"""Claude Code, whose program is in the wheel of claude-agent-sdk.

export ANTHROPIC_BASE_URL=http://localhost:8080 ANTHROPIC_AUTH_TOKEN=none
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude --model any
"""

from __future__ import annotations

import json
from pathlib import Path

import claude_agent_sdk
from checks import URL, Counted, restart, run

TARGET = "qwen2.5-coder-1.5b"
CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_AUTH_TOKEN": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "API_TIMEOUT_MS": "900000",
}


def _claude(*arguments: str) -> dict[str, object]:
    options = ["--model", "any", "--output-format", "json", "--permission-mode", "acceptEdits"]
    answer = json.loads(run(str(CLAUDE), *options, *arguments, **ENVIRONMENT))
    assert not answer["is_error"], answer.get("result") or json.dumps(answer)
    return answer


def a_turn_with_its_own_prompt() -> None:
    assert _claude("-p", "Say hello.", "--max-turns", "1")["result"]


def the_next_start_of_both_finds_it_within_a_second() -> None:
    restart()
    with Counted() as cost:
        _claude("-p", "Say hello again.", "--max-turns", "1")
    assert cost.n_found > 0.9 * cost.n_prompt and cost.seconds / cost.n <= 1, cost


def a_file_is_edited() -> None:
    path = Path("hello.txt").resolve()
    call = json.dumps({"name": "Write", "arguments": {"file_path": str(path), "content": "hello"}})
    asked = f"Call the tool Write. Answer with exactly this, tags included:\n<tool_call>\n{call}\n</tool_call>"
    _claude("-p", asked, "--max-turns", "3", "--tools", "Write,Edit,Read")
    assert path.read_text().strip() == "hello"
