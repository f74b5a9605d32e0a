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

import placement
from llama_cpp_eagle3 import _core
from random_arch import N_VOCAB, load_random_arch

MODELS = ("llama", "qwen3", "gemma3", "qwen35", "qwen3moe", "deepseek2", "gpt-oss")
N_ROWS = (2, 8, 24, 50)
N_CTX = 64
N_TEXTS = 4
_SILENT = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
FLASH = {
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


def logits(model: int, tokens: list[int], n_rows: int, flash: str) -> np.ndarray:
    """Return the logits of all tokens, read in a new context in passes of n_rows; shape (tokens, vocabulary)."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = FLASH[flash]
    ctx = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(n_rows, 0, 1)
    found = []
    for first in range(0, len(tokens), n_rows):
        part = tokens[first : first + n_rows]
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(ctx, batch) != 0:
            raise RuntimeError(f"llama_decode failed for a pass of {len(part)} rows")
        rows = (llama_cpp.llama_get_logits_ith(ctx, i) for i in range(len(part)))
        found += [np.ctypeslib.as_array(row, (N_VOCAB,)).copy() for row in rows]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(ctx)
    return np.stack(found)


def main() -> None:
    """Print a row for each model, with flash attention off and on."""
    if _core.local_accelerators():
        placement.current = placement.OnGpu()
    llama_cpp.llama_log_set(_SILENT, None)
    llama_cpp.llama_backend_init()
    print(f"{placement.device_name()}: largest difference of a logit from that of a pass of one row\n")
    print("| model | flash attention | largest logit |", *(f"{n} rows |" for n in N_ROWS))
    print("|---|---|---:|" + "---:|" * len(N_ROWS))
    texts = np.random.default_rng(0).integers(0, N_VOCAB, (N_TEXTS, max(N_ROWS))).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            model = load_random_arch(Path(folder), name)
            for flash in FLASH:
                alone = [logits(model, tokens, 1, flash) for tokens in texts]
                together = [[logits(model, tokens, n, flash) for tokens in texts] for n in N_ROWS]
                differences = [np.abs(np.subtract(found, alone)).max() for found in together]
                cells = [name, flash, f"{np.abs(alone).max():.1f}", *(f"{d:.1e}" for d in differences)]
                print(f"| {' | '.join(cells)} |", flush=True)
            llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main()
