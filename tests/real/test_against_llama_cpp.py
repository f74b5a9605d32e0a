"""Greedy text at default settings beside plain llama_cpp's, whose kernels are ggml's: the same, or parted at a tie.

Kernels that sum in other orders give logits that differ in their last digits. If the two best are as near as that,
either may win, and the texts differ from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import llama_cpp
import numpy as np
import pytest

from loading import logits_at, take
from real import N_CTX, OPTIONS, Real, common_length, prompts

_N_ROUNDING = 4
"""Factor on the difference of ggml's logits between sizes of passes: at a tie the two best lie no further apart."""


def rounding_at(llm: llama_cpp.Llama, tokens: Sequence[int]) -> tuple[np.ndarray, float]:
    """Return ggml's logits after these tokens, and their difference in passes of other sizes."""
    together = logits_at(llm, tokens)
    others = [logits_at(llm, tokens, n_rows=n) for n in (1, 5, 32)]
    return together, max(float(np.abs(together - other).max()) for other in others)


def test_greedy(real: Real, pytestconfig: pytest.Config, tell: Callable[[str], None]) -> None:
    n = min(pytestconfig.getoption("real_answers"), 24)
    n_tokens = min(pytestconfig.getoption("real_tokens"), 128)
    drafter = list(real.drafters)[-1]
    with closing(real.load(drafter)) as llm:
        asked = prompts(llm, n, N_CTX - n_tokens)
        results = llm.generate_batch(asked, max_tokens=n_tokens, temperature=0.0)
        ours = [list(result.tokens) for result in results]
    ties = []
    with closing(llama_cpp.Llama(real.path, **OPTIONS)) as plain:
        for prompt, found in zip(asked, ours, strict=True):
            expected = take(plain, prompt, len(found), repeat_penalty=1.0)
            if found == expected:
                continue
            i = common_length(found, expected)
            before = [*prompt, *expected[:i]]
            logits, rounding = rounding_at(plain, before)
            best = np.argsort(logits)[-2:][::-1]
            gap = float(logits[best[0]] - logits[found[i]])
            ties.append(f"token {i}: {gap:.3f} apart, rounding {rounding:.3f}")
            if found[i] not in best or gap > _N_ROUNDING * rounding:
                pytest.fail(f"token {i} of an answer is {found[i]} instead of {expected[i]}: {ties[-1]}")
    tell(f"with {drafter}, {n} answers, {sum(map(len, ours))} tokens; {len(ties)} part at a tie ({'; '.join(ties)})")
