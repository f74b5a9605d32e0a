"""A Llama whose every decode goes through our `Target`, with a draft that follows.

Invariant: target memory, draft cache, waiting rows and token list describe the same prefix whenever no round is open.
What an interrupt leaves half done is mended here: a draft that is ahead is taken back, one that is behind pauses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NoReturn

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
from llama_cpp import Llama, LlamaState

from ._core import Drafter, FeatureTap, Target
from .errors import ContextFullError, Eagle3Error, IncompatibleDraftError, ModelFileError
from .guard import Guard
from .options import DraftOptions
from .pair import Pair, check_pair, fingerprint
from .rpc import RpcServers, find_device
from .speculative import Round, commit
from .state import Eagle3State, check_state
from .stats import Stats


class DraftedContext(Llama):  # type: ignore[misc]
    """What `Eagle3Llama` is made of, but for generating."""

    # what Llama keeps of the context
    n_tokens: int
    input_ids: npt.NDArray[np.intc]
    scores: npt.NDArray[np.single]

    def __init__(
        self, model_path: str, draft: DraftOptions, rpc_servers: str | Sequence[str] | None, options: dict[str, Any]
    ):
        self._guard = Guard(type(self).__name__)
        self._rpc_servers = rpc_servers
        self._servers: RpcServers | None = None
        self._tap: FeatureTap | None = None
        self._drafter: Drafter | None = None
        self._round: Round | None = None
        self._epoch = 0  # counts what happens to the state outside of a generation's own steps
        self._decode_pos = self._decode_len = 0  # where the last decode began, and its rows
        self._paused = False
        self._stats, self._stats_before = Stats(), Stats()
        self._draft_options = draft
        self.draft_n_max, self.draft_n_min, self.draft_p_min = draft.n_max, draft.n_min, draft.p_min
        # Llama's own kind of draft would make it ask for all logits; our loop can draft with it as it is
        draft_model = options.pop("draft_model", None)
        try:
            pair = None if options.get("vocab_only") else self._check_files(model_path)
            if rpc_servers:
                self._servers = RpcServers(rpc_servers)
                options.setdefault("n_gpu_layers", -1)
            self._draft_device = None if draft.device is None else find_device(draft.device, self._servers)
            super().__init__(model_path, **options)
            self.draft_model = draft_model
            if self.lora_path and not self._lora_adapter:  # Llama looks for None, ctypes gives a null pointer
                raise ModelFileError(
                    f"'{self.lora_path}' is missing, or is no LoRA adapter in GGUF for '{self.model_path}'"
                )
            self._fit_context()
            self._load_draft(pair)
        except BaseException:
            self.close()
            raise

    def _check_files(self, model_path: str) -> Pair:
        """Compare the headers, and prepare the tap, which must exist before the context."""
        draft = self._draft_options
        pair = check_pair(model_path, draft.model_path, draft.target_layers)
        target = pair.target
        if draft.model_path is not None or draft.target_layers is not None:
            self._tap = FeatureTap(list(pair.boundaries), target.n_layer, target.n_embd, target.arch)
        return pair

    @property
    def draft_model_path(self) -> str | None:
        """The head's file; None without one."""
        return self._draft_options.model_path

    @property
    def target(self) -> Target:
        """The target's context with its verbs `decode`, `sample`, `argmax` and `truncate`, for a loop of one's own."""
        return self._target

    @property
    def tap(self) -> FeatureTap | None:
        """What reads the target's hidden states; None without a head."""
        return self._tap

    @property
    def drafter(self) -> Drafter | None:
        """The head with its verbs `process`, `propose` and `truncate`; None without one."""
        return self._drafter

    @property
    def model_params(self) -> Any:
        """The model's parameters. Llama sets them in its constructor; the rpc servers' devices go in on the way."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self._preset_model_params(params)
        self._model_params = params

    def _preset_model_params(self, params: Any) -> None:
        """Set what Llama has no argument for."""
        if self._servers is not None:
            self._model_devices = self._servers.model_devices()
            params.devices = ctypes.cast(self._model_devices, ctypes.c_void_p)

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
        draft, model = self._draft_options, int(self._model.model)
        self._target = Target(int(self._ctx.ctx), model, self._tap)
        self._pair_id = ("", "")
        if pair is None or pair.head is None or draft.model_path is None:
            return
        if self._is_recurrent or self._is_hybrid:
            raise IncompatibleDraftError(
                f"the target '{self.model_path}' ({pair.target.arch}) keeps a recurrent state, from which rejected "
                f"tokens cannot be taken back yet; the draft '{draft.model_path}' needs that."
            )
        self._drafter = Drafter(
            draft.model_path,
            model,
            self._n_ctx,
            boundaries=draft.target_layers,
            device=self._draft_device,
            n_gpu_layers=draft.n_gpu_layers,
            type_k=draft.type_k,
            type_v=draft.type_v,
            n_threads=self.n_threads,
            n_batch=min(self.n_batch, 512),
        )
        self._pair_id = (fingerprint(self.model_path), fingerprint(draft.model_path))
        if self.verbose and self._tap is not None:
            why = "draft_target_layers" if draft.target_layers else pair.head.boundaries_why
            print(
                f"Eagle3Llama: draft '{draft.model_path}' ({pair.head.dialect}) on {self._drafter.device}, "
                f"reads {self._drafter.boundaries} of {pair.target.n_layer} layers by the {self._tap.kind} tap"
                + (f" ({why})" if why else ""),
                file=sys.stderr,
            )

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
            self._raise_full(len(tokens), n_past)
        if not tokens:
            return
        drafter = self._drafter
        if drafter is not None and drafter.n_past() > n_past:
            # positions were taken back; the draft may need the row before them once more
            start = drafter.truncate(n_past)
            tokens = self.input_ids[start:n_past].tolist() + tokens
            self.n_tokens = start
        for i in range(0, len(tokens), self.n_batch):
            chunk = tokens[i : i + self.n_batch]
            n_past, n = self.n_tokens, len(chunk)
            self._decode(chunk, n_past, self._logits_all)
            self.input_ids[n_past : n_past + n] = chunk
            if self._logits_all:
                self.scores[n_past : n_past + n] = self._target.logits_all(n)
            if drafter is not None and self._tap is not None:
                if drafter.n_past() == n_past:
                    drafter.process(self._tap, chunk, n_past)
                elif not self._paused:
                    self._pause(drafter.n_past(), n_past)
            self.n_tokens = n_past + n
            self._stats.prompt_tokens += n

    def _raise_full(self, n_tokens: int, n_past: int) -> NoReturn:
        raise ContextFullError(
            f"{n_tokens} tokens do not fit behind {n_past}: the context holds {self._n_ctx}. Use a larger n_ctx."
        )

    def _refresh_logits(self) -> None:
        """Have logits to go on from: after going back or loading a state, evaluate the last token again."""
        if self.n_tokens == 0:
            raise ValueError("expected at least one token to go on from, found none")
        if self._requires_eval:
            commit(self)
            self.n_tokens -= 1
            self._eval([int(self.input_ids[self.n_tokens])])

    def _decode(self, tokens: list[int], n_past: int, logits_all: bool = True) -> None:
        """One pass of the target; remember where its rows belong."""
        self._check_servers()
        self._requires_eval = True
        self._decode_len = 0
        self._target.decode(tokens, n_past, logits_all)
        self._decode_pos, self._decode_len = n_past, len(tokens)
        self._requires_eval = False

    def _check_servers(self) -> None:
        """Raise RpcError if an rpc server has gone: llama.cpp would end the process."""
        if self._servers is not None:
            self._servers.check()

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
        return np.array(np.ctypeslib.as_array(self._ctx.get_logits_ith(-1), shape=(self._n_vocab,)))

    def _draft(self, id_last: int, n_max: int) -> list[int]:
        """What the draft thinks comes next."""
        drafter = self._drafter
        if drafter is None:
            if self.draft_model is None:
                return []
            self.input_ids[self.n_tokens] = id_last
            guess = self.draft_model(self.input_ids[: self.n_tokens + 1])
            return [int(t) for t in guess[:n_max]]
        if drafter.n_past() != self.n_tokens:
            return []  # paused
        self._check_servers()
        return drafter.propose(id_last, n_max, self.draft_p_min)

    def _go_back(self, n_past: int) -> None:
        """Keep exactly the first tokens of the context."""
        commit(self)
        tokens = self.input_ids[:n_past].tolist()
        if not self._take_back(n_past):
            self._reset()
            raise Eagle3Error(f"the target's memory cannot go back to its first {n_past} tokens: it was reset")
        self._eval(tokens[self.n_tokens :])

    def _pause(self, n_draft: int, n_past: int) -> None:
        """The context holds something that the draft has not seen, such as an image, and cannot be shown any more."""
        self._paused = True
        if self.verbose:
            print(
                f"Eagle3Llama: positions {n_draft} to {n_past - 1} were decoded behind the draft's back; "
                "drafting pauses until the context starts over",
                file=sys.stderr,
            )

    def _prefill(self, tokens: list[int], reset: bool) -> None:
        """Evaluate a prompt, reusing what the context has of it already (Llama's rules)."""
        start = perf_counter_ns()
        commit(self)
        self._epoch += 1
        self._begin_stats()
        if reset and len(tokens) > self._n_ctx:
            self._raise_full(len(tokens), 0)
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
        self._eval(tokens)
        self._refresh_logits()
        self._stats.prefill_ns += perf_counter_ns() - start

    def _take_back(self, n_tokens: int) -> bool:
        """Keep the first tokens of the context; False if the memory of this architecture cannot.

        May keep one token less: the draft needs the last row once more if another token is to follow it.
        """
        drafter = self._drafter
        if drafter is not None and drafter.n_past() > n_tokens:
            n_tokens = drafter.truncate(n_tokens)
        self.n_tokens = n_tokens
        self._requires_eval = True
        return self._target.truncate(n_tokens) == n_tokens

    def reset(self) -> None:
        """Forget everything that was evaluated."""
        with self._guard:
            self._epoch += 1
            self._reset()

    def _reset(self) -> None:
        self._round = None
        self._decode_len = 0
        self._paused = False
        if self.n_tokens > 0:
            self._take_back(0)
        super().reset()
        if self._drafter is not None:
            self._drafter.reset()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            commit(self)
            self._check_servers()
            draft_state = b"" if self._drafter is None else self._drafter.state_get()
            return Eagle3State(super().save_state(), draft_state, self._pair_id)

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state. One that a plain Llama saved works too; drafting then pauses until the next prompt.

        Raises:
            IncompatibleDraftError: the state belongs to another pair, or does not fit the context.
        """
        with self._guard:
            check_state(state, self._pair_id, self._n_ctx)
            self._check_servers()
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

    def _begin_stats(self) -> None:
        if self._stats.tokens > 0:
            self._stats_before += self._stats
            self._stats = Stats()

    def close(self) -> None:
        """Free everything. Happens by itself when the object goes."""
        guard = self.__dict__.get("_guard")
        if guard is None or guard.closed:
            return
        with guard:
            guard.closed = True
            self._round = None
            if self._servers is not None:
                self._servers.prepare_free()
            # the draft borrows the model's tables, the context calls the tap: free them in this order
            self._drafter = None
            if "_target" in self.__dict__:
                self._target.close()
            if "_stack" in self.__dict__:
                super().close()
            self._tap = None
            if self._servers is not None:
                self._servers.close()


def _common_prefix(ids: npt.NDArray[np.intc], tokens: Sequence[int]) -> int:
    n = min(len(ids), len(tokens))
    different = np.flatnonzero(ids[:n] != np.asarray(tokens[:n], dtype=np.intc))
    return int(different[0]) if len(different) else n
