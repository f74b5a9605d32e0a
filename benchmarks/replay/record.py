"""Record the bundled head's drafts along some texts: acceptance.jsonl.gz, which benchmarks/planner.py replays.

A line is a text: its kind, its tokens, and for each generated token the head's candidates for it and for the tokens
after it, level by level along the text for as long as the text's token is among them: [tokens, their probabilities].
`astray` are the probabilities of the candidates after a token that is not the text's.

Kinds: own, the target's answers to the bundled prompts at temperature 1, without the noise that they were drawn with;
greedy, and 0.6, 0.8 and 1.0, the temperatures of texts whose noise the head knows; edits, quotes and free, of the files
beside this one; loops, a piece of such a text again and again, and a greedy continuation, which is a loop too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3._core import GumbelNoise
from llama_cpp_eagle3.engine import Sampling

HERE = Path(__file__).parent
TOP_K = 4
N_LEVELS = 12
N_TOKENS = 160
N_TEXTS = {"own": 6, "edits": 4, "quotes": 3, "free": 3, "loops": 2}
TEMPERATURES = {"greedy": 0.0, "0.6": 0.6, "0.8": 0.8, "1.0": 1.0}
N_SAMPLED = 4
"""Texts of each temperature."""


def texts(llm: Eagle3Llama) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield (kind, prompt, answer), as tokens."""
    for i, text in enumerate(models.heldout_prompts()[: N_TEXTS["own"] + 1]):
        prompt = llm.tokenize(text.encode(), special=True)
        is_greedy = i == N_TEXTS["own"]  # such a small model repeats itself in greedy text
        llm.set_seed(i)
        answer = [
            t for t, _ in zip(llm.generate(prompt, temp=0.0 if is_greedy else 1.0), range(N_TOKENS), strict=False)
        ]
        yield "loops" if is_greedy else "own", prompt, answer
    n_loops = 0
    for kind in ("edits", "quotes", "free"):
        for line in (HERE / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()[: N_TEXTS[kind]]:
            found = json.loads(line)
            prompt = llm.tokenize(found["prompt"].encode(), special=True)
            answer = llm.tokenize(found["answer"].encode(), add_bos=False)
            yield kind, prompt[-400:], answer[:N_TOKENS]
            if kind == "free" and n_loops < N_TEXTS["loops"]:
                n_loops += 1
                yield "loops", prompt[:20], (answer[:30] * N_TOKENS)[:N_TOKENS]


def sampled(llm: Eagle3Llama) -> Iterator[tuple[str, list[int], list[int], GumbelNoise | None]]:
    """Yield (kind, prompt, answer, its noise), with llama.cpp's default samplers."""
    for kind, temperature in TEMPERATURES.items():
        for seed, text in enumerate(models.heldout_prompts()[10 : 10 + N_SAMPLED]):
            prompt = llm.tokenize(text.encode(), special=True)
            options = {"temperature": temperature, "seed": seed, "ignore_eos": True}
            (result,) = llm.generate_batch([prompt], max_tokens=N_TOKENS, **options)
            cuts = Sampling(**options)
            noise = GumbelNoise(
                seed, temperature=temperature or 1.0, top_k=cuts.top_k, top_p=cuts.top_p, min_p=cuts.min_p
            )
            yield kind, prompt, result.tokens[:N_TOKENS], noise if temperature > 0.0 else None


def record(
    llm: Eagle3Llama, prompt: list[int], answer: list[int], noise: GumbelNoise | None = None, n_levels: int = N_LEVELS
) -> dict[str, object]:
    """Return the drafter's candidates for each token of the answer but the first, which the prompt's last row gives.

    n_levels: 1 for a drafter that needs only the text, whose later levels are the first ones of later tokens.
    """
    target, drafter, tap = llm.target, llm.drafters[0], llm.tap
    llm.reset()
    llm.eval(prompt)
    tokens, n_past = [*prompt, *answer], len(prompt)
    levels: list[list[object]] = []
    astray: list[list[float]] = []
    for i in range(len(prompt) + 1, len(tokens)):
        found: list[object] = []
        if noise is not None:
            noise.position = i - len(prompt)
        drafter.set_noise(noise)
        drafter.begin([0], [tokens[i - 1]], TOP_K)
        first = 0
        for depth in range(n_levels):
            nodes = drafter.nodes[first:]
            found.append([[n[1] for n in nodes], [float(f"{n[2]:.3g}") for n in nodes]])
            is_right = [n[1] == tokens[i + depth] if i + depth < len(tokens) else False for n in nodes]
            here = first + (is_right.index(True) if True in is_right else 0)
            if i + depth >= len(tokens) or not nodes:
                break
            first = len(drafter.nodes)
            drafter.expand([here], TOP_K)
            if True not in is_right:
                astray.append([float(f"{n[2]:.3g}") for n in drafter.nodes[first:]])
                break
        levels.append(found)
        target.decode([tokens[i - 1]], n_past)
        drafter.process(tap, [tokens[i - 1]], n_past)
        n_past += 1
    drafter.set_noise(None)
    return {"n_prompt": len(prompt), "tokens": tokens, "levels": levels, "astray": astray[:: max(1, len(astray) // 32)]}


def main() -> None:
    target, draft = map(str, models.bundled_pair())
    with closing(Eagle3Llama(target, draft, n_ctx=2048, n_threads=1, draft="chain", verbose=False)) as llm:
        lines = [{"kind": kind} | record(llm, prompt, answer) for kind, prompt, answer in list(texts(llm))]
        for kind, prompt, answer, noise in list(sampled(llm)):
            lines.append({"kind": kind, "draw": int(noise is not None)} | record(llm, prompt, answer, noise))
    with gzip.GzipFile(HERE / "acceptance.jsonl.gz", "wb", mtime=0) as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    for line in lines:
        levels = line["levels"]
        print(line["kind"], line["n_prompt"], len(levels), f"{sum(len(x) for x in levels) / len(levels):.2f}")


if __name__ == "__main__":
    main()
