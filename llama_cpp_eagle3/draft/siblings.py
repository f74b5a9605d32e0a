"""The smallest model of a target's family, which drafts without training: one table, and what each brings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .._core import TargetInfo, has_nearly
from .costs.best_chain import BestChain, best_length

ASSUMED, MEASURED = 0.6, 0.78
"""Probability that a drafted token is accepted if those before it were: assumed, and that of one pair which was run."""
_PER_ROW = 0.2 / 3
"""Share of a pass that each further row adds: four rows take 1.2 passes with our CPU kernels."""
_ABOVE_BYTES = 1.2
"""A step of a small model takes so many times as long as reading its weights at the target's speed."""
_WORTH = 1.05


@dataclass(frozen=True, slots=True)
class Sibling:
    """A small model, and the targets that it drafts for."""

    family: str
    title: str
    repo: str
    """Its repository with GGUF files on the Hugging Face hub."""
    licence: str
    archs: tuple[str, ...]
    """Architectures of the targets."""
    name: str
    """A regular expression for their `general.name`."""
    n_vocab: int
    n_bytes: int
    """What drafting a token reads: the weights of its layers in Q4_0, and the output's rows that are drafted."""
    acceptance: float = ASSUMED

    def fits(self, target: TargetInfo) -> bool:
        """Whether it is of the target's family, by its architecture, name and number of tokens."""
        return target.arch in self.archs and has_nearly(self.n_vocab, target.n_vocab) and self.is_named(target)

    def is_named(self, model: TargetInfo) -> bool:
        """Whether a model has a name of the family."""
        return re.search(self.name, model.name, re.IGNORECASE) is not None

    def brings(self, n_bytes: int, pass_of: Callable[[int], float] | None = None) -> BestChain:
        """What it is expected to bring to a target: computed, not measured.

        n_bytes: of the target's weights that a pass reads. pass_of: time of a pass over n rows, in passes over one;
        None: that of our CPU kernels.
        """
        drafted = _ABOVE_BYTES * self.n_bytes / max(1, n_bytes)

        def step(n: int, _: float) -> float:
            return (1.0 + _PER_ROW * n if pass_of is None else pass_of(n + 1)) + n * drafted

        return best_length(self.acceptance, 1.0, step)


SIBLINGS = (
    Sibling(
        "Qwen2.5-Coder", "Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "Apache 2.0",
        ("qwen2",), r"qwen[ _-]?2\.5[ _-]?coder", 151936, 218_000_000, MEASURED,
    ),
    Sibling(
        "Qwen2.5", "Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Apache 2.0",
        ("qwen2",), r"qwen[ _-]?2\.5(?![ _-]?coder)", 151936, 218_000_000,
    ),
    Sibling(
        "Qwen3", "Qwen3-0.6B", "unsloth/Qwen3-0.6B-GGUF", "Apache 2.0",
        ("qwen3", "qwen3moe"), r"qwen[ _-]?3(?!\.)", 151936, 267_000_000,
    ),
    Sibling(
        "Qwen3.5", "Qwen3.5-0.8B", "unsloth/Qwen3.5-0.8B-GGUF", "Apache 2.0",
        ("qwen35", "qwen35moe"), r"qwen[ _-]?3\.[5-9]", 248320, 300_000_000,
    ),
    Sibling(
        "Llama 3.x", "Llama-3.2-1B-Instruct", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama 3.2",
        ("llama",), r"llama", 128256, 585_000_000,
    ),
    Sibling(
        "Gemma 3", "gemma-3-270m-it", "unsloth/gemma-3-270m-it-GGUF", "Gemma",
        ("gemma3",), r"gemma", 262144, 68_000_000,
    ),
    Sibling(
        "SmolLM2", "SmolLM2-135M-Instruct", "bartowski/SmolLM2-135M-Instruct-GGUF", "Apache 2.0",
        ("llama",), r"smol[ _-]?lm[ _-]?2", 49152, 76_000_000,
    ),
    Sibling(
        "Granite 4", "granite-4.0-350m", "ibm-granite/granite-4.0-350m-GGUF", "Apache 2.0",
        ("granite", "granitemoe", "granitehybrid"), r"granite[ _-]?4", 100352, 160_000_000,
    ),
    Sibling(
        "LFM2", "LFM2-350M", "LiquidAI/LFM2-350M-GGUF", "LFM Open License 1.0",
        ("lfm2", "lfm2moe"), r"lfm[ _-]?2", 65536, 180_000_000,
    ),
    Sibling(
        "Mistral Small, Devstral, Magistral",
        "Mistral-Small-3.1-DRAFT-0.5B", "alamios/Mistral-Small-3.1-DRAFT-0.5B-GGUF", "Apache 2.0",
        ("llama", "mistral3"), r"(mistral|devstral|magistral)", 131072, 218_000_000,
    ),
)  # fmt: skip
"""By family; the first one that fits counts."""


def find_sibling(target: TargetInfo) -> Sibling | None:
    """The sibling of a target; None: the table has none."""
    return next((sibling for sibling in SIBLINGS if sibling.fits(target)), None)


def is_family(target: TargetInfo, small: TargetInfo) -> bool:
    """Whether a small model that has the target's tokens is of its family too: by architecture, or by the table."""
    sibling = find_sibling(target)
    return small.arch == target.arch or (sibling is not None and sibling.is_named(small))


def advice(target: TargetInfo, n_bytes: int, pass_of: Callable[[int], float] | None = None) -> str:
    """What a drafter with weights would add to n-grams, in one sentence. n_bytes, pass_of: see `Sibling.brings`."""
    sibling = find_sibling(target)
    head = "a head that was trained for it (docs/pairs.md lists some, `train` makes one) drafts cheaper"
    if sibling is None:
        return f"no small model of its family is known (docs/pairs.md); {head}"
    if "moe" in target.arch:  # a pass reads a part of the experts, and more rows read more of them
        gain = "a mixture of experts gains less than a dense model: `doctor --measure` shows it"
    else:
        found = sibling.brings(n_bytes, pass_of)
        gain = (
            f"computed: {found.speedup:.1f} times plain decoding with drafts of {found.n_draft}, if "
            f"{100 * sibling.acceptance:.0f} % of the tokens are accepted"
            if found.speedup >= _WORTH
            else "computed: this model is too small to gain by it"
        )
    return f"its family's small model, {sibling.title}, would draft too: -hfd auto fetches it ({gain}); {head}"
