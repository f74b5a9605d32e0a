"""`EngineLlama`: a `llama_cpp.Llama` whose context is a sequence of an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from llama_cpp import Llama, LlamaGrammar, LlamaState, LlamaTokenizer, LogitsProcessorList

from ._core import Drafter, FeatureTap, Guard, Planner, Target
from .chat import grammar_text
from .context import Context
from .engine import DraftSettings, Engine, Media, Rng, SamplerChain, Sampling
from .errors import Eagle3Error
from .features import Features
from .guard import closed_error
from .head import Head
from .loading import Loading
from .log import without_details
from .media import Projector, hook_handler
from .model_file import guard_tokenizer
from .planning import have_planner, why_not
from .state import Eagle3State, check_state
from .stats import Stats

_N_ROUNDS_TOLD = 8  # of a shorter text nobody asks why nothing was drafted

_log = logging.getLogger("llama_cpp_eagle3")


class EngineLlama(Llama):  # type: ignore[misc]
    """A Llama on an engine: what it is made of, its context position by position, and its figures.

    It has no constructor: `Eagle3Llama` loads it.
    """

    # what Llama keeps of the context
    _seed: int
    _sampler: SamplerChain | None
    n_batch: int
    verbose: bool

    _guard: Guard
    _loading: Loading
    _context: Context
    _engine: Engine | None
    _head: Head | None
    _projector: Projector | None
    _info: Callable[[str], None]
    _n_state_bytes: int
    _stats_before: Stats
    _has_explained: bool

    # how to draft, see Eagle3Llama
    draft: str
    draft_sources: Sequence[Literal["head", "mtp", "simple", "ngram"]]
    draft_n_max: int
    draft_ngram_n_max: int
    draft_n_min: int
    draft_p_min: float
    draft_tree_depth: int
    draft_tree_topk: int
    draft_tree_tokens: int
    n_parallel: int
    rng: Rng
    """What tokens are drawn with, see `Sampling.rng`."""

    # what it is made of

    @property
    def engine(self) -> Engine:
        """The loop behind everything that generates; add sequences of your own and call `step`."""
        if self._engine is None:
            raise closed_error(type(self).__name__)
        return self._engine

    @property
    def target(self) -> Target:
        """The target's context with its verbs `decode`, `sample`, `argmax` and `truncate`, for a loop of one's own."""
        return self.engine.target

    @property
    def tap(self) -> FeatureTap | None:
        """What reads the target's hidden states; None without a head."""
        return self._loading.tap

    @property
    def drafter(self) -> Drafter | None:
        """The head with its verbs `process`, `propose` and `truncate`; None without one."""
        return self.engine.drafter

    @property
    def head(self) -> Head | None:
        """The head as it is loaded; None without one."""
        return self._head

    @property
    def projector(self) -> Projector | None:
        """What makes embeddings of images and sounds; None without an mmproj_path."""
        return self._projector

    @property
    def chat_handler(self) -> Any:
        """What answers conversations in place of a chat format. Multimodal ones decode through the engine."""
        return self._chat_handler

    @chat_handler.setter
    def chat_handler(self, handler: Any) -> None:
        self._chat_handler = handler
        if self._engine is not None:
            hook_handler(handler, self, int(self._ctx.ctx))

    @property
    def planner(self) -> Planner | None:
        """What decides in `draft="auto"`; its `stats()` say what it chose. None before it was needed."""
        return self.engine.planner

    @property
    def draft_model_path(self) -> str | None:
        """The head's file; None without one."""
        return self._loading.draft.model_path

    @property
    def draft_type_asked(self) -> int | None:
        """The ggml type that was asked for the head's wider matrices; None = what is fastest."""
        return self._loading.draft.type

    @property
    def draft_type(self) -> int | None:
        """The ggml type to which the head's wider matrices were converted; None = they are as in the file."""
        return self.draft_type_asked if self._head is None else self._head.type

    @property
    def draft_settings(self) -> DraftSettings:
        """What the attributes `draft`, `draft_n_max`, ... say now."""
        return DraftSettings(
            mode=self.draft,  # type: ignore[arg-type]
            sources=tuple(self.draft_sources),
            n_max_ngram=self.draft_ngram_n_max,
            n_max=self.draft_n_max,
            n_min=self.draft_n_min,
            p_min=self.draft_p_min,
            tree_depth=self.draft_tree_depth,
            tree_topk=self.draft_tree_topk,
            tree_tokens=self.draft_tree_tokens,
        )

    @property
    def model_address(self) -> int:
        """Address of the loaded llama_model, for functions of llama.h."""
        return int(self._model.model)

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and head; both empty without a head."""
        return self._loading.pair_id

    @property
    def where(self) -> str:
        """One line on what runs where."""
        model = self._model.model
        return self._loading.where(self.model_params, model, self.drafter, self.n_threads, self.n_threads_batch)

    @property
    def cpu_kernels_used(self) -> str:
        """Which of our kernels multiply which weights on a CPU, or why none do."""
        return self._loading.kernels_used(self.drafter)

    @property
    def n_state_bytes(self) -> int:
        """Bytes of recurrent state that the target keeps per sequence; 0 for targets that only attend."""
        return self._n_state_bytes

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head again, its matrices in another type. What it has seen is forgotten."""
        with self._guard:
            if self._head is not None:
                self._head.convert(draft_type, self.engine.set_drafter)

    def n_ctx(self) -> int:
        """Positions of the context, or of each sequence's part of it."""
        return int(super().n_ctx()) if self._engine is None else self._engine.n_ctx

    # what Llama keeps of its context, and what it sets on the way to it

    @property
    def n_tokens(self) -> int:
        """Tokens that the context holds. Fewer can be set to go back; more, by who has decoded them himself."""
        return self._context.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._context.set_n_tokens(n)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """Tokens of the context, int32 (n_ctx,); the first n_tokens of them count."""
        return self._context.input_ids

    @input_ids.setter
    def input_ids(self, ids: npt.NDArray[np.intc]) -> None:
        self._context.input_ids = ids

    @property
    def scores(self) -> npt.NDArray[np.single]:
        """Logits, float32 (n_ctx, n_vocab), with `logits_all`."""
        return self._context.scores

    @scores.setter
    def scores(self, scores: npt.NDArray[np.single]) -> None:
        self._context.scores = scores

    @property
    def context_params(self) -> Any:
        """The context's parameters. Llama sets them in its constructor, behind the model's; ours go into both."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self._loading.preset_model(self.model_params)
        self._loading.preset_context(params)
        self._context_params = params

    @property
    def _model(self) -> Any:
        """The model. Llama loads it before it makes the context, whose sequences depend on it."""
        return self._llama_model

    @_model.setter
    def _model(self, model: Any) -> None:
        self._llama_model = model
        guard_tokenizer(model)
        self._loading.load_adapters(model.model)
        self._loading.fit_context(self._context_params, model.model)

    # planning

    def costs_key(self) -> dict[str, Any]:
        """Everything that measured costs depend on, ready for JSON."""
        params = (self.model_params, self.context_params, self.lora_path, self.tensor_split)
        return self._loading.costs_key(self.drafter, *params)

    def calibrate(self, seconds: float = 2.0, log: Callable[[str], None] | None = None) -> None:
        """Measure now what passes cost, unless that is known; else the first generation with `draft="auto"` does it.

        seconds: to spend. log: told before it begins, and what was found; None: as `verbose` says.

        Raises:
            Eagle3Error: they must be measured, and the context is not empty.
        """
        with self._guard:
            self._have_planner(seconds, must=True, log=log)

    def _have_planner(self, seconds: float = 2.0, must: bool = False, log: Callable[[str], None] | None = None) -> None:
        """The time that measuring takes is told as such, and is nobody's prompt's."""
        drafts = self._head is not None or self.engine.ngram is not None
        if (drafts or self.n_parallel > 1) and self.engine.planner is None:
            start = perf_counter_ns()
            with without_details():
                have_planner(self.engine, self._head, self.costs_key, log or self._info, seconds, must=must)
            self._context.stats.calibrate_ns += perf_counter_ns() - start

    def _begin_text(self) -> DraftSettings:
        """Check what may have been changed since loading; have a planner, if one is wanted."""
        settings = self.draft_settings
        self.engine.check_draft(settings)
        self._begin_stats()
        if self.draft == "auto":
            self._have_planner()
        return settings

    # evaluating and drawing by hand

    def eval_media(self, media: Media) -> None:
        """Evaluate an image behind what is there; the draft takes in the hidden states of its rows.

        Raises:
            ContextFullError: it does not fit into the context.
            ValueError: its rows see each other, and n_batch or n_ubatch is smaller than it.
        """
        with self._guard:
            start = perf_counter_ns()
            self._begin_stats()
            self._context.eval_media(media)
            self._context.stats.total_ns += perf_counter_ns() - start

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens behind those that are there; the draft takes in their hidden states."""
        with self._guard:
            start = perf_counter_ns()
            self._begin_stats()
            self._context.eval([int(t) for t in tokens])
            self._context.stats.total_ns += perf_counter_ns() - start

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Draw one token, as `Llama.sample` does, from the logits of the last token or of the one at position `idx`."""
        with self._guard:
            context = self._context
            context.refresh()
            chain = self._sampler
            if chain is None:
                sampling = self._sampling(
                    temperature=temp,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    typical_p=typical_p,
                    repeat_penalty=repeat_penalty,
                    frequency_penalty=frequency_penalty,
                    presence_penalty=presence_penalty,
                    mirostat_mode=mirostat_mode,
                    mirostat_eta=mirostat_eta,
                    mirostat_tau=mirostat_tau,
                    logits_processor=logits_processor,
                    grammar=grammar,
                )
                chain = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
            row = context.row_at(self.n_tokens - 1 if idx is None else idx)
            if row is None:
                raise ValueError(f"expected a position that was decoded last, found {idx}")
            return int(chain.draw(self.target, row, context.sequence.tokens))

    def _sampling(
        self,
        *,
        logits_processor: Sequence[Any] | None,
        grammar: LlamaGrammar | None,
        seed: int | None = None,
        rng: Rng | None = None,
        **options: Any,
    ) -> Sampling:
        """Llama's sampling options as the engine's."""
        if grammar is not None:
            options["grammar"], options["grammar_root"] = grammar_text(grammar)
        return Sampling(
            seed=self._seed if seed is None else seed,
            rng=rng or self.rng,
            penalty_last_n=self.last_n_tokens_size,
            logits_processors=list(logits_processor or ()),
            **options,
        )

    # the context

    def reset(self) -> None:
        """Forget everything that was evaluated."""
        with self._guard:
            self._context.forget()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            self._context.eval([])
            self._loading.check_servers()
            self.engine.flush()
            draft_state = b"" if self.drafter is None else self.drafter.state_get()
            spans = self.target.spans()
            return Eagle3State(super().save_state(), draft_state, self._loading.pair_id, spans)

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state. One that a plain Llama saved works too; drafting then pauses until the next prompt.

        Raises:
            IncompatibleDraftError: the state belongs to another pair, or does not fit the context.
        """
        with self._guard:
            check_state(state, self._loading.pair_id, self._n_ctx)
            self._loading.check_servers()
            self._context.forget()
            self.engine.preempt_all()
            try:
                with self._context.being_filled():
                    super().load_state(state)
                self.target.set_spans(getattr(state, "spans", []))
                self._context.adopt(int(state.n_tokens))
                draft_state = getattr(state, "draft_state", b"")
                if self.drafter is not None and draft_state:
                    self.drafter.state_set(draft_state)
            except BaseException as e:
                self._context.forget()
                self.target.clear()  # nobody else has anything there, and what is left of the state may be NaN
                if type(e) is RuntimeError:  # llama_cpp's own, which says no more
                    raise ValueError(
                        "llama.cpp does not take the state: it is damaged, or was saved with another model or n_ctx"
                    ) from e
                raise

    # figures

    def _begin_stats(self) -> None:
        stats = self._context.stats
        if stats.tokens > 0:
            self._stats_before += stats
            self._context.begin_stats()

    def _explain(self) -> None:
        """Say why nothing was drafted in what was generated last: in its figures, and once in the log."""
        stats = self._context.stats
        if stats.drafts or stats.rounds < _N_ROUNDS_TOLD or self._head is None:
            return
        stats.why_not_drafted = why_not(self.engine.planner, self.draft_settings)
        if not self._has_explained:
            self._has_explained = True
            _log.warning("nothing is drafted: %s", stats.why_not_drafted)

    @property
    def last_token_drafted(self) -> bool:
        """Whether the token that `generate` yielded last had been drafted."""
        return self._context.last_token_drafted

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """Text of tokens, as `Llama.detokenize` gives it; but pieces longer than 32 bytes are not lost."""
        if type(self.tokenizer_) is not LlamaTokenizer:
            return bytes(super().detokenize(tokens, prev_tokens, special))
        text = b"".join([self.engine.vocab.piece(token, special) for token in tokens if token >= 0])
        return text[1:] if text[:1] == b" " and tokens[0] == self._model.token_bos() else text

    @property
    def features(self) -> Features:
        """Hidden states of what `eval` or `generate` decoded last, (n_tokens, n_boundaries, n_embd); see `Features`."""
        with self._guard:
            if self.tap is None:
                raise Eagle3Error("no features: give a draft_model_path or draft_target_layers")
            return Features(
                self.tap.rows,
                tokens=self.target.tokens,
                positions=self.target.pos,
                boundaries=self.tap.boundaries,
            )

    @property
    def stats(self) -> Stats:
        """Figures since creation."""
        return self._stats_before + self._context.stats

    @property
    def last_stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return Stats() + self._context.stats
