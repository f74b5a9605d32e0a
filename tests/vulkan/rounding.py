"""Print how far a token's logits are apart in passes of one row and of several, in plain contexts of llama.cpp.

    make vulkan VULKAN_ARGS=--rounding     on Mesa's Vulkan driver in software
    python tests/vulkan/rounding.py        on this machine's accelerator, or its CPU if there is none

K/V are in F32, so that a difference is of the arithmetic alone. The models are small random ones (arch_keys.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from llama_cpp_eagle3 import _core
from random_arch import N_VOCAB, write_random_arch

MODELS = ("llama", "qwen3", "gemma3", "qwen35", "qwen3moe", "deepseek2", "gpt-oss")
N_ROWS = (2, 8, 24, 50)
N_TEXTS = 4


def logits(llm: llama_cpp.Llama, tokens: list[int], n_rows: int) -> np.ndarray:
    """Return the logits of all tokens, read in passes of n_rows; shape (tokens, vocabulary)."""
    llm.reset()
    for first in range(0, len(tokens), n_rows):
        llm.eval(tokens[first : first + n_rows])
    return llm.scores[: len(tokens)].copy()


def main() -> None:
    """Print a row for each model, with flash attention off and on."""
    devices = _core.local_accelerators()
    print(f"{devices[0].name if devices else 'CPU'}: largest difference of a logit from that of a pass of one row\n")
    print("| model | flash attention | largest logit |", *(f"{n} rows |" for n in N_ROWS))
    print("|---|---|---:|" + "---:|" * len(N_ROWS))
    texts = np.random.default_rng(0).integers(0, N_VOCAB, (N_TEXTS, max(N_ROWS))).tolist()
    types = dict.fromkeys(("type_k", "type_v"), llama_cpp.GGML_TYPE_F32)
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            path = str(write_random_arch(Path(folder), name))
            for flash in (False, True):
                llm = llama_cpp.Llama(
                    path, n_ctx=64, n_gpu_layers=-1, logits_all=True, flash_attn=flash, verbose=False, **types
                )
                alone = [logits(llm, tokens, 1) for tokens in texts]
                together = [[logits(llm, tokens, n) for tokens in texts] for n in N_ROWS]
                llm.close()
                differences = [np.abs(np.subtract(found, alone)).max() for found in together]
                cells = [
                    name,
                    "on" if flash else "off",
                    f"{np.abs(alone).max():.1f}",
                    *(f"{d:.1e}" for d in differences),
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
