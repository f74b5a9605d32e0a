"""Llama's own context: the sequence behind `eval`, `generate`, `n_tokens`, `input_ids` and `scores`.

It is a sequence like any other, in slot 0 between calls. A call between two tokens of a generator may change it; the
generator then continues only if its own tokens are still there. The caller holds the model's guard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import LlamaState

from ._core import Guard
from .engine import DraftSettings, Engine, Media, Request, SamplerChain, ScheduledSequence, Sequence
from .errors import ContextFullError, Eagle3Error
from .loaded_model import LoadedModel
from .stats import Stats

_SEQ_ID = 0
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class Generation:
    """One call of `generate`."""

    chain: SamplerChain
    draft: DraftSettings
    stop: Callable[..., Any] | None
    """Stopping criteria: (tokens, logits) -> whether the token that was drawn ends the text unseen."""
    tokens: list[int] = field(default_factory=list)
    """Prompt, and what was generated and sent since."""


class Context:
    """The sequence with the arrays that mirror it position by position."""

    def __init__(self) -> None:
        self.sequence = Sequence(Request([]), max_tokens=_NO_LIMIT, draft=DraftSettings())
        self.engine: Engine | None = None  # until the model is loaded
        self._loaded: LoadedModel | None = None
        self.input_ids: npt.NDArray[np.intc] = np.zeros(0, dtype=np.intc)
        self.scores: npt.NDArray[np.single] = np.zeros((0, 0), dtype=np.single)
        self.last_token_drafted = False
        self._stats_before = Stats()
        self._driver: Generation | None = None
        self._n_mirrored = 0
        self._is_being_filled = False

    @property
    def n_tokens(self) -> int:
        """Tokens that target and draft have evaluated."""
        return self.sequence.n_past

    def set_n_tokens(self, n: int) -> None:
        """Go back to fewer tokens; more tokens were decoded by the user, outside of the engine."""
        sequence, engine = self.sequence, self.engine
        if engine is None or self._is_being_filled or n == sequence.n_past:
            return
        self._begin()
        if n > sequence.n_past:
            sequence.tokens = self.input_ids[:n].tolist()
            engine.decoded_elsewhere(sequence, n, _SEQ_ID)
        else:
            del sequence.tokens[n:]
            sequence.n_past, sequence.n_own = n, min(n, sequence.n_own)
            sequence.rows, sequence.is_dirty = [], True
        self._n_mirrored = n

    def start(self, loaded: LoadedModel, *, logits_all: bool, n_vocab: int) -> None:
        """The model is loaded: evaluate on its engine from now on."""
        self._loaded = loaded
        engine = self.engine = loaded.engine
        if len(self.input_ids) < engine.n_ctx:  # llama.cpp rounds n_ctx up
            self.input_ids = np.zeros(engine.n_ctx, dtype=np.intc)
            if logits_all:
                self.scores = np.ndarray((engine.n_ctx, n_vocab), dtype=np.single)
        self.sequence.logits_all = logits_all

    def close(self) -> None:
        """The model is about to be freed."""
        self.engine = self._loaded = None

    # figures

    @property
    def stats(self) -> Stats:
        """Of the last (or running) generation."""
        return self.sequence.result.stats

    @stats.setter
    def stats(self, stats: Stats) -> None:
        self.sequence.result.stats = stats

    @property
    def total_stats(self) -> Stats:
        """Of everything since the model was loaded."""
        return self._stats_before + self.stats

    def begin_stats(self) -> None:
        """Start new figures, if something was generated since the last call."""
        if self.stats.tokens > 0:
            self._stats_before += self.stats
            self.stats = Stats()

    def begin_run(self, settings: DraftSettings) -> Engine:
        """Start the figures of a generation with these settings; measures what passes cost if they need it.

        Raises:
            ValueError: the settings cannot work.
        """
        assert self._loaded is not None
        calibrate_ns = self._loaded.prepare_drafts(settings)
        self.begin_stats()
        self.stats.calibrate_ns += calibrate_ns
        return self._loaded.engine

    def end_run(self, settings: DraftSettings) -> None:
        """Finish the figures: give the reason if nothing was drafted."""
        if self._loaded is not None:  # a stream may outlive the model
            self._loaded.explain(self.stats, settings)

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
        sequence, engine = self.sequence, self._begin()
        if sequence.n_past + len(tokens) > engine.n_ctx:
            raise ContextFullError(
                f"{len(tokens)} tokens do not fit behind {sequence.n_past}: the context holds {engine.n_ctx}. "
                "Use a larger n_ctx."
            )
        engine.attach(sequence, _SEQ_ID)
        sequence.chain = None
        sequence.tokens += tokens
        sequence.n_prompt, sequence.n_save = len(sequence.tokens), -1
        self._settle()
        while sequence.n_pending:
            self._open()
            engine.commit()

    def eval_media(self, media: Media) -> None:
        """Evaluate an image at the end of the context.

        Raises:
            ContextFullError: it does not fit; nothing is evaluated then.
            ValueError: its rows see each other, and are more than a pass takes; the same.
        """
        sequence, engine = self.sequence, self._begin()
        media.check_fits(engine.n_batch, engine.target.n_ubatch)
        sequence.media = [m for m in sequence.media if m.end <= sequence.n_past] + [media]
        self.eval(media.tokens)

    def sample(self, chain: SamplerChain, position: int | None = None) -> int:
        """Draw one token from the logits of the last token, or of the one at a position.

        Raises:
            ValueError: the last pass did not evaluate that position, or nothing was evaluated at all.
        """
        engine = self._refresh()
        rows, n_past = self.sequence.rows, self.sequence.n_past
        i = (n_past - 1 if position is None else position) - (n_past - len(rows))
        if not 0 <= i < len(rows):
            raise ValueError(f"expected a position that was decoded last, found {position}")
        return int(chain.draw(engine.target, rows[i], self.sequence.tokens))

    def _refresh(self) -> Engine:
        """Evaluate the last token again if its logits are gone: after going back or loading a state."""
        if self.sequence.n_past == 0:
            raise ValueError("expected at least one token to go on from, found none")
        self.eval([])
        engine = self._begin()
        while not self.sequence.rows:  # in several passes where memory goes back far
            self._open()
            engine.commit()
        return engine

    # generating

    def generate(
        self, guard: Guard, begin: Callable[[], Generation], prompt: list[int], reset: bool
    ) -> Generator[int, Any, None]:
        """Yield the tokens that follow a prompt. The consumer may send tokens to be put behind the last one.

        Args:
            guard: held while the engine works, not between two tokens.
            begin: makes the generation, when the first token is asked for; the time it takes is not counted.
            prompt: tokens.
            reset: the prompt is all; else it stands behind what is there.
        """
        generation: Generation | None = None
        run: Generator[int, Any, None] | None = None
        sent: Any = None
        try:
            while True:
                with guard:
                    start = perf_counter_ns()
                    try:
                        if generation is None or run is None:
                            generation = begin()
                            start = perf_counter_ns()
                            run = self._generate(generation, prompt, reset)
                        token = run.send(sent)
                    except StopIteration:
                        return
                    finally:
                        self.stats.total_ns += perf_counter_ns() - start
                sent = yield token
        finally:
            # else another thread uses the engine, and has committed the step
            with guard.if_free() as is_in:
                if is_in and generation is not None:
                    if self._driver is generation:
                        self._begin()  # the context holds everything before the token that came last
                    self.end_run(generation.draft)

    def _generate(self, generation: Generation, prompt: list[int], reset: bool) -> Generator[int, Any, None]:
        sequence, engine = self.sequence, self._begin()
        if not reset:
            prompt = sequence.tokens + prompt
        if not prompt:
            raise ValueError("expected at least one token to go on from, found none")
        if len(prompt) > engine.n_ctx:
            n_held = 0 if reset else sequence.n_past
            raise ContextFullError(
                f"{len(prompt) - n_held} tokens do not fit behind {n_held}: the context holds {engine.n_ctx}. "
                "Use a larger n_ctx."
            )
        generation.tokens = list(prompt)
        self._drive(generation)
        engine.resume(sequence, prompt, _SEQ_ID)
        n = min(self._n_mirrored, sequence.n_past)
        others = np.flatnonzero(self.input_ids[:n] != sequence.tokens[:n])  # it may begin with what others left behind
        self._n_mirrored = int(others[0]) if len(others) else n
        if sequence.logits_all and self._n_mirrored < sequence.n_past:
            engine.go_back(sequence, self._n_mirrored)  # their logits are gone
            self._n_mirrored = min(self._n_mirrored, sequence.n_past)
        while True:
            scheduled = self._open()
            if scheduled.is_done:
                engine.commit()  # more of the prompt is to come
                continue
            while (output := engine.sample(sequence)) is not None:
                token = output.token
                assert token is not None
                self._mirror(scheduled)
                if generation.stop is not None and generation.stop(
                    self.input_ids[: sequence.n_past], engine.target.logits(scheduled.row)
                ):
                    return
                generation.tokens.append(token)
                self.last_token_drafted = output.drafted
                n_past = sequence.n_past
                sent = yield token
                if self._driver is not generation or sequence.n_past != n_past:
                    self._take_back(generation, n_past)
                if sent:
                    generation.tokens += sent
                    engine.commit()
                    sequence.tokens = generation.tokens.copy()
                    sequence.n_prompt = len(sequence.tokens)
                if sequence.scheduled is not scheduled:
                    break  # another call has committed the step
            engine.commit()

    # clearing and saved states

    def clear(self) -> None:
        """Clear the context."""
        if self.engine is not None:
            self._begin()
            self.engine.clear()
        self.sequence.tokens = []
        self.sequence.n_past = self._n_mirrored = 0

    def flush(self) -> Engine:
        """Have the target's memory hold exactly what was evaluated: it is about to be copied."""
        self.eval([])
        engine = self._begin()
        engine.flush()
        return engine

    @contextmanager
    def filling(self, state: LlamaState) -> Iterator[None]:
        """Take over a saved state that the caller loads into the context meanwhile; an error leaves the context empty.

        Raises:
            ValueError: llama.cpp does not take the state.
        """
        self.clear()
        engine = self._begin()
        engine.preempt_all()
        try:
            self._is_being_filled = True  # Llama sets n_tokens, which means nothing then
            try:
                yield
            finally:
                self._is_being_filled = False
            n_tokens = int(state.n_tokens)
            engine.target.set_spans(getattr(state, "spans", []))
            engine.adopt(self.sequence, self.input_ids[:n_tokens].tolist(), _SEQ_ID)
            self._n_mirrored = n_tokens
            draft_state = getattr(state, "draft_state", b"")
            if engine.drafter is not None and draft_state:
                engine.drafter.state_set(draft_state)
        except BaseException as e:
            self.clear()
            engine.target.clear()  # no other sequence has cells, and what is left of the state may be NaN
            if type(e) is RuntimeError:  # llama_cpp's own, without details
                raise ValueError(
                    "llama.cpp does not take the state: it is damaged, or was saved with another model or n_ctx"
                ) from e
            raise

    def _begin(self) -> Engine:
        """Commit the open step and drop pending tokens: another call begins."""
        engine, sequence = self.engine, self.sequence
        assert engine is not None
        self._driver = None
        if sequence.scheduled is not None:
            self._mirror(sequence.scheduled)  # an interrupt may have come in between
        engine.commit()
        del sequence.tokens[sequence.n_past :]
        self._n_mirrored = min(self._n_mirrored, sequence.n_past)
        return engine

    def _settle(self) -> None:
        assert self.engine is not None
        self.engine.settle(self.sequence)
        self._n_mirrored = min(self._n_mirrored, self.sequence.n_past)

    def _drive(self, generation: Generation) -> None:
        sequence = self.sequence
        self._driver = generation
        sequence.chain, sequence.draft = generation.chain, generation.draft
        sequence.wants_logits = generation.stop is not None or sequence.logits_all

    def _open(self) -> ScheduledSequence:
        """One pass for this sequence."""
        assert self.engine is not None
        step = self.engine.open(self.sequence)
        assert step is not None
        scheduled = step.scheduled[0]
        self._mirror(scheduled)
        return scheduled

    def _mirror(self, scheduled: ScheduledSequence) -> None:
        """Copy what was evaluated into Llama's arrays."""
        sequence, m = self.sequence, self._n_mirrored
        n = sequence.n_past
        if n <= m:
            return
        if n == m + 1:
            self.input_ids[m] = sequence.tokens[m]
        else:
            self.input_ids[m:n] = sequence.tokens[m:n]
        if sequence.logits_all:
            assert self.engine is not None
            for position in range(max(m, scheduled.n_past), n):
                row = scheduled.first_row + scheduled.path[position - scheduled.n_past]
                self.scores[position] = self.engine.target.logits(row)
        self._n_mirrored = n

    def _take_back(self, generation: Generation, n_past: int) -> None:
        """Another call used the model between two tokens: continue only if the generation's tokens are still there."""
        sequence, engine = self.sequence, self._begin()
        if sequence.n_past < max(n_past, 1) or sequence.tokens[:n_past] != generation.tokens[:n_past]:
            raise Eagle3Error(
                "the model was used for something else while this generator waited, and its tokens are gone. "
                "Save the state before and load it afterwards, or start a new generation."
            )
        self._drive(generation)
        engine.go_back(sequence, n_past)
        sequence.tokens = generation.tokens.copy()
        sequence.n_prompt = min(sequence.n_prompt, len(sequence.tokens) - 1)
        self._n_mirrored = min(self._n_mirrored, sequence.n_past)
