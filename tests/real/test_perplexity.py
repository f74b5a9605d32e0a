"""Perplexity of a text that is younger than the models: our kernels beside ggml's, in large and in small passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

from real import OPTIONS, Real

TASKS = Path(__file__).parents[2] / "benchmarks" / "tasks"
N_CTX = 256
LIMIT = 1e-3
"""Limit of the logarithms' difference beyond chance: both sides round activations to 8 bits, each in its own way."""


def windows(llm: llama_cpp.Llama, n: int) -> list[list[int]]:
    """Return pieces of this project's own code, each for an empty context."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(TASKS.glob("*.txt")))
    tokens = llm.tokenize(text.encode(), add_bos=False)
    bos = [llm.token_bos()] if llm.metadata.get("tokenizer.ggml.add_bos_token", "true") == "true" else []
    size = N_CTX - len(bos)
    assert len(tokens) >= n * size
    return [[*bos, *tokens[i * size : (i + 1) * size]] for i in range(n)]


def losses(llm: llama_cpp.Llama, texts: list[list[int]]) -> npt.NDArray[np.float64]:
    """Return the loss of each token of each window's second half, as llama-perplexity does."""
    found = []
    for tokens in texts:
        llm.reset()
        llm.eval(tokens)
        logits = llm.scores[N_CTX // 2 - 1 : N_CTX - 1].astype(np.float64)
        of_right = logits[np.arange(len(logits)), tokens[N_CTX // 2 :]]
        top = logits.max(1)
        found.append(top + np.log(np.exp(logits - top[:, None]).sum(1)) - of_right)
    return np.concatenate(found)


@pytest.mark.parametrize("n_batch", [N_CTX, 8], ids=["large", "small"])
def test_ours_is_that_of_ggml(
    real: Real, n_batch: int, pytestconfig: pytest.Config, tell: Callable[[str], None]
) -> None:
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_batch": n_batch, "logits_all": True}
    with closing(real.load(cpu_kernels="on", **options)) as llm:
        assert "matrices by" in llm.loaded.where
        texts = windows(llm, pytestconfig.getoption("real_windows"))
        ours = losses(llm, texts)
    with closing(llama_cpp.Llama(real.path, **OPTIONS | options)) as plain:
        ggml = losses(plain, texts)
    more = ours - ggml  # difference of the logarithms: 0.001 is 0.1 %
    error = float(more.std() / np.sqrt(len(more)))
    tell(
        f"{len(more)} tokens in passes of {n_batch}: {np.exp(ours.mean()):.4f}, with ggml's kernels "
        f"{np.exp(ggml.mean()):.4f} ({more.mean():+.3%} +- {error:.3%})"
    )
    assert error < 0.01, "too few tokens to say anything: --real-windows"
    assert abs(more.mean()) < LIMIT + 3 * error
