"""GuideLLM, which measures servers.

export HF_HUB_OFFLINE=1
guidellm benchmark --target http://localhost:8080 --profile synchronous --max-requests 3 \\
    --data prompts.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path

from checks import URL, program, run


def benchmark() -> None:
    prompts = [json.dumps({"prompt": f"Count to {i}.", "output_tokens_count": 8}) for i in range(3, 6)]
    Path("prompts.jsonl").write_text("\n".join(prompts))
    options = ["--target", URL, "--profile", "synchronous", "--max-requests", "3", "--data", "prompts.jsonl"]
    run(program("guidellm"), "benchmark", *options, "--output-path", "out.json", HF_HUB_OFFLINE="1")
    (benchmark,) = json.loads(Path("out.json").read_text())["benchmarks"]
    assert len(benchmark["requests"]["successful"]) == 3
