"""Work that people do, with models that they use: coding questions, edits of a file, an agent's conversation.

    python benchmarks/tasks.py --tasks edits --sides plain auto auto-ngram --publish

What is asked lies in tasks/, in the model's own chat template. One client, in this process; the sides take turns.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import common
import llama_cpp

from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.bench.figures import Spread, table

FOLDER = Path(__file__).parent / "tasks"
SIDES: dict[str, dict[str, Any]] = {
    "plain": {},
    "auto": {"draft": "auto", "draft_sources": ["simple", "ngram"]},
    "auto-simple": {"draft": "auto", "draft_sources": ["simple"]},
    "auto-ngram": {"draft": "auto", "draft_sources": ["ngram"]},
    "chain-3": {"draft": "chain", "draft_n_max": 3},
    "llama_cpp": {},
}
"""What drafts: nothing, everything, each source alone, the small model by fixed settings; and llama-cpp-python."""
TASKS = ("coding", "edits", "agent")


@dataclass
class Answer:
    """What a user feels of an answer, or the sum of several."""

    tokens: int = 0
    steps: int = 0
    t_first: float = 0.0
    t_whole: float = 0.0
    n: int = 0

    def __add__(self, other: Answer) -> Answer:
        return Answer(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    @property
    def rate(self) -> float:
        """Tokens/s after the first token."""
        return (self.tokens - self.n) / (self.t_whole - self.t_first)


def load(side: str, model: str, draft: str, n_ctx: int, n_threads: int) -> llama_cpp.Llama:
    """One side's model, with equal context, batch and threads."""
    settings = {"n_ctx": n_ctx, "n_threads": n_threads, "n_threads_batch": n_threads, "verbose": False}
    if side == "llama_cpp":
        return llama_cpp.Llama(model, **settings)
    options = SIDES[side]
    uses_model = options.get("draft") == "chain" or "simple" in options.get("draft_sources", ())
    llm = Eagle3Llama(model, draft if uses_model else None, **settings, **options)
    if llm.draft == "auto":
        llm.calibrate()
    return llm


def ask(llm: llama_cpp.Llama, messages: list[dict[str, Any]], n_predict: int, more: dict[str, Any]) -> Any:
    """An answer's figures and its text."""
    start, first, n_chunks, text = perf_counter(), None, 0, []
    for chunk in llm.create_chat_completion(messages, max_tokens=n_predict, stream=True, **more):
        delta = chunk["choices"][0]["delta"]
        said = delta.get("content") or json.dumps(delta.get("tool_calls") or "")[1:-1]
        if said:
            first = first or perf_counter()
            n_chunks += 1
            text.append(said)
    end = perf_counter()
    stats = llm.last_stats if isinstance(llm, Eagle3Llama) else None
    n_tokens, n_steps = (stats.tokens, stats.steps) if stats else (n_chunks, n_chunks)
    return Answer(n_tokens, n_steps, (first or end) - start, end - start, 1), "".join(text)


def run_task(llm: llama_cpp.Llama, task: str, n_predict: int, sampling: dict[str, Any]) -> Iterator[tuple[Answer, str]]:
    """All answers of a task, each with its text."""
    if task == "agent":
        spec = json.loads((FOLDER / "agent.json").read_text(encoding="utf-8"))
        messages: list[dict[str, Any]] = []
        for turn in spec["turns"]:
            content = (FOLDER / turn["file"]).read_text(encoding="utf-8") if "file" in turn else turn["content"]
            # a scripted result of a tool stands where it would, whether or not the model called for it
            messages.append({"role": "user", "content": f"Result of the tool:\n{content}"}
                            if turn["role"] == "tool" else {"role": "user", "content": content})  # fmt: skip
            answer, text = ask(llm, messages, n_predict, sampling)
            messages.append({"role": "assistant", "content": text})
            yield answer, text
        return
    for line in (FOLDER / f"{task}.jsonl").read_text(encoding="utf-8").splitlines():
        asked = json.loads(line)
        if task == "edits":
            source = (FOLDER / asked["file"]).read_text(encoding="utf-8")
            asked["messages"] = [{"role": "user", "content": f"{asked['instruction']}\n\n```python\n{source}```"}]
        llm.reset()
        yield ask(llm, asked["messages"], n_predict, sampling)


def measure(args: Any, model: str, draft: str) -> dict[str, dict[str, list[Answer]]]:
    """Figures by task and side: one entry for each round."""
    sides = {side: load(side, model, draft, args.ctx_size, args.threads) for side in args.sides}
    sampling = {"temperature": args.temp, "seed": 7}
    found: dict[str, dict[str, list[Answer]]] = {task: {side: [] for side in sides} for task in args.tasks}
    for task in args.tasks:
        for i in range(args.runs):
            texts: dict[str, list[str]] = {}
            for side, llm in sides.items():
                common.progress(f"{task}, run {i + 1} of {args.runs}: {side}")
                llm.reset()
                answers, texts[side] = zip(*run_task(llm, task, args.n_predict, sampling), strict=True)
                found[task][side].append(sum(answers, Answer()))
            ours = {side: text for side, text in texts.items() if side != "llama_cpp"}
            different = [side for side, text in ours.items() if text != next(iter(ours.values()))]
            if different:
                print(f"{task}: the text of {', '.join(different)} is not that of {next(iter(ours))}")
    return found


def report(task: str, sides: dict[str, list[Answer]]) -> str:
    """A task's table."""
    first = statistics.median(a.t_whole for a in next(iter(sides.values())))
    rows = []
    for side, answers in sides.items():
        whole = Spread.of(a.t_whole / a.n for a in answers)
        ours = side != "llama_cpp"
        rows.append([
            side, Spread.of(a.rate for a in answers).text(1), Spread.of(a.t_first / a.n for a in answers).text(2),
            whole.text(2), f"{first / statistics.median(a.t_whole for a in answers):.2f}",
            f"{answers[0].tokens / answers[0].steps:.2f}" if ours else "",
        ])  # fmt: skip
    head = [task, "tokens/s after the first", "first token, s", "answer, s", "speed, whole answers", "tokens a step"]
    return table(head, rows)


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__, runs=3)
    p.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    p.add_argument("--sides", nargs="+", choices=SIDES, default=tuple(SIDES))
    p.add_argument("--temp", type=float, default=0.0)
    p.set_defaults(ctx_size=4096, n_predict=256)
    args = p.parse_args()
    model, draft = (args.model, args.model_draft) if args.model else map(str, models.qwen_coder(common.progress))
    found = measure(args, model, draft)
    text = "\n\n".join(report(task, sides) for task, sides in found.items())
    text += (
        f"\n\nAt most {args.n_predict} tokens an answer, temperature {args.temp:g}; medians of {args.runs} rounds in "
        "turns (lowest - highest). Speed is that of whole answers, the first side's being 1."
    )
    data = {task: {side: [asdict(a) for a in answers] for side, answers in s.items()} for task, s in found.items()}
    name = f"tasks-{'-'.join(args.tasks)}" + (f"-t{args.temp:g}" if args.temp else "")
    common.finish(args, common.Section("tasks", "Tasks", text, data, name), [model, draft])


if __name__ == "__main__":
    main()
