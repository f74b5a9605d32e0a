"""`Eagle3Llama`: a `llama_cpp.Llama` that drafts with an EAGLE-3 head."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Generator, Sequence
from time import perf_counter_ns
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
from llama_cpp import Llama, LlamaGrammar, LlamaState, LogitsProcessorList, StoppingCriteriaList

from ._core import Drafter, FeatureTap, Target
from .errors import ContextFullError, Eagle3Error, IncompatibleDraftError
from .features import Features
from .guard import Guard
from .hub import download
from .pair import Pair, check_pair, fingerprint
from .sampling import CheckedProcessors, Draw, chain_draw, check_grammar, foreign_draw, is_greedy
from .speculative import Round, Speculation, commit
from .state import Eagle3State, check_state
from .stats import Stats

_LLAMA_OPTIONS = frozenset(inspect.signature(Llama.__init__).parameters) - {"self", "model_path", "kwargs"}


class Eagle3Llama(Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` whose generation is sped up by an EAGLE-3 head, without changing what comes out.

    Everything that Llama offers is there. Without a `draft_model_path` it is a plain Llama on the same engine.

    Example:
        >>> llm = Eagle3Llama("target.gguf", draft_model_path="eagle3.gguf", n_ctx=4096)
        >>> llm("def fibonacci(", max_tokens=64, temperature=0)["choices"][0]["text"]
        >>> llm.last_stats
    """

    last_token_drafted: bool = False
    """Whether the token that `generate` yielded last had been drafted."""

    # what Llama keeps of the context
    n_tokens: int
    input_ids: npt.NDArray[np.intc]
    scores: npt.NDArray[np.single]

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        draft_model_path: str | os.PathLike[str] | None = None,
        draft_n_max: int = 3,
        draft_n_min: int = 0,
        draft_p_min: float = 0.0,
        draft_n_gpu_layers: int = -1,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        draft_target_layers: Sequence[int] | None = None,
        **options: Any,
    ):
        """Load a target and, if given, its head. Loading is all or nothing.

        Args:
            model_path: the target, a GGUF file.
            draft_model_path: the EAGLE-3 head, a GGUF file in llama.cpp's dialect or ours.
            draft_n_max: how many tokens to draft per round, at most.
            draft_n_min: shorter drafts are dropped.
            draft_p_min: a draft ends before a token that is less likely than this.
            draft_n_gpu_layers: 0 = the head runs on the CPU, -1 = where the target's lm_head is.
            draft_type_k: ggml type of the head's K cache (default F16).
            draft_type_v: ggml type of the head's V cache (default F16).
            draft_target_layers: which hidden states to read, as numbers of layers they have passed, instead of what
                the head's file says. Without a head: which ones `features` gives.
            **options: what `llama_cpp.Llama` takes.

        Raises:
            ModelFileError: a file is missing or is not what it should be.
            IncompatibleDraftError: head and target do not belong together.
        """
        self._guard = Guard(type(self).__name__)
        self._tap: FeatureTap | None = None
        self._drafter: Drafter | None = None
        self._round: Round | None = None
        self._epoch = 0  # counts what happens to the state outside of a generation's own steps
        self._decode_pos = self._decode_len = self._n_decode = 0  # of the last decode: position, rows, tap's counter
        self._paused = False
        self._stats, self._stats_before = Stats(), Stats()

        self.draft_model_path = None if draft_model_path is None else os.fspath(draft_model_path)
        self.draft_n_max, self.draft_n_min, self.draft_p_min = draft_n_max, draft_n_min, draft_p_min
        self._draft_options = {
            "n_gpu_layers": draft_n_gpu_layers,
            "type_k": draft_type_k,
            "type_v": draft_type_v,
        }
        self._draft_target_layers = None if draft_target_layers is None else list(draft_target_layers)
        self._check_options(options)
        # Llama's own would make it ask for all logits; our loop can draft with it as it is
        draft_model = options.pop("draft_model", None)
        try:
            pair = self._check_files(os.fspath(model_path))
            super().__init__(os.fspath(model_path), **options)
            self.draft_model = draft_model
            self._fit_context()
            self._load_draft(pair)
        except BaseException:
            self.close()
            raise

    def _check_options(self, options: dict[str, Any]) -> None:
        for name in options:
            if name not in _LLAMA_OPTIONS:
                known = [*_LLAMA_OPTIONS, *inspect.signature(Eagle3Llama.__init__).parameters]
                close = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"Eagle3Llama() got an unexpected keyword argument {name!r}.{hint}")
        if not 0 <= self.draft_n_min <= max(self.draft_n_max, 0) or not 0.0 <= self.draft_p_min <= 1.0:
            raise ValueError(
                "expected 0 <= draft_n_min <= draft_n_max and 0 <= draft_p_min <= 1, found "
                f"draft_n_min={self.draft_n_min}, draft_n_max={self.draft_n_max}, draft_p_min={self.draft_p_min}"
            )
        n_ctx, n_batch = options.get("n_ctx", 512), options.get("n_batch", 512)
        if n_ctx < 0 or n_batch < 1 or options.get("n_ubatch", 512) < 1:
            raise ValueError(f"expected n_ctx >= 0, n_batch >= 1 and n_ubatch >= 1, found {n_ctx}, {n_batch}")
        if self.draft_model_path is None:
            return
        n_room = min(n_ctx or n_batch, n_batch)
        if self.draft_n_max + 1 > n_room:
            raise ValueError(
                f"draft_n_max={self.draft_n_max} needs a batch of {self.draft_n_max + 1} tokens, n_ctx={n_ctx} and "
                f"n_batch={n_batch} leave {n_room}. Draft less, or give more room."
            )
        for name in ("draft_model", "embedding", "vocab_only"):
            if options.get(name):
                raise ValueError(f"{name} and draft_model_path exclude each other: drop one of them")

    def _check_files(self, model_path: str) -> Pair | None:
        """Compare the headers, and prepare the tap, which must exist before the context."""
        if self.draft_model_path is None and self._draft_target_layers is None:
            return None
        pair = check_pair(model_path, self.draft_model_path, self._draft_target_layers)
        target = pair.target
        self._tap = FeatureTap(list(pair.boundaries), target.n_layer, target.n_embd, target.arch)
        return pair

    @property
    def context_params(self) -> Any:
        """The context's parameters. Llama sets them in its constructor; the tap's callback goes in on the way."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        if self._tap is not None and self._tap.cb_eval:
            params.cb_eval = lib.ggml_backend_sched_eval_callback(self._tap.cb_eval)
            params.cb_eval_user_data = self._tap.cb_eval_user_data
        self._context_params = params

    def _fit_context(self) -> None:
        """Give the token list the size that llama.cpp gave the context: it rounds n_ctx up."""
        if len(self.input_ids) < self._n_ctx:
            self.input_ids = np.zeros(self._n_ctx, dtype=np.intc)
            if self._logits_all:
                self.scores = np.ndarray((self._n_ctx, self._n_vocab), dtype=np.single)

    def _load_draft(self, pair: Pair | None) -> None:
        ctx, model = int(self._ctx.ctx), int(self._model.model)
        self._target = Target(ctx, model, self._tap)
        self._pair_id = ("", "")
        if pair is None or pair.head is None or self.draft_model_path is None:
            return
        if self._is_recurrent or self._is_hybrid:
            raise IncompatibleDraftError(
                f"the target '{self.model_path}' ({pair.target.arch}) keeps a recurrent state, from which rejected "
                f"tokens cannot be taken back yet; the draft '{self.draft_model_path}' needs that."
            )
        self._drafter = Drafter(
            self.draft_model_path,
            model,
            self._n_ctx,
            boundaries=self._draft_target_layers,
            n_threads=self.n_threads,
            n_batch=min(self.n_batch, 512),
            **self._draft_options,
        )
        self._pair_id = (fingerprint(self.model_path), fingerprint(self.draft_model_path))

    # evaluation

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens behind those that are there; the draft takes in their hidden states."""
        with self._guard:
            start = perf_counter_ns()
            self._epoch += 1
            self._begin_stats()
            self._eval([int(t) for t in tokens])
            self._stats.prefill_ns += perf_counter_ns() - start
            self._stats.total_ns += perf_counter_ns() - start

    def _eval(self, tokens: list[int]) -> None:
        commit(self)
        n_past = self.n_tokens
        if n_past + len(tokens) > self._n_ctx:
            raise ContextFullError(
                f"{len(tokens)} tokens do not fit behind {n_past}: the context holds {self._n_ctx}. Use a larger n_ctx."
            )
        if not tokens:
            return
        drafter = self._drafter
        if drafter is not None and drafter.n_past > n_past:
            # positions were taken back; the draft may need the row before them once more
            start = drafter.truncate(n_past)
            tokens = self.input_ids[start:n_past].tolist() + tokens
            self.n_tokens = start
        logits_all = self._logits_all or (self._tap is not None and self._tap.needs_all_outputs)
        for i in range(0, len(tokens), self.n_batch):
            chunk = tokens[i : i + self.n_batch]
            n_past, n = self.n_tokens, len(chunk)
            self._decode(chunk, n_past, logits_all)
            self.input_ids[n_past : n_past + n] = chunk
            if self._logits_all:
                self.scores[n_past : n_past + n] = self._target.logits_all(n)
            if drafter is not None and self._tap is not None:
                if drafter.n_past == n_past:
                    drafter.process(self._tap, chunk, n_past)
                elif not self._paused:
                    self._pause(drafter.n_past, n_past)
            self.n_tokens = n_past + n
            self._stats.prompt_tokens += n

    def _decode(self, tokens: list[int], n_past: int, logits_all: bool = True) -> None:
        """One pass of the target; remember where its rows belong."""
        self._requires_eval = True
        self._decode_len = 0
        self._target.decode(tokens, n_past, logits_all)
        if self._tap is not None:
            self._n_decode = self._tap.n_decode
        self._decode_pos, self._decode_len = n_past, len(tokens)
        self._requires_eval = False

    def _keep(self, token: int, row: int) -> None:
        """Accept a token of the open round: from here on it is part of the context."""
        n_past = self.n_tokens
        self.input_ids[n_past] = token
        if self._logits_all:
            self.scores[n_past] = self._target.logits(row)
        self.n_tokens = n_past + 1

    def _last_row(self) -> int:
        """Row of our last decode that belongs to the last token; -1 if somebody else has decoded that one."""
        row = self.n_tokens - 1 - self._decode_pos
        return row if 0 <= row < self._decode_len else -1

    def _logits(self, row: int) -> npt.NDArray[np.single]:
        if row >= 0:
            return self._target.logits(row)
        return np.ctypeslib.as_array(self._ctx.get_logits_ith(-1), shape=(self._n_vocab,)).copy()

    def _draft(self, id_last: int, n_max: int) -> list[int]:
        """What the draft thinks comes next."""
        drafter = self._drafter
        if drafter is None:
            if self.draft_model is None:
                return []
            self.input_ids[self.n_tokens] = id_last
            guess = self.draft_model(self.input_ids[: self.n_tokens + 1])
            return [int(t) for t in guess[:n_max]]
        n_past = self.n_tokens
        if drafter.n_past > n_past:
            start = drafter.truncate(n_past)
            if start < n_past:
                self.n_tokens = start
                self._eval(self.input_ids[start:n_past].tolist())
        if drafter.n_past != n_past:
            return []  # paused
        return drafter.propose(id_last, n_max, self.draft_p_min)

    def _pause(self, n_draft: int, n_past: int) -> None:
        """The context holds something that the draft has not seen, such as an image, and cannot be shown any more."""
        self._paused = True
        if self.verbose:
            print(
                f"Eagle3Llama: positions {n_draft} to {n_past - 1} were decoded behind the draft's back; "
                "drafting pauses until the context starts over",
                file=sys.stderr,
            )

    # generation

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow `tokens`, as `Llama.generate` does and with its arguments.

        The consumer may `send` tokens, which then stand behind the last one. The generator can be closed or left at any
        token; the context then holds everything before it, as Llama's does. Stopping criteria get the logits that the
        token was drawn from.

        Raises:
            ContextFullError: no room for the tokens, or for one more.
        """
        options = {
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "temp": temp,
            "repeat_penalty": repeat_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode,
            "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta,
            "penalize_nl": penalize_nl,
            "grammar": grammar,
        }
        run: Generator[int, Sequence[int] | None, None] | None = None
        sent: Sequence[int] | None = None
        try:
            while True:
                with self._guard:
                    start = perf_counter_ns()
                    try:
                        if run is None:
                            draw = self._make_draw(logits_processor, options)
                            self._prefill([int(t) for t in tokens], reset)
                            if self._last_row() < 0:
                                draw = foreign_draw(draw, self._sampler, self._ctx)
                            run = Speculation(self, draw, stopping_criteria).run()
                        token = run.send(sent)
                    except StopIteration:
                        return
                    finally:
                        self._stats.total_ns += perf_counter_ns() - start
                sent = yield token
        finally:
            if self._guard.try_acquire():  # else somebody is at it, who has settled the round
                try:
                    commit(self)
                finally:
                    self._guard.release()

    def _make_draw(self, logits_processor: LogitsProcessorList | None, options: dict[str, Any]) -> Draw:
        """Set up Llama's sampler chain, and how to draw with it."""
        check_grammar(self._model.vocab, options["grammar"])
        processors = CheckedProcessors(logits_processor) if logits_processor else None
        self._sampler = self._init_sampler(
            logits_processor=None if processors is None else processors.as_list(), **options
        )
        if processors is None and is_greedy(**options):
            return self._target.argmax
        return chain_draw(self._target, self._sampler, processors)

    def _prefill(self, tokens: list[int], reset: bool) -> None:
        """Evaluate a prompt, reusing what the context has of it already (Llama's rules)."""
        start = perf_counter_ns()
        commit(self)
        self._epoch += 1
        self._begin_stats()
        if reset and self.n_tokens > 0:
            n_same = _common_prefix(self._input_ids, tokens)
            consumed = n_same == len(tokens)
            if consumed and self.n_tokens == len(tokens) and not self._requires_eval:
                tokens, reset = [], False
            else:
                # with nothing left to evaluate, the last token is evaluated again for its logits
                n_reuse = n_same - 1 if consumed else n_same
                if n_reuse > 0 and self._take_back(n_reuse):
                    tokens, reset = tokens[self.n_tokens :], False
                    if self.verbose:
                        print(f"Eagle3Llama.generate: reusing {self.n_tokens} evaluated tokens", file=sys.stderr)
        if reset:
            self._reset()
        if not tokens and self._requires_eval and self.n_tokens > 0:
            self.n_tokens -= 1
            tokens = [int(self.input_ids[self.n_tokens])]
        if not tokens and self.n_tokens == 0:
            raise ValueError("expected at least one token to go on from, found none")
        self._eval(tokens)
        self._stats.prefill_ns += perf_counter_ns() - start

    def _take_back(self, n_tokens: int) -> bool:
        """Keep the first tokens of the context; False if the memory of this architecture cannot.

        May keep one token less: the draft needs the last row once more if another token is to follow it.
        """
        drafter = self._drafter
        if drafter is not None and drafter.n_past > n_tokens:
            n_tokens = drafter.truncate(n_tokens)
        try:
            self._target.trim(n_tokens)
        except Eagle3Error:
            return False
        self.n_tokens = n_tokens
        self._requires_eval = True
        return True

    def sample(self, *args: Any, idx: int | None = None, **options: Any) -> int:
        """Draw one token, as `Llama.sample` does, from the logits of the last token or of the one at position `idx`."""
        with self._guard:
            commit(self)
            sampler = self._sampler if self._sampler is not None else self._init_sampler(*args, **options)
            if idx is None and self._last_row() < 0:
                return int(sampler.sample(self._ctx))
            row = self._last_row() if idx is None else idx - self._decode_pos
            return chain_draw(self._target, sampler, None)(row)

    # state

    def reset(self) -> None:
        """Forget everything that was evaluated."""
        with self._guard:
            self._epoch += 1
            self._reset()

    def _reset(self) -> None:
        self._round = None
        self._decode_len = 0
        self._paused = False
        super().reset()
        if self._drafter is not None:
            self._drafter.reset()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            commit(self)
            draft_state = b"" if self._drafter is None else self._drafter.state_get()
            return Eagle3State(super().save_state(), draft_state, self._pair_id)

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state. One that a plain Llama saved works too; drafting then pauses until the next prompt.

        Raises:
            IncompatibleDraftError: the state belongs to another pair, or does not fit the context.
        """
        with self._guard:
            check_state(state, self._pair_id, self._n_ctx)
            self._epoch += 1
            self._reset()
            try:
                super().load_state(state)
                draft_state = getattr(state, "draft_state", b"")
                if self._drafter is not None and draft_state:
                    self._drafter.state_set(draft_state)
            except BaseException:
                self._reset()
                raise

    # what one sees

    @property
    def features(self) -> Features:
        """Hidden states of the last decode, (n_tokens, n_boundaries, n_embd); see `Features`."""
        with self._guard:
            if self._tap is None:
                raise Eagle3Error("no features: give a draft_model_path or draft_target_layers")
            rows = self._tap.rows
            if self._tap.n_decode != self._n_decode or len(rows) != self._decode_len:
                raise Eagle3Error("no features: the last decode was not made by eval or generate")
            return Features(
                rows, tokens=self._target.tokens, positions=self._target.pos, boundaries=self._tap.boundaries
            )

    @property
    def stats(self) -> Stats:
        """Figures since creation."""
        return self._stats_before + self._stats

    @property
    def last_stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return Stats() + self._stats

    def _begin_stats(self) -> None:
        if self._stats.tokens > 0:
            self._stats_before += self._stats
            self._stats = Stats()

    # life

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        **kwargs: Any,
    ) -> Eagle3Llama:
        """Load a target, and a head if one is named, from the Hugging Face hub (needs `huggingface-hub`).

        Args:
            repo_id: the target's repository.
            filename: the target's file in it, or a glob pattern that matches one file.
            additional_files: more files of the target's repository, such as shards.
            local_dir: where to put the files, instead of the hub's cache.
            local_dir_use_symlinks: passed on to the hub.
            cache_dir: the hub's cache.
            draft_repo_id: the head's repository (default: the target's, if `draft_filename` is given).
            draft_filename: the head's file, or a pattern (default: the one GGUF file of `draft_repo_id`).
            **kwargs: what the constructor takes.
        """
        where = {"local_dir": local_dir, "local_dir_use_symlinks": local_dir_use_symlinks, "cache_dir": cache_dir}
        if draft_repo_id is not None or draft_filename is not None:
            if "draft_model_path" in kwargs:
                raise TypeError("give either draft_model_path or draft_repo_id and draft_filename")
            kwargs["draft_model_path"] = download(draft_repo_id or repo_id, draft_filename or "*.gguf", **where)
        return cls(download(repo_id, filename, additional_files=additional_files, **where), **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "draft_model_path": self.draft_model_path,
            "draft_n_max": self.draft_n_max,
            "draft_n_min": self.draft_n_min,
            "draft_p_min": self.draft_p_min,
            "draft_target_layers": self._draft_target_layers,
            **{f"draft_{name}": value for name, value in self._draft_options.items()},
        }

    def close(self) -> None:
        """Free everything. Happens by itself when the object goes."""
        guard = self.__dict__.get("_guard")
        if guard is None or guard.closed:
            return
        with guard:
            guard.closed = True
            self._round = None
            # the draft borrows the model's tables, the context calls the tap: free them in this order
            self._drafter = None
            if "_target" in self.__dict__:
                self._target.close()
            if "_stack" in self.__dict__:
                super().close()
            self._tap = None


def _common_prefix(ids: npt.NDArray[np.intc], tokens: Sequence[int]) -> int:
    n = min(len(ids), len(tokens))
    different = np.flatnonzero(ids[:n] != np.asarray(tokens[:n], dtype=np.intc))
    return int(different[0]) if len(different) else n
