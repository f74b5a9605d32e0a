"""Evaluation of a head: real speculation on prompts that it was not trained on, against the target alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from llama_cpp_eagle3.engine.stats import Stats
from llama_cpp_eagle3.llama import Eagle3Llama


@dataclass(frozen=True)
class Measurement:
    """Figures of all prompts together."""

    n_prompts: int
    stats: Stats

    @property
    def tokens_per_second(self) -> float:
        """The speed of generation, without the prompts' passes; 0 = nothing was generated."""
        stats = self.stats
        seconds = stats.draft_seconds + stats.verify_seconds + stats.sample_seconds + stats.other_seconds
        return stats.tokens / seconds if seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens for each pass of the target, with drafts and without: no gain in speed can be greater."""
        return self.stats.tokens / max(1, self.stats.steps)

    def __str__(self) -> str:
        stats, speed = self.stats, self.tokens_per_second
        what = f"{self.n_prompts} prompts, {stats.tokens} tokens"
        told = f"{speed:.1f} tokens/s" if speed else "no tokens"
        if not stats.drafts:
            return f"{what}: {told}"
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_rate_per_position)
        return (
            f"{what}: mean acceptance length {stats.mean_acceptance_length:.2f} (accepted per position {rates}), {told}"
        )


@dataclass(frozen=True)
class Side:
    """A way to generate."""

    head: Path | None = None
    """The GGUF of its head; None = the target alone."""
    mode: str = "chain"
    """The `draft` argument of `Eagle3Llama`."""


def measure(
    target: Path,
    head: Path | None,
    prompts: Sequence[Sequence[int]],
    **options: Any,
) -> Measurement:
    """Measure one head (None = the target alone) with chains; options are those of :func:`measure_sides`."""
    return measure_sides(target, {"": Side(head)}, prompts, **options)[""]


def measure_sides(
    target: Path,
    sides: Mapping[str, Side],
    prompts: Sequence[Sequence[int]],
    *,
    n_ctx: int,
    max_tokens: int,
    temperature: float = 0.0,
    n_max: int = 4,
    seed: int = 1,
    at_once: bool = False,
    **loading: Any,
) -> dict[str, Measurement]:
    """Have the target go on from each prompt, in each of several ways.

    Args:
        target: The target's GGUF.
        sides: The ways, by name.
        prompts: Their tokens. A prompt that does not fit into n_ctx together with max_tokens is left out.
        n_ctx: Tokens of the context.
        max_tokens: Tokens of each answer, at most.
        temperature: 0 = greedy.
        n_max: Tokens of a chain.
        seed: The sampler's seed.
        at_once: Whether all sides are loaded and answer each prompt in turn, so that whatever else the machine does
            slows all of them. It costs a context for each, and on an accelerator the target's weights too.
        **loading: Further arguments of `Eagle3Llama`.
    """
    fitting = [list(p) for p in prompts if len(p) + max_tokens <= n_ctx]
    common: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    totals = {name: Stats() for name in sides}

    def load(side: Side) -> Eagle3Llama:
        options: dict[str, Any] = {"draft_sources": ()}
        if side.head is not None:
            options = {"draft_model_path": side.head, "draft": side.mode}
            options |= {"draft_n_max": n_max} if side.mode == "chain" else {"draft_sources": ("eagle3",)}
        return Eagle3Llama(target, n_ctx=n_ctx, verbose=False, **options, **loading)

    with tqdm(total=len(fitting) * len(sides), desc="measuring", unit="prompt", mininterval=2.0) as bar:
        for names in [list(sides)] if at_once else [[name] for name in sides]:
            with ExitStack() as stack:
                loaded = {name: stack.enter_context(load(sides[name])) for name in names}
                for prompt in fitting:
                    for name, llm in loaded.items():
                        (result,) = llm.generate_batch([prompt], progress=False, **common)
                        totals[name] += result.stats
                        bar.update()
    return {name: Measurement(len(fitting), total) for name, total in totals.items()}
