"""Prompts of `generate_batch` as requests of the engine, run to their end; their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from .._core import Guard
from ..engine import DraftSettings, Engine, Media, Request, Sampling, Sequence, State, TokenLogprob
from ..engine.arguments import as_type
from ..engine.stats import Stats
from ..errors import ContextFullError
from ..log import progress_bar
from .context import Context
from .sampling_arguments import SamplingArguments, SamplingDefaults, checked


class PromptOptions(SamplingArguments, total=False):
    """Options of each prompt of `generate_batch`: those of sampling, and the following.

    Attributes:
        max_tokens: tokens to generate at most (default 16); None = as many as the prompt's share of n_ctx holds.
        stop: strings that end a text, and are cut off.
        logprobs: return the log-probability of each token too, and those of so many of the most probable ones.
    """

    max_tokens: int | None
    stop: str | SequenceOf[str] | None
    logprobs: int | None


_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The completion of one prompt of `generate_batch`."""

    prompt_tokens: list[int]
    tokens: list[int]
    """Generated tokens, without the one that ended the text."""
    text: str
    """Text of the tokens, up to a stop string."""
    finish_reason: str
    """ "stop": the model ended the text, or a stop string came up; "length": max_tokens was reached, or the context is
    full; "error": the field `error` says which."""
    stats: Stats
    """Figures of this prompt; the time of shared passes is divided by rows."""
    error: BaseException | None = None
    """The error that ended this prompt, such as one that a logits processor raised."""
    logprobs: list[TokenLogprob] | None = None
    """Log-probabilities of each token, if they were requested."""


BatchStream = Generator[tuple[int, int | None, str], None, list[BatchResult]]
"""Yields (number of the prompt, token, new text); returns the results."""


@contextmanager
def _errors_of(i: int) -> Iterator[None]:
    """Let errors name the prompt by its number."""
    try:
        yield
    except ContextFullError as e:
        raise ContextFullError(f"prompt {i}: {e}") from None
    except ValueError as e:
        raise ValueError(f"prompt {i}: {e}") from None


def make_request(
    i: int,
    tokens: list[int],
    sampling: Sampling,
    *,
    max_tokens: int | None,
    stop: str | SequenceOf[str] | None,
    logprobs: int | None,
    engine: Engine,
    media: SequenceOf[Media] = (),
) -> Request:
    """Check one prompt's arguments, those of `Eagle3Llama.generate_batch`.

    Raises:
        ValueError, ContextFullError: they name the prompt by its number i.
    """
    n_room = engine.n_ctx - len(tokens)
    max_tokens = n_room if max_tokens is None or max_tokens <= 0 else int(max_tokens)
    stops = [stop] if isinstance(stop, str) else list(stop or ())
    request = Request(tokens, sampling, max_tokens=max_tokens, stop=stops, logprobs=logprobs, media=media)
    with _errors_of(i):
        request.check(engine.vocab.n_tokens, engine.n_ctx, engine.n_batch, engine.target)
    if max_tokens > n_room or n_room == 0:
        raise ContextFullError(
            f"prompt {i}: {len(tokens)} tokens and max_tokens={max_tokens} do not fit, the context holds "
            f"{engine.n_ctx}. Use a larger n_ctx."
        )
    return request


def check_options(prompts: Any, options: SequenceOf[PromptOptions] | None, common: PromptOptions) -> None:
    """Check arguments that do not depend on the model.

    Raises:
        TypeError: prompts is one text instead of a list of them; there is an unknown option.
        ValueError: there are not as many options as prompts.
    """
    if isinstance(prompts, (str, bytes)):
        raise TypeError(f"generate_batch() takes a list of prompts, found one {type(prompts).__name__}: pass [text]")
    as_type("prompts", prompts, SequenceOf[Any])
    for given in (common, *(as_type("options", options, SequenceOf[Mapping[str, Any]] | None) or ())):
        unknown = set(given) - set(PromptOptions.__annotations__)
        if unknown:
            raise TypeError(f"generate_batch() got unexpected options {sorted(unknown)}")
    if options is not None and len(options) != len(prompts):
        raise ValueError(f"expected options for each of {len(prompts)} prompts, found {len(options)}")


def make_requests(
    prompts: SequenceOf[str | SequenceOf[int]],
    options: SequenceOf[PromptOptions] | None,
    common: PromptOptions,
    tokens_of: Callable[[str | SequenceOf[int]], list[int]],
    defaults: SamplingDefaults,
    engine: Engine,
) -> list[Request]:
    """Make the requests of `Eagle3Llama.generate_batch`: options in common, and what differs for each prompt.

    Raises:
        ValueError, ContextFullError: they name the prompt by its number.
    """
    requests = []
    for i, prompt in enumerate(prompts):
        with _errors_of(i):
            merged = checked(common if options is None else {**common, **options[i]})
            tokens = tokens_of(as_type("prompt", prompt, str | SequenceOf[int]))
        requests.append(
            make_request(
                i,
                tokens,
                defaults.sampling(merged),
                max_tokens=merged.get("max_tokens", _MAX_TOKENS),
                stop=merged.get("stop"),
                logprobs=merged.get("logprobs"),
                engine=engine,
            )
        )
    return requests


class BatchRun:
    """Requests that an engine is run for until all have ended."""

    def __init__(self, context: Context, requests: SequenceOf[Request], draft: DraftSettings):
        """Add all of them; the model's context gets the figures.

        Raises:
            ValueError: a sampler cannot be built, or the settings cannot work; nothing was added then.
        """
        self._context, self._draft = context, draft
        self.engine = engine = context.begin_run(draft)
        self._calibrate_ns = context.stats.calibrate_ns
        self.sequences: list[Sequence] = []
        try:
            for request in requests:
                sequence = engine.prepare(replace(request, draft=draft))
                engine.submit(sequence)
                self.sequences.append(sequence)
        except BaseException:
            self.drop()
            raise
        self._waiting = deque(self.sequences)
        """Sequences that did not run yet, in the order in which they get slots."""
        self._running: list[Sequence] = []
        self._index = {sequence: i for i, sequence in enumerate(self.sequences)}

    def step(self) -> Iterator[tuple[int, int | None, str]]:
        """One pass: yields (number of the prompt, token, new text)."""
        for output in self.engine.step(self._index):
            yield self._index[output.sequence], output.token, output.text

    def stream(self, guard: Guard, bar: Any, total_ns: int = 0) -> BatchStream:
        """Advance all until they are done; they end when it is left.

        guard: held while the engine works. total_ns: time that was spent on them before.
        """
        try:
            while n_left := self._count_left():
                with guard:
                    start = perf_counter_ns()
                    outputs = list(self.step())
                    total_ns += perf_counter_ns() - start
                if n_ended := n_left - self._count_left():
                    bar.update(n_ended)
                yield from outputs
        finally:
            bar.close()
            with guard.if_free() as is_in:
                if is_in:
                    self.drop()
            for sequence in self.sequences:
                self._context.explain(sequence.result.stats, self._draft)
            stats = sum((sequence.result.stats for sequence in self.sequences), Stats())
            stats.total_ns, stats.calibrate_ns = total_ns, self._calibrate_ns
            self._context.stats = stats
        return self.results()

    def _count_left(self) -> int:
        """Number of prompts that are not done; takes time only for those that run."""
        while self._waiting and self._waiting[0].state is not State.WAITING:
            self._running.append(self._waiting.popleft())
        self._running = [sequence for sequence in self._running if not sequence.is_done]
        return len(self._waiting) + len(self._running)

    def drop(self) -> None:
        """End the sequences that are still running or waiting."""
        left = [sequence for sequence in self.sequences if not sequence.is_done]
        if left:
            self.engine.drop(left)

    def results(self) -> list[BatchResult]:
        """One result per prompt."""
        return [
            BatchResult(
                prompt_tokens=s.tokens[: s.n_prompt],
                tokens=s.generated,
                text=str(s.detokenizer),
                finish_reason=s.result.finish_reason,
                stats=s.result.stats,
                error=s.result.error,
                logprobs=None if s.request.logprobs is None else s.result.logprobs[: len(s.generated)],
            )
            for s in self.sequences
        ]


def run_batch(
    guard: Guard, context: Context, make: Callable[[], SequenceOf[Request]], draft: DraftSettings, progress: bool | None
) -> BatchStream:
    """Make requests when the first token is requested, and run them. progress: a tqdm bar; None = on a terminal."""
    with guard:
        start = perf_counter_ns()
        requests = make()
        total_ns = perf_counter_ns() - start
        run = BatchRun(context, requests, draft)
    return (yield from run.stream(guard, progress_bar(len(requests), "prompt", progress), total_ns))


def run_one(guard: Guard, context: Context, request: Request, draft: DraftSettings) -> tuple[Sequence, Iterator[str]]:
    """Add a request: its sequence, and its text as it comes. An error of the sequence is raised at the end."""
    with guard:
        run = BatchRun(context, [request], draft)

    def texts() -> Iterator[str]:
        for _, _, text in run.stream(guard, progress_bar(1, "prompt", False)):
            yield text
        if run.sequences[0].result.error is not None:
            raise run.sequences[0].result.error

    return run.sequences[0], texts()


def results_of(stream: BatchStream) -> list[BatchResult]:
    """Run a stream to its end."""
    while True:
        try:
            next(stream)
        except StopIteration as e:
            results: list[BatchResult] = e.value
            return results
