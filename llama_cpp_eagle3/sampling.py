"""How one token is drawn from a row of logits: by the chain that Llama builds, or by argmax where that is the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import LlamaGrammar, LogitsProcessorList, llama_cpp

from ._core import Target

Draw = Callable[[int], int]
"""Draw a token from the logits of a batch row; the chain sees every token that is drawn, in order."""


class CheckedProcessors:
    """Logits processors whose exception is kept: ctypes would only print it."""

    def __init__(self, processors: Iterable[Callable[..., Any]]):
        self.processors = list(processors)
        self.error: BaseException | None = None

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        """Apply all processors in turn; after the first error do nothing."""
        if self.error is None:
            try:
                for processor in self.processors:
                    scores[:] = processor(input_ids, scores)
            except BaseException as e:
                self.error = e
        return scores

    def check(self) -> None:
        """Raise what a processor raised."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def as_list(self) -> LogitsProcessorList:
        """The form that `Llama._init_sampler` takes."""
        return LogitsProcessorList([self])


def changes_logits(repeat_penalty: float, frequency_penalty: float, presence_penalty: float, **options: Any) -> bool:
    """Whether the chain begins with something that makes other logits of them: penalties, a grammar, processors."""
    return bool(
        repeat_penalty != 1.0
        or frequency_penalty != 0.0
        or presence_penalty != 0.0
        or options.get("grammar") is not None
        or options.get("logits_processor")
    )


def n_best_needed(temp: float, top_k: int, mirostat_mode: int, **options: Any) -> int:
    """How many of the best logits a chain looks at that does not change them; 0 if it needs all of them."""
    if temp == 0.0:
        return 1
    return max(0, top_k) if temp > 0.0 and mirostat_mode == 0 else 0


def chain_draw(target: Target, sampler: Any, processors: CheckedProcessors | None, n_best: int = 0) -> Draw:
    """Draw through a `llama_cpp._internals.LlamaSampler`, which looks at the n_best best logits (0 = all)."""
    address = int(ctypes.cast(sampler.sampler, ctypes.c_void_p).value or 0)
    sample = target.sample
    if processors is None:
        # the default argument keeps the sampler, which owns the chain, alive
        return lambda row, _owner=sampler: sample(address, row, n_best)  # type: ignore[misc]

    def draw(row: int, _owner: Any = sampler) -> int:
        token = sample(address, row)
        processors.check()
        return token

    return draw


def foreign_draw(draw: Draw, sampler: Any, ctx: Any) -> Draw:
    """Draw the first token from a decode that was not ours (row -1), all others with `draw`."""
    return lambda row: draw(row) if row >= 0 else int(sampler.sample(ctx))


def check_grammar(vocab: Any, grammar: LlamaGrammar | None) -> None:
    """Refuse a grammar that llama.cpp cannot parse: in a chain it would be a null pointer."""
    if grammar is None:
        return
    probe = llama_cpp.llama_sampler_init_grammar(vocab, grammar._grammar.encode(), grammar._root.encode())
    if not probe:
        raise ValueError(f"llama.cpp cannot parse the grammar (its log says where):\n{grammar._grammar}")
    llama_cpp.llama_sampler_free(probe)
