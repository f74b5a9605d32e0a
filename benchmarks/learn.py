"""What `--learn` gains: somebody works and pauses, and a head learns in the pauses.

python benchmarks/learn.py [-m TARGET --head HEAD] [--kind agent] [--pauses 2] [--requests 24] [--minutes 10] [-n 96]

Kinds of work: an *agent* goes on with parts of this repository's Python files; *support* explains parts of its manual;
*questions* are mixed, and no two are alike. A fifth of the files (of questions a set of its own) is kept out: its texts
are measured before the first pause and after each one, with chains of four tokens and with "auto", and must not change.
With -m and without --head the model begins without one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from head_prompts import question
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import resolve, smollm2

ROOT = Path(__file__).resolve().parents[1]
N_CHARS = 1200
KINDS = ("agent", "support", "questions")
QUIET: dict[str, Any] = {"verbose": False, "n_ctx": 1024, "seed": 1}


def parts_of_files(pattern: str, question: str, end: str, is_kept_out: bool) -> list[str]:
    """Questions about parts of this repository's files: first about all beginnings, then about later places."""
    files = sorted(ROOT.glob(pattern), key=lambda path: zlib.crc32(str(path.relative_to(ROOT)).encode()))
    chosen = [path for i, path in enumerate(files) if (i % 5 == 0) == is_kept_out and path.stat().st_size > 2 * N_CHARS]
    sources = [path.read_text(encoding="utf-8") for path in chosen]
    places = range(0, max(map(len, sources)), N_CHARS)
    return [f"{question}{source[at : at + N_CHARS]}{end}" for at in places for source in sources if at < len(source)]


def mixed_questions(is_kept_out: bool) -> list[str]:
    """Questions of which no two are alike: eighty that were written by hand, or others that are made by rules."""
    if is_kept_out:
        lines = (ROOT / "benchmarks" / "replay" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["turns"][0] for line in lines[::5]]
    rng = random.Random(1)
    return [question(rng) for _ in range(2000)]


def prompts(llm: Eagle3Llama, kind: str, n: int, is_kept_out: bool) -> list[list[int]]:
    """Return prompts of a kind of work, as tokens; of what is kept out, or of the rest."""
    if kind == "agent":
        asked = "Go on with this Python file:\n```python\n"
        texts = parts_of_files("llama_cpp_eagle3/**/*.py", asked, "\n```", is_kept_out)
    elif kind == "support":
        asked = "A customer asks what this part of the manual means. Answer in your own words.\n\n"
        texts = parts_of_files("docs/*.md", asked, "", is_kept_out)
    else:
        texts = mixed_questions(is_kept_out)
    begin = "```python\n" if kind == "agent" else ""
    found = (f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n{begin}" for text in texts[:n])
    return [llm.tokenize(prompt.encode(), add_bos=False, special=True)[-700:] for prompt in found]


def measure(
    target: Path, folder: Path, head: Path | None, args: argparse.Namespace
) -> tuple[dict[str, Any], list[list[int]]]:
    """Tokens a step and seconds of texts that are kept out, and the texts."""
    found: dict[str, Any] = {}
    texts: list[list[int]] = []
    newest = sorted(folder.glob("heads/*.gguf"))
    path = newest[-1] if newest else head
    for mode in ("chain", "auto"):
        options = {"draft": mode, "draft_n_max": 4} if mode == "chain" else {"draft": mode}
        if path is None and mode == "chain":
            continue
        with closing(Eagle3Llama(target, path, n_threads=args.threads, **QUIET, **options)) as llm:
            asked = prompts(llm, args.kind, args.measured, is_kept_out=True)
            start = time.perf_counter()
            answers = [
                llm.generate_batch([prompt], max_tokens=args.tokens, temperature=0, progress=False)[0]
                for prompt in asked
            ]
            seconds = time.perf_counter() - start
            n_steps = sum(answer.stats.steps for answer in answers)
            texts = [answer.tokens for answer in answers]
            found[mode] = round(sum(map(len, texts)) / max(1, n_steps), 3)
            found[f"{mode}_seconds"] = round(seconds, 1)
    return found, texts


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="target: a file or a name (default: SmolLM2-135M with its head)")
    parser.add_argument("--head", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="agent", help="of work")
    parser.add_argument("--pauses", type=int, default=2)
    parser.add_argument("--requests", type=int, default=24, help="between two pauses")
    parser.add_argument("--minutes", type=float, default=10.0, help="of learning in each pause")
    parser.add_argument("-n", "--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--measured", type=int, default=8, help="texts that are kept out")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="to learn in, kept afterwards (default: a temporary one)")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    target, head = (Path(resolve(args.model, print)), args.head) if args.model else smollm2(print)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name) / "learn"
        figures, texts = measure(target, folder, head, args)
        results.append({"minutes": 0.0, "tokens": 0, **figures})
        print(json.dumps(results[-1]), flush=True)
        n_tokens = 0
        for pause in range(args.pauses):
            options: dict[str, Any] = {"learn_dir": folder, "n_threads": args.threads, "n_parallel": 4}
            with closing(Eagle3Llama(target, head, **{**QUIET, "n_ctx": 4096}, **options)) as llm:
                asked = prompts(llm, args.kind, args.requests * (pause + 1), is_kept_out=False)[args.requests * pause :]
                found = llm.generate_batch(asked, max_tokens=2 * args.tokens, temperature=0, progress=False)
                n_tokens += sum(len(answer.tokens) for answer in found)
            learn = [sys.executable, "-m", "llama_cpp_eagle3", "learn", str(folder), "--now"]
            subprocess.run([*learn, "--minutes", str(args.minutes), "-t", str(args.threads)], check=True)
            figures, again = measure(target, folder, head, args)
            results.append({"minutes": args.minutes * (pause + 1), "tokens": n_tokens, **figures})
            results[-1]["same_text"] = again == texts
            print(json.dumps(results[-1]), flush=True)
        subprocess.run([*learn[:-1]], check=True)
    if args.output is not None:
        args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
