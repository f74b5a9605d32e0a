"""Several ways of drafting on the same prompts, in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from llama_cpp import Llama

from .. import Eagle3Llama
from ..engine.stats import Stats
from ..ggml_types import type_name
from .figures import Spread, table
from .settings import Setting

N_CTX = 512
_N_DRAFTED = 64
"""Room for drafts at the end of an answer."""
_N_CTX_STEP = 256


@dataclass
class Config:
    """What is run, how often."""

    model: str
    draft: str
    settings: list[Setting]
    texts: list[str]
    sources: tuple[str, ...]
    """What may draft, as `draft_sources`."""
    n_threads: int
    n_predict: int = 128
    n_runs: int = 5
    n_fresh: int = 1
    """Prompts that each side evaluates anew in the first run, which times the first token; others only once."""
    n_gpu_layers: int = 0
    n_ctx: int = 0
    """0 = as much as the longest prompt and its answer need."""
    cpu_kernels: str = "auto"
    """As of `Eagle3Llama`."""
    temperature: float = 0.0
    """Prompt j is sampled with seed j; 0 is greedy."""


@dataclass
class Side:
    """What one way of drafting took."""

    setting: Setting
    tokens_per_second: list[float] = field(default_factory=list)
    """Of each run, all its prompts together; without the prompts and the token that each yields."""
    stats: Stats = field(default_factory=Stats)
    """Of all runs."""
    t_first: list[float] = field(default_factory=list)
    """Seconds to the first token, of the prompts that were evaluated anew."""


@dataclass
class Result:
    """All sides."""

    config: Config
    sides: list[Side]
    n_different: int
    """Prompts to which a side wrote another text than the first one."""
    draft_type: int | None
    """The ggml type to which the head's matrices were converted; None = as in the file."""
    cpu_kernels: str
    """Which of our kernels multiplied which weights, or why none did."""

    def as_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {
            **{name: value for name, value in asdict(self.config).items() if name not in ("settings", "texts")},
            "n_prompts": len(self.config.texts),
            "n_different": self.n_different,
            "draft_type": self.draft_type,
            "cpu_kernels": self.cpu_kernels,
            "sides": [{"name": side.setting.name, **asdict(side)} for side in self.sides],
        }


@dataclass(frozen=True)
class Timed:
    """One text."""

    tokens: list[int]
    seconds: float
    """From the first token to the last."""
    stats: Stats


def compare(config: Config, progress: Callable[[str], None]) -> Result:
    """Run everything.

    Each engine evaluates a prompt once and then goes on from it in all runs.

    Raises:
        ValueError: a side cannot be run like this, or a prompt and its answer do not fit into the context.
        Eagle3Error: the files do not fit.
    """
    config = replace(config, n_ctx=context_size(config.model, config.texts, config.n_predict, config.n_ctx))
    sides = {s: Side(s) for s in config.settings}
    times: dict[Setting, list[list[Timed]]] = {s: [[] for _ in range(config.n_runs)] for s in config.settings}
    different = set()
    with ExitStack() as stack:
        progress("loading")
        engines = _engines(config, stack)
        llm = next(iter(engines.values()))
        prompts = [llm.tokenize(text.encode(), special=True) for text in config.texts]

        def run(s: Setting, j: int, fresh: bool) -> Timed:
            s.apply(engines[s], config.sources)
            t = config.temperature
            return generate(engines[s], prompts[j], config.n_predict, fresh=fresh, temperature=t, seed=j)

        for s in config.settings:  # to warm up
            run(s, 0, False)
        for s, j, i, fresh in turns(config.settings, len(prompts), config.n_runs, config.n_fresh):
            progress(f"prompt {j + 1} of {len(prompts)}, run {i + 1} of {config.n_runs}, {s.title}")
            found = run(s, j, fresh)
            times[s][i].append(found)
            if fresh:
                sides[s].t_first.append(found.stats.prefill_seconds)
            if found.tokens != times[config.settings[0]][0][j].tokens:
                different.add(j)
        llm = engines[config.settings[-1]]
        draft_type, kernels = llm.draft_type if llm.drafters else None, llm.loaded.cpu_kernels_used
    for s, runs in times.items():
        for texts in runs:
            n_tokens, seconds = sum(len(t.tokens) - 1 for t in texts), sum(t.seconds for t in texts)
            sides[s].tokens_per_second.append(n_tokens / seconds if seconds else 0.0)
            sides[s].stats += sum((t.stats for t in texts), Stats())
    return Result(config, list(sides.values()), len(different), draft_type, kernels)


def turns(
    settings: Sequence[Setting], n_prompts: int, n_runs: int, n_fresh: int
) -> Iterator[tuple[Setting, int, int, bool]]:
    """(side, prompt, run, whether the prompt is read anew): prompt by prompt, each run begins with another side."""
    for j in range(n_prompts):
        for i in range(n_runs):
            for k in range(len(settings)):
                yield settings[(k + i) % len(settings)], j, i, i == 0 and j < n_fresh


def context_size(model: str, texts: Sequence[str], n_predict: int, n_ctx: int) -> int:
    """Tokens of the context: n_ctx, or for 0 what the longest prompt and its answer need with their drafts.

    Raises:
        ValueError: n_ctx is too little.
    """
    with closing(Llama(model, vocab_only=True, verbose=False)) as llm:
        longest = max((len(llm.tokenize(text.encode(), special=True)) for text in texts), default=0)
    if n_ctx == 0:
        return max(N_CTX, math.ceil((longest + n_predict + _N_DRAFTED) / _N_CTX_STEP) * _N_CTX_STEP)
    if longest + n_predict > n_ctx:
        raise ValueError(
            f"the longest prompt has {longest} tokens and its answer up to {n_predict}, the context {n_ctx}: give a "
            "larger -c, or leave it out"
        )
    return n_ctx


def load(
    model: str, head: str | None, n_threads: int, n_gpu_layers: int = 0, n_ctx: int = N_CTX, **options: Any
) -> Eagle3Llama:
    """An engine. n_ctx: of context and batch, so that a prompt is one batch. options: more of `Eagle3Llama`'s."""
    settings: dict[str, Any] = {
        "draft_model_path": head,
        "n_ctx": n_ctx,
        "n_batch": n_ctx,
        "n_ubatch": 512,
        "n_gpu_layers": n_gpu_layers,
        "n_threads": n_threads,
        "n_threads_batch": n_threads,
        "verbose": False,
        **options,
    }
    return Eagle3Llama(model, **settings)


def load_largest(
    settings: Sequence[Setting], sources: Sequence[str], load: Callable[..., Eagle3Llama]
) -> Eagle3Llama | None:
    """One engine for all sides that draft, with room for the largest of them; None: none drafts.

    load: makes an engine of such options of `Eagle3Llama`.
    """
    sides = [s for s in settings if s.kind != "plain"]
    if not sides:
        return None
    largest = max(sides, key=lambda s: (s.kind == "tree", s.n_tokens, s.kind == "auto", s.is_auto, s.n_max))
    options = largest.load_options(sources)
    if largest.kind == "tree":  # recurrent targets keep as many states as the longest path is deep
        depth = max(max(s.depth, s.n_max) for s in sides)
        options |= {"draft_tree_depth": depth, "draft_tree_tokens": max(largest.n_tokens, depth)}
    llm = load(**options)
    if any(s.is_auto for s in sides):
        llm.calibrate()  # while the context is empty; the type that it gives to the head is then that of all sides
    return llm


def _engines(config: Config, stack: ExitStack) -> dict[Setting, Eagle3Llama]:
    """The engine of each side; they are closed with `stack`."""

    def load_with(head: str | None, **options: Any) -> Eagle3Llama:
        size = config.n_threads, config.n_gpu_layers, config.n_ctx
        return stack.enter_context(closing(load(config.model, head, *size, cpu_kernels=config.cpu_kernels, **options)))

    load_drafted = partial(load_with, config.draft)
    largest = load_largest(config.settings, config.sources, load_drafted)
    engines = {}
    for s in config.settings:
        if s.kind == "plain" or largest is None:
            engines[s] = load_with(None)
        elif s.kind in ("head", "text"):  # a policy that learns from nothing else
            engines[s] = load_drafted(**s.load_options(config.sources))
        else:
            engines[s] = largest
    return engines


def generate(
    llm: Eagle3Llama,
    prompt: Sequence[int],
    n_predict: int,
    *,
    fresh: bool = True,
    stop: bool = True,
    clock: Callable[[], float] = perf_counter,
    temperature: float = 0.0,
    seed: int = 0,
    on_first: Callable[[], None] = lambda: None,
) -> Timed:
    """Generate, by default greedily.

    Args:
        llm: what `load` gave.
        prompt: tokens.
        n_predict: tokens to generate, at most.
        fresh: evaluate the prompt anew even if it is what the context begins with.
        stop: end with the text.
        clock: seconds, of the wall or of the processor.
        temperature: with llama.cpp's default samplers; 0 is greedy.
        seed: of sampled text.
        on_first: called after the first token.
    """
    if fresh:
        llm.reset()
    llm.set_seed(seed)
    generator = llm.generate(prompt, temp=temperature)
    tokens = [next(generator)]
    on_first()
    eos, start = llm.token_eos(), clock()
    for token in islice(generator, n_predict - 1):
        tokens.append(token)
        if stop and token == eos:
            break
    generator.close()
    seconds = clock() - start
    return Timed(tokens, seconds, llm.last_stats)


def markdown(result: Result) -> str:
    """The table, with a line on what it shows."""
    config = result.config
    plain = next((side for side in result.sides if side.setting.kind == "plain"), None)
    head = ["", "tokens/s", "of plain", "mean acceptance length", "accepted per position, %", "first token, ms"]
    draw = f"temperature {config.temperature:g}" if config.temperature > 0.0 else "greedy"
    text = [
        f"{len(config.texts)} prompts, {config.n_predict} tokens each, {draw}; medians of {config.n_runs} interleaved "
        f"runs (lowest - highest). Prompts to which the sides wrote different texts: {result.n_different}.",
        "" if result.draft_type is None else f"The head was converted to {type_name(result.draft_type)}.",
        f"CPU kernels: {result.cpu_kernels}." if result.cpu_kernels else "",
    ]
    rows = [_row(side, plain) for side in result.sides]
    return f"{table([*head, 'drafter, ms a step', 'verify, ms a step'], rows)}\n\n{' '.join(filter(None, text))}"


def _row(side: Side, plain: Side | None) -> list[str]:
    stats, speed = side.stats, Spread.of(side.tokens_per_second)
    ms_a_step = 1e3 / max(stats.steps, 1)
    return [
        side.setting.title,
        speed.text(1),
        f"{speed.median / Spread.of(plain.tokens_per_second).median:.2f}" if plain else "",
        f"{stats.mean_acceptance_length:.2f}",
        " ".join(f"{100 * rate:.0f}" for rate in stats.acceptance_rate_per_position),
        Spread.of(side.t_first).text(0, 1e-3) if side.t_first else "",
        f"{ms_a_step * stats.draft_seconds:.2f}" if stats.drafted else "",
        f"{ms_a_step * stats.verify_seconds:.1f}",
    ]
