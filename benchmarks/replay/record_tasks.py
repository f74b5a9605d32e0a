"""Record real work with Qwen2.5-Coder: tasks.jsonl.gz, which benchmarks/planner.py replays beside the toy's texts.

The requests are those of benchmarks/tasks.py: edits, coding questions, JSON by schema, holes in a file, the turns of an
agent, a document. The 1.5B answers, and the 0.5B drafts: a small model needs only the tokens before, so its candidates
for each token of an answer are enough, and `astray` are its candidates after a wrong one. The times of passes are in
`planner_scenarios.py`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from llama_cpp import LlamaGrammar
from record import record

import task_requests
from llama_cpp_eagle3 import Eagle3Llama, models

HERE = Path(__file__).parent
N_TEXTS = {"edits": 2, "coding": 2, "json": 1, "fim": 3, "agent": 3, "documents": 1}
N_TOKENS = {"edits": 128, "coding": 96, "json": 80, "fim": 24, "agent": 48, "documents": 80}


def prompts(llm: Eagle3Llama) -> Iterator[tuple[str, list[int], str]]:
    """Yield (kind, prompt as tokens, grammar)."""
    for kind, n_texts in N_TEXTS.items():
        asked = task_requests.TASKS[kind]()
        step = len(asked) // n_texts if kind == "fim" else 1
        for one in asked[::step][:n_texts]:
            text, grammar = _rendered(llm, one.body)
            yield kind, llm.tokenize(text.encode(), add_bos=False, special=True), grammar


def _rendered(llm: Eagle3Llama, body: dict[str, Any]) -> tuple[str, str]:
    if "input_prefix" in body:  # Qwen's form of a hole
        extra = "".join(f"<|file_sep|>{file['filename']}\n{file['text']}\n" for file in body["input_extra"])
        before = f"{extra}<|fim_prefix|>{body['input_prefix']}{body['prompt']}"
        return f"{before}<|fim_suffix|>{body['input_suffix']}<|fim_middle|>", ""
    schema = body["response_format"]["json_schema"]["schema"] if "response_format" in body else None
    found = llm.chat_templates.apply(body["messages"], tools=body.get("tools"), json_schema=schema)
    return found.prompt, found.grammar if schema else ""


def main() -> None:
    target, draft = (str(models.fetched(f"qwen2.5-coder-{size}", print)) for size in ("1.5b", "0.5b"))
    lines = []
    with closing(Eagle3Llama(target, draft, n_ctx=8192, verbose=False)) as llm:
        for kind, prompt, grammar in prompts(llm):
            more: dict[str, Any] = {"grammar": LlamaGrammar.from_string(grammar, verbose=False)} if grammar else {}
            (found,) = llm.generate_batch([prompt], max_tokens=N_TOKENS[kind], temperature=0.0, **more)
            if len(found.tokens) > 2:
                lines.append({"kind": kind} | record(llm, prompt, found.tokens, n_levels=1))
            print(kind, len(prompt), len(found.tokens), flush=True)
            with gzip.GzipFile(HERE / "tasks.jsonl.gz", "wb", mtime=0) as file:
                for line in lines:
                    file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
