"""Evaluation of a head: real speculation on prompts that it was not trained on, against the target alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..llama import Eagle3Llama
from ..stats import Stats


@dataclass(frozen=True)
class Measurement:
    """Figures of all prompts together."""

    n_prompts: int
    stats: Stats

    def __str__(self) -> str:
        stats = self.stats
        seconds = stats.draft_seconds + stats.verify_seconds + stats.sample_seconds + stats.other_seconds
        speed = f"{stats.tokens / seconds:.1f} tokens/s" if seconds else "no tokens"
        if not stats.drafts:
            return f"{self.n_prompts} prompts, {stats.tokens} tokens: {speed}"
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_rate_per_position)
        return (
            f"{self.n_prompts} prompts, {stats.tokens} tokens: mean acceptance length "
            f"{stats.mean_acceptance_length:.2f} (accepted per position {rates}), {speed}"
        )


def measure(
    target: Path,
    head: Path | None,
    prompts: Sequence[Sequence[int]],
    *,
    n_ctx: int,
    max_tokens: int,
    temperature: float = 0.0,
    n_max: int = 4,
    seed: int = 1,
    **loading: Any,
) -> Measurement:
    """Have the target go on from each prompt, one after the other, with chains of n_max tokens from a head.

    Args:
        target: its GGUF.
        head: its head's GGUF; None = the target alone.
        prompts: tokens. What does not fit into n_ctx with max_tokens is left out.
        n_ctx: of the context.
        max_tokens: of each answer.
        temperature: 0 = greedy.
        n_max: draft length.
        seed: of the sampler.
        **loading: more arguments of `Eagle3Llama`.
    """
    options: dict[str, Any] = {} if head is None else {"draft_model_path": head, "draft": "chain", "draft_n_max": n_max}
    fitting = [list(p) for p in prompts if len(p) + max_tokens <= n_ctx]
    total = Stats()
    with Eagle3Llama(target, n_ctx=n_ctx, verbose=False, **options, **loading) as llm:
        for prompt in tqdm(fitting, desc="measuring", unit="prompt", mininterval=2.0):
            common: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
            (result,) = llm.generate_batch([prompt], progress=False, **common)
            total += result.stats
    return Measurement(len(fitting), total)
