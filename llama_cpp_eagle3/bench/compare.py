"""Several ways of drafting on the same prompts, in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from llama_cpp import llama_model_default_params
from llama_cpp._internals import LlamaModel

from .. import Eagle3Llama
from .._core import read_arch
from ..config.eagle3_options import DraftPaths
from ..draft.kinds import WITHOUT_MODEL, kind_of_source
from ..engine.stats import Stats
from ..log import show_llama_cpp

N_CTX = 512
_N_DRAFTED = 64
"""Room for drafts at the end of an answer."""
_N_CTX_STEP = 256

S = TypeVar("S")


@dataclass
class Config:
    """What is run, and how often."""

    model: str
    draft: DraftPaths
    """The drafters' files; None: the sources need none."""
    settings: list[tuple[str, int]]
    """The sides: ("plain", 0), ("auto", 0) or ("chain", its length)."""
    texts: list[str]
    options: dict[str, Any]
    """Options of `load` for all sides. n_ctx 0: as much as the longest prompt and its answer need."""
    sources: tuple[str, ...]
    """As `draft_sources`."""
    n_predict: int = 128
    n_runs: int = 5
    n_fresh: int = 4
    """Prompts that each side evaluates anew in the first run, which times the first token."""
    temperature: float = 0.0
    """Prompt j is sampled with seed j; 0 is greedy."""


@dataclass
class Side:
    """The results of one way of drafting."""

    name: str
    tokens_per_second: list[float] = field(default_factory=list)
    """Of each run, over all its prompts; evaluating a prompt and the first token do not count."""
    stats: Stats = field(default_factory=Stats)
    """The figures of all runs."""
    t_first: list[float] = field(default_factory=list)
    """Seconds to the first token, of the prompts that were evaluated anew."""


@dataclass
class Result:
    """All sides."""

    sides: list[Side]
    n_different: int
    """Prompts for which a side wrote another text than the first side."""
    draft_type: int | None
    """The ggml type to which the head's matrices were converted; None = as in the file."""
    cpu_kernels: str
    """Which of our kernels multiplied which weights, or why none did."""


class Timed(NamedTuple):
    """One text; its seconds are those from the first token to the last."""

    tokens: list[int]
    seconds: float
    stats: Stats


def compare(config: Config, progress: Callable[[str], None]) -> Result:
    """Run everything. Each engine evaluates a prompt once and then goes on from it in all runs.

    Raises:
        ValueError: a side cannot be run like this, or a prompt and its answer do not fit into the context.
        Eagle3Error: the files do not fit.
    """
    sides = [Side(f"{mode} {n_max}" if n_max else mode) for mode, n_max in config.settings]
    n_tokens, seconds = ([[0.0] * config.n_runs for _ in sides] for _ in range(2))
    expected: dict[int, list[int]] = {}
    different = set()
    with ExitStack() as stack:
        progress("loading")
        engines = _engines(config, stack)
        n_max_auto = max(
            (kind_of_source(name).n_max_auto for name in config.sources if name not in WITHOUT_MODEL), default=0
        )
        prompts = [engines[0].tokenize(text.encode(), special=True) for text in config.texts]

        def run(k: int, j: int, fresh: bool) -> Timed:
            llm, (mode, n_max) = engines[k], config.settings[k]
            if mode != "plain":
                llm.draft, llm.draft_n_max = mode, n_max or n_max_auto
            return generate(llm, prompts[j], config.n_predict, fresh=fresh, temperature=config.temperature, seed=j)

        for k in range(len(sides)):  # to warm up
            run(k, 0, False)
        begin, n_turns = perf_counter(), len(sides) * len(prompts) * config.n_runs
        for n, (k, j, i, fresh) in enumerate(turns(range(len(sides)), len(prompts), config.n_runs, config.n_fresh)):
            left = _left((perf_counter() - begin) * (n_turns / n - 1)) if n >= len(sides) else ""
            progress(f"prompt {j + 1} of {len(prompts)}, run {i + 1} of {config.n_runs}, {sides[k].name}{left}")
            text = run(k, j, fresh)
            n_tokens[k][i] += len(text.tokens) - 1
            seconds[k][i] += text.seconds
            sides[k].stats += text.stats
            if fresh:
                sides[k].t_first.append(text.stats.prefill_seconds)
            if text.tokens != expected.setdefault(j, text.tokens):
                different.add(j)
        for k, side in enumerate(sides):
            side.tokens_per_second = [n / t if t else 0.0 for n, t in zip(n_tokens[k], seconds[k], strict=True)]
        llm = engines[-1]
        return Result(sides, len(different), llm.draft_type if llm.drafters else None, llm.loaded.cpu_kernels_used)


def _left(seconds: float) -> str:
    return f"; {seconds / 60:.0f} min left" if seconds >= 90 else f"; {seconds:.0f} s left"


def turns(settings: Sequence[S], n_prompts: int, n_runs: int, n_fresh: int) -> Iterator[tuple[S, int, int, bool]]:
    """(side, prompt, run, whether the prompt is read anew): prompt by prompt, each run begins with another side."""
    for j in range(n_prompts):
        for i in range(n_runs):
            for k in range(len(settings)):
                yield settings[(k + i) % len(settings)], j, i, i == 0 and j < n_fresh


def context_size(model: str, texts: Sequence[str], n_predict: int, n_ctx: int) -> int:
    """Tokens of the context: n_ctx, or for 0 what the longest prompt and its answer need with their drafts.

    Raises:
        ValueError: n_ctx is too little.
        ModelFileError: there is no such model.
    """
    read_arch(model)
    show_llama_cpp(False)
    params = llama_model_default_params()
    params.vocab_only = True
    # no Llama: its context would warn that a vocabulary was trained for no text
    with closing(LlamaModel(path_model=model, params=params, verbose=False)) as vocabulary:
        tokens = (vocabulary.tokenize(text.encode(), add_bos=True, special=True) for text in texts)
        longest = max(map(len, tokens), default=0)
    if n_ctx == 0:
        return max(N_CTX, math.ceil((longest + n_predict + _N_DRAFTED) / _N_CTX_STEP) * _N_CTX_STEP)
    if longest + n_predict > n_ctx:
        raise ValueError(
            f"the longest prompt has {longest} tokens and its answer up to {n_predict}, the context {n_ctx}: give a "
            "larger -c, or leave it out"
        )
    return n_ctx


def load(
    model: str, head: DraftPaths, n_threads: int, n_gpu_layers: int = 0, n_ctx: int = N_CTX, **options: Any
) -> Eagle3Llama:
    """Load an engine. n_ctx: of context and batch, so that a prompt is one batch. options: more of `Eagle3Llama`'s.

    Without a head nothing drafts unless draft_sources names it.
    """
    if not head:
        options.setdefault("draft_sources", ())
    size = {"n_ctx": n_ctx, "n_batch": n_ctx, "n_ubatch": 512, "n_threads": n_threads, "n_threads_batch": n_threads}
    settings: dict[str, Any] = {"n_gpu_layers": n_gpu_layers, "verbose": False, **size, **options}
    return Eagle3Llama(model, head, **settings)


def _engines(config: Config, stack: ExitStack) -> list[Eagle3Llama]:
    """The engine of each side; all sides that draft share one. They are closed with `stack`."""
    n_ctx = context_size(config.model, config.texts, config.n_predict, config.options["n_ctx"])

    def load_one(head: DraftPaths, **options: Any) -> Eagle3Llama:
        options = {**config.options, "n_ctx": n_ctx, **options}
        return stack.enter_context(closing(load(config.model, head, **options)))

    engines = {}
    if any(mode == "plain" for mode, _ in config.settings):
        engines["plain"] = load_one(None)
    drafting = [s for s in config.settings if s[0] != "plain"]
    if drafting:
        mode, n_max = max(drafting, key=lambda s: (s[0] == "auto", s[1]))  # the setting that needs the most room
        llm = load_one(config.draft, draft=mode, draft_n_max=n_max or None, draft_sources=config.sources)
        if mode == "auto":
            llm.calibrate()  # while the context is empty; the type that it gives to the head is then that of all sides
        engines |= dict.fromkeys(("auto", "chain"), llm)
    return [engines[mode] for mode, _ in config.settings]


def generate(
    llm: Eagle3Llama,
    prompt: Sequence[int],
    n_predict: int,
    *,
    fresh: bool = True,
    temperature: float = 0.0,
    seed: int = 0,
) -> Timed:
    """Generate up to the end of the text. fresh: evaluate the prompt anew even if the context begins with it."""
    if fresh:
        llm.reset()
    llm.set_seed(seed)
    generator = llm.generate(prompt, temp=temperature)
    tokens = [next(generator)]
    eos, start = llm.token_eos(), perf_counter()
    for token in islice(generator, n_predict - 1):
        tokens.append(token)
        if token == eos:
            break
    generator.close()
    return Timed(tokens, perf_counter() - start, llm.last_stats)
