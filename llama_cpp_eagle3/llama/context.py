"""Llama's own context: the text that `eval`, `generate`, `n_tokens`, `input_ids` and `scores` use.

It is a client of the engine, with one sequence in slot 0 of which it takes token after token. A call between two tokens
of a generator may change the text; the generator then goes on only if its own tokens are still there. The caller must
hold the model's guard.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
from llama_cpp import LlamaState

from .._core import Guard
from ..engine import (
    DraftSettings,
    Engine,
    Media,
    Output,
    Request,
    SamplerChain,
    Sequence,
    media_tokens,
    n_common,
    token_list,
)
from ..engine.arguments import as_type
from ..engine.stats import Stats
from ..errors import ContextFullError, Eagle3Error
from ..model.loaded import Loaded

_SEQ_ID = 0
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class Generation:
    """One call of `generate`."""

    chain: SamplerChain
    draft: DraftSettings
    stop: Callable[..., Any] | None
    """Stopping criteria: (tokens, logits) -> whether the drawn token ends the text and is not returned."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and text at the time when another call began between two tokens."""


class Context:
    """The sequence, and the arrays that have its tokens and logits position by position."""

    def __init__(self) -> None:
        self.engine: Engine | None = None  # until the model is loaded
        self._loaded: Loaded | None = None
        self.input_ids: npt.NDArray[np.intc] = np.zeros(0, dtype=np.intc)
        self.scores: npt.NDArray[np.single] = np.zeros((0, 0), dtype=np.single)
        self.n_tokens = 0
        """Number of tokens of the context for its user: target and drafters have evaluated them, or will do so next."""
        self.last_token_drafted = False
        self._logits_all = False
        self.sequence = self._new_sequence([])
        self._stats_before = Stats()
        self._driver: Generation | None = None

    def start(self, loaded: Loaded, *, logits_all: bool) -> None:
        """Evaluate on this model's engine from now on."""
        self._loaded, self._logits_all = loaded, logits_all
        engine = self.engine = loaded.engine
        self.input_ids = np.zeros(engine.n_ctx, dtype=np.intc)
        n_rows = engine.n_ctx if logits_all else engine.n_batch
        self.scores = np.ndarray((n_rows, engine.vocab.n_tokens), dtype=np.single)
        self.sequence = self._new_sequence([])

    def close(self) -> None:
        """Must be called before the model is freed."""
        self.engine = self._loaded = None

    def _new_sequence(self, tokens: list[int], media: list[Media] | None = None) -> Sequence:
        """A sequence for these tokens; with logits_all none of them may come from the prefix cache without logits."""
        request = Request(tokens, seq_id=_SEQ_ID, cache_prompt=not self._logits_all, media=media or ())
        sequence = Sequence(request, max_tokens=_NO_LIMIT, draft=DraftSettings(), is_paced=True)
        sequence.logits_all = sequence.wants_logits = self._logits_all
        return sequence

    def _begin_anew(self, tokens: list[int]) -> Sequence:
        """Go on with a new sequence, which has the images and the figures of the last one."""
        media, stats = [m for m in self.sequence.media if m.is_in(tokens)], self.stats
        self.sequence = self._new_sequence(tokens, media)
        self.stats = stats
        return self.sequence

    # figures

    @property
    def stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return self.sequence.result.stats

    @stats.setter
    def stats(self, stats: Stats) -> None:
        self.sequence.result.stats = stats

    @property
    def total_stats(self) -> Stats:
        """Figures of everything since the model was loaded."""
        return self._stats_before + self.stats

    def begin_stats(self) -> None:
        """Start new figures, if something was generated since the last call."""
        if self.stats.tokens > 0:
            self._stats_before += self.stats
            self.stats = Stats()

    def begin_run(self, settings: DraftSettings) -> Engine:
        """Start the figures of a generation with these settings; measures what passes cost if they need it.

        Raises:
            ValueError: the settings are invalid.
        """
        assert self._loaded is not None
        calibrate_ns = self._loaded.have_costs() if settings.mode == "auto" else 0
        self.begin_stats()
        self.stats.calibrate_ns += calibrate_ns
        return self._loaded.engine

    def explain(self, stats: Stats, settings: DraftSettings) -> None:
        """Give the figures of a generation the reason why nothing was drafted, if nothing was."""
        if self.engine is not None:  # a stream may outlive the model
            self.engine.explain(stats, settings)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the tokens evaluated in the block, and its time."""
        start = perf_counter_ns()
        self.begin_stats()
        yield
        self.stats.total_ns += perf_counter_ns() - start

    # evaluating

    def eval(self, tokens: list[int]) -> None:
        """Evaluate tokens at the end of the context.

        Raises:
            ContextFullError: they do not fit; nothing is evaluated then.
        """
        engine, sequence = self._begin()
        self._check_room(len(tokens), self.n_tokens)
        sequence.chain = None
        sequence.tokens += tokens
        sequence.n_prompt, sequence.saves.places = len(sequence.tokens), []
        while sequence.n_pending:
            self._next(engine)
        engine.rewind(sequence, self.n_tokens)

    def eval_media(self, media: Media) -> None:
        """Evaluate an image at the end of the context.

        Raises:
            ContextFullError: it does not fit; nothing is evaluated then.
            ValueError: its rows see each other, and are more than a pass takes; nothing is evaluated then.
        """
        engine, sequence = self._begin()
        media.check_fits(engine.n_batch, engine.target.n_ubatch)
        sequence.media = [m for m in sequence.media if m.end <= self.n_tokens] + [media]
        self.eval(media.tokens)

    def sample(self, chain: SamplerChain, position: int | None = None) -> int:
        """Draw one token from the logits of the last token, or of the one at a position.

        Raises:
            ValueError: the last pass did not evaluate that position, or nothing was evaluated at all.
        """
        if self.n_tokens == 0:
            raise ValueError("expected at least one token to go on from, found none")
        self.eval([])
        engine, sequence = self._begin()
        while not sequence.rows:  # after going back or loading a state: in several passes where memory goes back far
            self._next(engine)
            engine.rewind(sequence, self.n_tokens)
        i = (self.n_tokens - 1 if position is None else position) - (self.n_tokens - len(sequence.rows))
        if not 0 <= i < len(sequence.rows):
            raise ValueError(f"expected a position that was decoded last, found {position}")
        return int(chain.draw(engine.target, sequence.rows[i], sequence.tokens))

    # generating

    def generate(
        self, guard: Guard, begin: Callable[[], Generation], prompt: list[int], reset: bool
    ) -> Generator[int, Any, None]:
        """Yield the tokens that follow a prompt. The consumer may send tokens to be put after the last one.

        guard: held while the engine works, not between two tokens. begin: makes the generation when the first token is
        requested; the time that takes is not counted. reset: the prompt is the whole text; else it is appended.
        """
        generation: Generation | None = None
        sent: Any = None
        try:
            while True:
                with guard:
                    start = perf_counter_ns()
                    try:
                        if generation is None:
                            generation = begin()
                            start = perf_counter_ns()
                            self._start(generation, prompt, reset)
                        elif sent or self._driver is not generation:
                            self._go_on(generation, sent or [])
                        token = self._draw(generation)
                    finally:
                        self.stats.total_ns += perf_counter_ns() - start
                if token is None:
                    return
                sent = yield token
        finally:
            # otherwise another thread uses the engine, and has ended the step
            with guard.if_free() as is_in:
                if is_in and generation is not None:
                    if self._driver is generation:
                        engine, sequence = self._begin()  # it holds everything before the token that came last
                        engine.stepper.keep(sequence)
                    self.explain(self.stats, generation.draft)
                    if self.engine is not None:
                        self.engine.keep()

    def _start(self, generation: Generation, prompt: list[int], reset: bool) -> None:
        """Begin a text: a new sequence that starts from a cached prefix, unless all of it is there with logits."""
        engine, sequence = self._begin()
        held = self.input_ids[: self.n_tokens].tolist()
        if not reset:
            prompt = held + prompt
        if not prompt:
            raise ValueError("expected at least one token to go on from, found none")
        n_before = 0 if reset else self.n_tokens
        self._check_room(len(prompt) - n_before, n_before)
        n = n_common(held, prompt)
        if self._logits_all:
            engine.rewind(sequence, n)
            sequence.tokens += prompt[n:]
        elif not (n == len(held) == len(prompt) and sequence.rows):
            tokens = sequence.tokens[:n] + prompt[n:]
            sequence = self._begin_anew(tokens)
        self.n_tokens = n
        sequence.n_prompt = len(prompt)
        engine.begin_prompt(sequence)
        self._drive(generation)

    def _go_on(self, generation: Generation, sent: list[int]) -> None:
        """Go on after another call, if the generation's tokens are still there, or with tokens of its consumer."""
        engine, sequence = self._begin() if self._driver is not generation else (self.engine, self.sequence)
        assert engine is not None
        if self._driver is not generation:
            tokens = generation.tokens
            n = len(tokens) - 1
            if self.n_tokens < n or sequence.tokens[:n] != tokens[:n]:
                raise Eagle3Error(
                    "the model was used for something else while this generator waited, and its tokens are gone. "
                    "Save the state before and load it afterwards, or start a new generation."
                )
            engine.rewind(sequence, n)
            sequence.tokens.append(tokens[n])
            self.n_tokens = n
            self._drive(generation)
        if sent:
            sent = token_list(sent, engine.vocab.n_tokens)
            engine.rewind(sequence, len(sequence.tokens))
            sequence.tokens += sent
            sequence.n_prompt = len(sequence.tokens)

    def _drive(self, generation: Generation) -> None:
        sequence = self.sequence
        self._driver = generation
        sequence.chain, sequence.draft = generation.chain, generation.draft
        sequence.wants_logits = generation.stop is not None or self._logits_all

    def _draw(self, generation: Generation) -> int | None:
        """The next token; None if stopping criteria end the text with it."""
        engine, sequence = self.engine, self.sequence
        assert engine is not None
        if len(sequence.tokens) > engine.n_ctx:
            self._check_room(sequence.n_pending, self.n_tokens)
        while (output := self._next(engine)) is None:
            pass
        if generation.stop is not None:
            assert sequence.scheduled is not None
            logits = engine.target.logits(sequence.scheduled.row)
            if generation.stop(self.input_ids[: self.n_tokens], logits):
                return None
        self.last_token_drafted = output.drafted
        return output.token

    # clearing and saved states

    def clear(self) -> None:
        """Clear the context."""
        if self.engine is not None:
            self._begin()
            self.engine.clear()
        self._begin_anew([])
        self.n_tokens = 0

    def flush(self) -> Engine:
        """Make the target's memory hold exactly the tokens of the context, before it is copied."""
        self.eval([])
        engine, _ = self._begin()
        engine.flush()
        return engine

    def load(self, state: LlamaState, ctx: Any) -> None:
        """Fill the llama_context with a saved state; an error leaves it empty.

        Raises:
            ValueError: llama.cpp refuses the state.
        """
        self.clear()
        engine, n_tokens = self.engine, int(state.n_tokens)
        assert engine is not None
        engine.preempt_all()
        try:
            data = (ctypes.c_uint8 * len(state.llama_state)).from_buffer_copy(state.llama_state)
            if lib.llama_state_set_data(ctx, data, len(data)) != len(data):
                raise ValueError(
                    "llama.cpp does not take the state: it is damaged, or was saved with another model, n_ctx, type_k, "
                    "type_v or flash_attn; these must be equal"
                )
            for seq_id in range(engine.target.n_seq):  # the state has what other texts held
                if seq_id != _SEQ_ID or not n_tokens:
                    engine.evict_prefix(seq_id)
            engine.target.set_spans(getattr(state, "spans", []))
            draft_state = getattr(state, "draft_state", b"")
            if engine.drafters and draft_state:
                engine.drafters.state_set(draft_state, _SEQ_ID)
            self.input_ids[:n_tokens] = state.input_ids[:n_tokens]
            n_rows = min(len(state.scores), len(self.scores), n_tokens)
            self.scores[:n_rows] = state.scores[:n_rows]
            self.sequence.tokens = self.input_ids[:n_tokens].tolist()
            self.sequence.n_prompt = n_tokens
            if n_tokens:
                engine.decoded_elsewhere(self.sequence, _SEQ_ID, has_row=False)
            self.n_tokens = n_tokens
        except BaseException:
            self.clear()
            engine.target.clear()  # no other sequence has cells, and what is left of the state may be NaN
            raise

    def set_n_tokens(self, n: int) -> None:
        """Go back to fewer tokens; or note more tokens, which the user has decoded outside of the engine."""
        n = as_type("n_tokens", n, int)
        if self.engine is None or n == self.n_tokens:
            return
        if not 0 <= n <= self.engine.n_ctx:
            raise ValueError(f"expected n_tokens in 0..{self.engine.n_ctx}, found {n}")
        engine, sequence = self._begin()
        if n < self.n_tokens:
            engine.rewind(sequence, n)
        else:  # the tokens are not known, so they get ids that no other text has
            sequence.tokens += media_tokens(os.urandom(32), n - self.n_tokens)
            engine.decoded_elsewhere(sequence, _SEQ_ID, has_row=True)
            sequence.n_prompt = n
        self.n_tokens = n

    def _begin(self) -> tuple[Engine, Sequence]:
        """Begin another call: rewind tokens that the consumer of a generation has not taken.

        Tokens that were evaluated before an interrupt and that `n_tokens` does not count are rewound too.
        """
        engine, sequence = self.engine, self.sequence
        assert engine is not None
        if self._driver is not None:
            self._driver.tokens = sequence.tokens.copy()
            self._driver = None
        if sequence.is_done:  # by an error
            sequence = self._begin_anew(sequence.tokens[: self.n_tokens])
        engine.rewind(sequence, self.n_tokens)
        return engine, sequence

    def _next(self, engine: Engine) -> Output | None:
        """One step of the sequence, or one token of the open one."""
        sequence = self.sequence
        try:
            output = engine.next(sequence)
        except BaseException:
            if sequence.is_done and sequence.lacks_media:  # tokens that were decoded outside of the engine are lost
                self.n_tokens = min(self.n_tokens, next(i for i, t in enumerate(sequence.tokens) if t < 0))
            else:
                self._mirror()
            raise
        self._mirror()
        return output

    def _mirror(self) -> None:
        """Copy evaluated tokens and their logits into the arrays."""
        sequence, engine, m = self.sequence, self.engine, self.n_tokens
        n = sequence.n_past
        if n <= m:
            return
        if n == m + 1:
            self.input_ids[m] = sequence.tokens[m]
        else:
            self.input_ids[m:n] = sequence.tokens[m:n]
        scheduled = sequence.scheduled
        if self._logits_all and scheduled is not None:
            assert engine is not None
            for position in range(max(m, scheduled.n_past), n):
                row = scheduled.first_row + scheduled.path[position - scheduled.n_past]
                self.scores[position] = engine.target.logits(row)
        self.n_tokens = n

    def _check_room(self, n: int, n_before: int) -> None:
        assert self.engine is not None
        if n_before + n > self.engine.n_ctx:
            raise ContextFullError(
                f"{n} tokens do not fit after {n_before}: the context holds {self.engine.n_ctx}. Use a larger n_ctx."
            )
