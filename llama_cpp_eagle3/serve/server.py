"""The state that all endpoints share: the model, the engine thread and the queue; and how requests become sequences."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..chat import LeftOut, Loosened
from ..chat.builtin_templates import named_templates
from ..config.serve_options import ServeOptions
from ..draft.learn import Learner
from ..engine import DraftSettings, GrammarError, Request, Shift
from ..errors import ContextFullError
from ..files.line_file import LineWriter
from .answer import Answer
from .api_errors import failed, invalid, too_long
from .embedder import Embedder
from .engine_thread import EngineThread
from .executor import Executor
from .fields import SEED_RANDOM, Completion, draft_of, sampling_of
from .infill import Infill
from .jsons import N_LOGPROBS_MAX
from .metrics import Metrics
from .queue import Queue
from .record import open_record
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..llama import Eagle3Llama

_log = logging.getLogger(__name__)
_N_UNLIMITED = 2**31 - 1  # tokens
_STOP_SECONDS = 20.0
_UNLIMITED_SECONDS = 1e9


class Server:
    """A loaded model, its engine thread and executors."""

    def __init__(self, llm: Eagle3Llama, options: ServeOptions):
        self.llm, self.options, self.engine, self.projector = llm, options, llm.engine, llm.projector
        self.metrics = Metrics(options.model_name)
        self.engine_thread = EngineThread(self.engine, self.metrics)
        self.tokenizer = Tokenizer(self.engine.vocab, self.engine.n_ctx)
        self.engine.vocab.token_tree()  # read now, so that no request waits for it
        self.infill = Infill(self.tokenizer, options.spm_infill)
        self.templates = named_templates(llm.model_address, options.chat_template, options.jinja)
        self.left_out = LeftOut()
        self.left_out_tools = LeftOut("tools of requests, or parts of them, are left out (said once): %s")
        self.ignored = LeftOut("requests have fields that have no effect here, which are ignored (said once): %s")
        self.embedder: Embedder | None = None
        if options.embeddings:
            n_ubatch = llm.context_params.n_ubatch
            self.embedder = Embedder(llm.model_address, llm.model_path, options.pooling, n_ubatch, llm.n_threads)
        limits = options.n_queue_max, options.n_body_max, options.timeout_seconds
        self.queue = Queue(self.engine_thread, self.metrics, *limits)
        self.executor = Executor(options.prepare_seconds)
        self._file_executor = Executor(_UNLIMITED_SECONDS)
        self.recorder: LineWriter[Answer] | None = None
        if options.record is not None:
            self.recorder = open_record(options.record, options.n_record_max, self.tokenizer)

        self.learner: Learner | None = None

    def start(self) -> None:
        """Start the engine thread, in the running loop."""
        self.engine_thread.start(asyncio.get_running_loop())
        if self.llm.keeper is not None:
            self.learner = Learner(
                self.llm.keeper,
                self._use_learned,
                lambda: bool(self.engine_thread.answers or self.queue.n_preparing),
                self.llm.n_threads,
                self.options.learn_share,
                self.options.learn_idle_seconds,
            )
            self.engine_thread.on_submit = self.learner.busy

    def _use_learned(self, version: int, gain: float) -> None:
        """Draft with another head: it is loaded in this thread, and put in its place between two steps."""
        self.engine_thread.call(self.llm.use_learned(version, gain)).result()

    def stop(self) -> None:
        """Cancel all requests and free the model, unless a pass or a request does not end in time."""
        if self.learner is not None:
            self.learner.close()
        has_ended = self.engine_thread.stop()
        if self.recorder is not None:
            self.recorder.close()
        if not has_ended:
            _log.error("a pass does not end: the model is not freed, the process ends with it")
            return
        if not (self.executor.stop(_STOP_SECONDS) and self._file_executor.stop(_STOP_SECONDS)):
            _log.error("a request is still being prepared or a file written: the model is not freed")
            return
        if self.embedder is not None:
            self.embedder.close()
        self.llm.close()

    @property
    def n_slots(self) -> int:
        """Sequences that run at once."""
        return self.engine.target.n_seq

    @property
    def cache_usage(self) -> float:
        """The share of the KV cache that running sequences hold, from 0 to 1. From any thread."""
        slots = self.engine.slots
        users = [user for slot in slots if (user := slot.user) is not None]
        n_cells = self.engine.n_ctx * (1 if self.engine.target.is_pooled else len(slots))
        return min(1.0, sum(user.n_past for user in users) / n_cells)

    def drafting(self) -> dict[str, Any]:
        """Return the default drafting's settings and state, or the reason for none. On the engine's thread."""
        engine = self.engine
        settings: DraftSettings = engine.draft
        state = engine.drafts()
        return {
            "enabled": state.can_draft,
            "reason": state.reason,
            "mode": settings.mode,
            "sources": list(settings.sources),
            "ngram_n_max": settings.ngram_n_max,
            "n_max": settings.n_max,
            "n_min": settings.n_min,
            "p_min": settings.p_min,
            "policy": engine.drafting.policy.stats() if state.by_source else None,
            "plain_tokens_per_second": engine.drafting.plain_tokens_per_second,
            "by_source": {name: asdict(source) for name, source in state.by_source.items()},
        }

    async def run_in_executor(self, function: Any, *args: Any) -> Any:
        """Run a function that reads or writes files in a thread, without a deadline."""
        return await self._file_executor.run(partial(function, *args))

    async def run_on_engine_thread(self, function: Any, seq_id: int | None = None) -> Any:
        """Run a function on the engine thread between two steps; seq_id: wait until this slot is free."""
        if self.engine_thread.failure:
            raise failed(self.engine_thread.failure)
        return await asyncio.wrap_future(self.engine_thread.call(function, seq_id))

    def make_answers(
        self,
        prompts: SequenceOf[list[int]],
        c: Completion,
        sampling: Mapping[str, Any],
        loosened: tuple[Loosened, ...] = (),
        cut: SequenceOf[str] = (),
        grammar_field: str = "",
        **options: Any,
    ) -> list[Answer]:
        """Make the sequences that complete prompts, `n` of each. The queue's `Place.take` comes before it.

        Args:
            prompts: The tokens of each prompt.
            c: The request.
            sampling: Options of `Sampling` that the request does not name.
            loosened: The parts of JSON schemas that the grammar does not enforce.
            cut: Strings that end a text and are always cut off, beside the request's own.
            grammar_field: The field of the request that has the grammar.
            **options: Options of `Request` for a request of one prompt.

        Raises:
            ApiError: the request is invalid or too large.
        """
        if any(isinstance(item, dict) and item.get("scale", 0.0) != 0.0 for item in c.lora):
            raise invalid("Field 'lora': adapters are set when the server starts")
        engine = self.engine
        asked, seed = sampling_of(c, self.tokenizer, self.ignored, **sampling), c.seed & SEED_RANDOM
        has_media = bool(options.get("media"))
        may_shift = self.options.context_shift and not has_media
        draft, keeps_stop = draft_of(c.speculative, engine.draft), c.include_stop_str_in_output
        answers: list[Answer] = []
        for tokens in prompts:
            n_left = engine.n_ctx - len(tokens)
            if n_left <= 0:
                raise too_long(len(tokens), engine.n_ctx)
            n_max = _N_UNLIMITED if self.options.context_shift else n_left
            n_tokens = max(1, min(n_max, c.n_predict if c.n_predict >= 0 else n_max))
            if c.min_tokens > n_tokens:
                raise invalid(f"Field 'min_tokens': expected at most {n_tokens} (max_tokens), found {c.min_tokens}")
            n_kept = c.n * n_tokens * len(prompts) + len(tokens) * c.echo
            if c.n_probs * n_kept > N_LOGPROBS_MAX:
                raise invalid(
                    f"Field 'n_probs' (logprobs): expected at most {N_LOGPROBS_MAX} in all texts together, found "
                    f"{c.n_probs} for each of {n_kept} tokens: send a smaller max_tokens"
                )
            for i in range(c.n):
                try:
                    sequence = engine.prepare(
                        Request(
                            tokens,
                            asked if i == 0 or seed == SEED_RANDOM else replace(asked, seed=(seed + i) & SEED_RANDOM),
                            max_tokens=n_tokens,
                            stop=[*cut, *([] if keeps_stop else c.stop)],
                            kept_stop=c.stop if keeps_stop else [],
                            stop_tokens=frozenset(c.stop_token_ids),
                            keeps_stop_tokens=keeps_stop,
                            draft=draft,
                            logprobs=min(c.n_probs, self.tokenizer.vocab.n_tokens) if c.n_probs else None,
                            seq_id=c.id_slot % engine.target.n_seq if c.id_slot >= 0 and i == 0 else None,
                            cache_prompt=c.cache_prompt or i > 0,
                            exact=True,
                            n_indent=c.n_indent,
                            shift=self._shift_of(c, len(tokens)) if may_shift else None,
                            prompt_logprobs=not has_media and c.echo and c.n_probs > 0,
                            **options,
                        ),
                        like=answers[0].sequence if answers else None,
                    )
                except ContextFullError:
                    raise too_long(len(tokens), engine.n_ctx) from None
                except GrammarError as e:
                    raise invalid(f"'{grammar_field}': {e}" if grammar_field else str(e)) from None
                except ValueError as e:
                    raise invalid(str(e)) from None
                answers.append(Answer(len(answers), sequence, c, engine.n_ctx, loosened))
        return answers

    def _shift_of(self, c: Completion, n_prompt: int) -> Shift:
        n_keep = n_prompt if c.n_keep < 0 else c.n_keep + (self.tokenizer.vocab.bos >= 0)
        return Shift(n_keep, c.n_discard)


def random_id() -> str:
    """32 random digits, in hexadecimal."""
    return secrets.token_hex(16)
