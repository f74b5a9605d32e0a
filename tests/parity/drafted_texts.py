"""Greedy texts with drafts and without: with our CPU kernels they are the same, bit for bit.

    python tests/parity/drafted_texts.py [-n 300] [--tokens 32] [--draft tree] [--kernels off] [--seconds 600] [target]

The head is the bundled one; prompts are windows of the held-out texts.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from typing import Any

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default=str(bundled_pair()[0]))
    parser.add_argument("-n", type=int, default=300, help="texts")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draft", default="chain", choices=["chain", "tree", "auto"])
    parser.add_argument("--kernels", default="on", choices=["on", "off"])
    parser.add_argument("--seconds", type=float, default=600.0, help="at most")
    args = parser.parse_args()
    draft: dict[str, Any] = {"draft_n_max": 4} if args.draft == "chain" else {"draft": args.draft}
    options: dict[str, Any] = {"cpu_kernels": args.kernels, "n_ctx": 512, "n_threads": 1, "verbose": False}
    prompts = [text[start : start + 160] for start in range(0, 480, 12) for text in heldout_prompts()]
    end = time.monotonic() + args.seconds
    n_all = n_different = n_accepted = 0
    with (
        closing(Eagle3Llama(args.target, bundled_pair()[1], **draft, **options)) as drafts,
        closing(Eagle3Llama(args.target, **options)) as plain,
    ):
        for prompt in prompts[: args.n]:
            if time.monotonic() > end:
                break
            texts = []
            for llm in (drafts, plain):
                llm.reset()  # a prompt's pass of more than 64 rows is ggml's: it has to begin at the same token
                answer: Any = llm(prompt, max_tokens=args.tokens, temperature=0.0)
                texts.append(answer["choices"][0]["text"])
            n_all += 1
            n_accepted += drafts.last_stats.mean_acceptance_length > 1
            if texts[0] != texts[1]:
                n_different += 1
                print(f"text {n_all}: {texts[0]!r}\n  without drafts: {texts[1]!r}", flush=True)
    print(f"{n_all} texts, {n_accepted} with drafts that were accepted: {n_different} differ")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
