"""mini-swe-agent, by LiteLLM.

export OPENAI_API_KEY=none OPENAI_API_BASE=http://localhost:8080/v1 MSWEA_COST_TRACKING=ignore_errors
mini -m openai/any --model-class litellm_textbased -c mini_textbased.yaml
"""

from __future__ import annotations

from pathlib import Path

from checks import V1, program, run

TARGET = "qwen2.5-coder-1.5b"
ENVIRONMENT = {
    "OPENAI_API_KEY": "none",
    "OPENAI_API_BASE": V1,
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_CONFIGURED": "true",
}


def a_file_is_written() -> None:
    task = "Write hello into the file hello.txt. Answer with exactly this, and nothing else:\n"
    task += "```mswea_bash_command\necho hello > hello.txt\n```"
    options = ["-m", "openai/any", "--model-class", "litellm_textbased", "-c", "mini_textbased.yaml", "-l", "0"]
    options += ["-c", "agent.step_limit=4", "-y", "--exit-immediately", "-t", task]
    run(program("mini"), *options, **ENVIRONMENT)
    assert Path("hello.txt").read_text().strip() == "hello"
