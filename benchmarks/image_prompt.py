"""Time the drafter's share of a prompt with one image of many rows, beside the target's.

    python benchmarks/image_prompt.py TARGET HEAD [--rows 1024] [-t 1]

The rows are random, as their values do not change the time.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Media, media_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("head")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    with Eagle3Llama(
        args.target, args.head, draft="chain", n_ctx=args.rows + 64, n_threads=args.threads, verbose=False
    ) as llm:
        rng = np.random.default_rng(1)
        rows = rng.normal(0, 0.02, (args.rows, llm.target.n_embd_inp)).astype(np.float32)
        llm.eval(list(range(100, 108)))
        target_us, draft_us = llm.target.t_decode_us, llm.drafters[0].t_process_us
        llm.eval_media(Media(llm.n_tokens, media_tokens(b"", args.rows), 100, lambda: rows))
        target_s, draft_s = (
            1e-6 * (llm.target.t_decode_us - target_us),
            1e-6 * (llm.drafters[0].t_process_us - draft_us),
        )
        found = {"rows": args.rows, "target_s": round(target_s, 3), "draft_s": round(draft_s, 3)}
        print(json.dumps(found | {"draft_share": round(draft_s / target_s, 4)}))


if __name__ == "__main__":
    main()
