"""Load tiny pairs, and compare their texts with plain llama_cpp's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import placement
from dice import DiceLlama
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.draft.costs import Costs, DraftCosts
from llama_cpp_eagle3.draft.kinds.mtp import has_block
from llama_cpp_eagle3.engine.draft import Draft
from tolerance import of_target

# One thread each: tiny models gain nothing from more, and several test processes may share two cores.
# A cache in F32: rounding to F16 makes logits of different batch shapes differ in the fourth digit.
OPTIONS: dict[str, Any] = {
    "verbose": False,
    "n_ctx": 512,
    "n_threads": 1,
    "n_threads_batch": 1,
    "seed": 1,
    "type_k": 0,
    "type_v": 0,
}


def path_of(model: Any) -> str:
    """Return the path of a model that is given as such, or as tests/tiny or the package describe it."""
    return str(getattr(model, "path", model))


def load(target: Any, head: Any = None, **options: Any) -> Eagle3Llama:
    """Load quietly, with one thread. Without a head n-grams draft only if the options name a way to draft."""
    draft: dict[str, Any] = (
        {} if head is None else {"draft_model_path": path_of(head), "draft_type_k": 0, "draft_type_v": 0}
    )
    if head is not None and not any(name.startswith(("draft_tree", "draft_n_max")) for name in options):
        draft["draft"] = "chain"  # the choices of "auto" depend on the machine
    if head is None and not any(name.startswith("draft") for name in options) and not has_block(path_of(target)):
        draft["draft_sources"] = ()  # so do n-grams, which draft in it
    return Eagle3Llama(path_of(target), **OPTIONS | draft | placement.load_options(head is not None) | options)


def load_plain(target: Any, **options: Any) -> llama_cpp.Llama:
    """Load the target in plain llama_cpp, with the same options."""
    return llama_cpp.Llama(path_of(target), **OPTIONS | options)


def load_dice(target: Any, **options: Any) -> DiceLlama:
    """Load the target in plain llama_cpp that draws with NumPy's noise."""
    return DiceLlama(path_of(target), **OPTIONS | options)


def take(llm: llama_cpp.Llama, prompt: Sequence[int], n: int, **options: Any) -> list[int]:
    """Return the first n tokens, greedy by default."""
    stream = llm.generate(list(prompt), **{"temp": 0.0} | options)
    with closing(stream):
        return list(islice(stream, n))


def finish(llm: Eagle3Llama) -> None:
    """Run the engine's steps until all texts have ended."""
    while llm.engine.has_work:
        llm.engine.step()


def cheap_rows(llm: Eagle3Llama) -> None:
    """Set the costs of rows to nothing, so that all drafts are verified."""
    flat = dict.fromkeys((1, 8, 32, 64), 1e5)
    drafts = (DraftCosts({1: 1.0}, {1: 1.0}),) * len(llm.drafters)
    target = llm.engine.target
    top_k = 3 if target.n_leaves_max > 1 else 1
    limits = {"n_max": 16, "n_nodes_max": 24, "top_k": top_k, "uniform": not target.is_pooled}
    llm.engine.drafting.learn(Costs(flat, drafts).priced(), **limits)


class Drafts:
    """Drafts in place of the head's: `draft(id_last, n_room)` for the one sequence of a generation."""

    def __init__(self, draft: Callable[[int, int], Draft]):
        self.draft = draft

    def __call__(self, sequences: Sequence[Any], n_rooms: Sequence[int]) -> list[Draft]:
        return [self.draft(s.tokens[-1], n_room) for s, n_room in zip(sequences, n_rooms, strict=True)]


def prompts(n: int, n_vocab: int = 256, length: tuple[int, int] = (3, 40), seed: int = 0) -> list[list[int]]:
    """Return random prompts of random lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n_vocab, rng.integers(*length)).tolist() for _ in range(n)]


def logits_at(llm: llama_cpp.Llama, tokens: Sequence[int], n_rows: int | None = None) -> np.ndarray:
    """Return the logits after these tokens in plain llama_cpp, in passes of n_rows (None: as large as they can be)."""
    llm.reset()
    for i in range(0, len(tokens), n_rows or len(tokens)):
        llm.eval(list(tokens[i : i + (n_rows or len(tokens))]))
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), shape=(llm.n_vocab(),)).copy()


def gap_at(llm: llama_cpp.Llama, tokens: Sequence[int]) -> float:
    """Return the gap between the two best logits after these tokens, in plain llama_cpp."""
    second, first = np.partition(logits_at(llm, tokens), -2)[-2:]
    return float(first - second)


def is_tie(reference: llama_cpp.Llama, prompt: Sequence[int], expected: list[int], found: list[int]) -> bool:
    """Return False if both are equal, True if they part where the reference's best two logits are equal up to rounding.

    Rounding is the difference of plain llama_cpp's own logits between passes of one row and of many: its kernels for
    one row and for several sum in another order. On a CPU without AVX-512 that is up to 0.004 with F16 weights. Where
    ours runs on Vulkan it is that device's, if that is more.

    Anything else fails the test. After a tie the texts are different, so that there is nothing left to compare.
    """
    assert len(expected) == len(found)
    if expected == found:
        return False
    i = next(i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
    tokens = [*prompt, *expected[:i]]
    together = logits_at(reference, tokens)
    gap = float(np.max(together) - together[found[i]])
    if gap >= (of_target(1e-3) if placement.is_vulkan() else 1e-3):
        rounding = float(np.abs(together - logits_at(reference, tokens, n_rows=1)).max())
        if gap >= rounding:
            pytest.fail(
                f"token {i} is {found[i]} instead of {expected[i]}, its logit is {gap:.4f} below the best, "
                f"rounding is {rounding:.4f}"
            )
    return True


def bundled_pair() -> tuple[Path, Path]:
    """Return the bundled pair; a test without it is skipped."""
    try:
        from llama_cpp_eagle3.models import bundled_pair as find

        return find()
    except (ImportError, FileNotFoundError) as e:
        pytest.skip(f"no bundled pair: {e}")
