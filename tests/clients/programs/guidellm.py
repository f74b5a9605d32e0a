"""GuideLLM, which measures servers.

export HF_HUB_OFFLINE=1
guidellm run --backend kind=openai_http,target=http://localhost:8080 --profile kind=synchronous \\
    --constraint kind=max_requests,count=3 --data kind=json_file,path=prompts.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path

from checks import URL, program, run


def benchmark() -> None:
    prompts = [json.dumps({"prompt": f"Count to {i}.", "output_tokens_count": 8}) for i in range(3, 6)]
    Path("prompts.jsonl").write_text("\n".join(prompts))
    options = ["--backend", f"kind=openai_http,target={URL}", "--profile", "kind=synchronous"]
    options += ["--constraint", "kind=max_requests,count=3", "--data", "kind=json_file,path=prompts.jsonl"]
    run(program("guidellm"), "run", *options, "--output", "kind=json,path=out.json", HF_HUB_OFFLINE="1")
    (benchmark,) = json.loads(Path("out.json").read_text())["benchmarks"]
    assert len(benchmark["requests"]["successful"]) == 3
