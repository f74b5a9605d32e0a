"""A Llama whose every decode goes through our `Target`, with a draft that follows.

Invariant: target memory, draft cache, waiting rows and token list describe the same prefix whenever no round is open.
What an interrupt leaves half done is mended here: who is ahead is taken back, who is behind is fed again (`_rewind`).
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

from ._core import Drafter, FeatureTap, RecurrentRound, Target
from .draft import Draft
from .errors import ContextFullError, Eagle3Error, ModelFileError
from .guard import Guard
from .model_file import check_file, guard_tokenizer, loading
from .options import DraftOptions
from .pair import Pair, check_pair, fingerprint
from .rpc import RpcServers, find_device
from .speculative import Round, commit
from .state import Eagle3State, check_state
from .stats import Stats

N_ROWS_ARGMAX = 33
"""Rows of one sequence whose argmax a device may have to take at once."""


class DraftedContext(Llama):  # type: ignore[misc]
    """What `Eagle3Llama` is made of, but for generating."""

    # what Llama keeps of the context
    n_tokens: int
    _seed: int
    n_batch: int
    input_ids: npt.NDArray[np.intc]
    scores: npt.NDArray[np.single]

    def __init__(
        self, model_path: str, draft: DraftOptions, rpc_servers: str | Sequence[str] | None, options: dict[str, Any]
    ):
        self._guard = Guard(type(self).__name__)
        self._rpc_servers = rpc_servers
        self._checked = options.pop("checked", True)
        self._servers: RpcServers | None = None
        self._tap: FeatureTap | None = None
        self._drafter: Drafter | None = None
        self._round: Round | None = None
        self._epoch = 0  # counts what happens to the state outside of a generation's own steps
        self._decode_pos = self._decode_len = 0  # where the last decode began, and its rows
        self._decode_path: list[int] | None = None  # which of them are the context's, if not all in order
        self._own_end = 0  # what lies behind was decoded by somebody else, such as an image
        self._argmax_on_device, self._can_take_argmax = False, True
        self._unseen_end = 0  # tokens before this position may be such
        self._stats, self._stats_before = Stats(), Stats()
        self._n_state_bytes = 0
        self._draft_options = draft
        self._draft_type = draft.type
        # Llama's own kind of draft would make it ask for all logits; our loop can draft with it as it is
        draft_model = options.pop("draft_model", None)
        try:
            check_file(model_path, options, self._checked)
            pair = None if options.get("vocab_only") else self._check_files(model_path)
            if rpc_servers:
                self._servers = RpcServers(rpc_servers)
                options.setdefault("n_gpu_layers", -1)
            self._draft_device = None if draft.device is None else find_device(draft.device, self._servers)
            with loading(model_path):
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
    def draft_type(self) -> int | None:
        """The ggml type to which the head's wider matrices were converted; None = they are as in the file."""
        return self._draft_type

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

    @property
    def _model(self) -> Any:
        """The model. Llama loads it before it makes the context, whose sequences depend on it."""
        return self._llama_model

    @_model.setter
    def _model(self, model: Any) -> None:
        self._llama_model = model
        guard_tokenizer(model)
        draft, params = self._draft_options, self._context_params
        n_seq = draft.n_parallel
        if draft.model_path is not None:
            recurrent = lib.llama_model_is_recurrent(model.model) or lib.llama_model_is_hybrid(model.model)
            if recurrent:
                params.n_rs_seq = draft.depth  # llama.cpp makes it 0 where the architecture keeps no snapshots
            else:
                n_seq = max(n_seq, min(draft.n_leaves, params.n_ubatch))
        if n_seq > 1:
            params.n_seq_max = n_seq
            params.kv_unified = True
        params.n_outputs_max_per_seq = min(N_ROWS_ARGMAX, params.n_batch)

    def _fit_context(self) -> None:
        """Give the token list the size that llama.cpp gave the context: it rounds n_ctx up."""
        if len(self.input_ids) < self._n_ctx:
            self.input_ids = np.zeros(self._n_ctx, dtype=np.intc)
            if self._logits_all:
                self.scores = np.ndarray((self._n_ctx, self._n_vocab), dtype=np.single)

    def _make_drafter(self, draft_type: int | None) -> Drafter:
        draft = self._draft_options
        assert draft.model_path is not None
        return Drafter(
            draft.model_path,
            int(self._model.model),
            self._n_ctx,
            n_seq_max=draft.n_parallel,
            boundaries=draft.target_layers,
            device=self._draft_device,
            n_gpu_layers=draft.n_gpu_layers,
            type=draft_type,
            type_k=draft.type_k,
            type_v=draft.type_v,
            n_threads=self.n_threads,
            n_batch=min(self.n_batch, 512),
        )

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head again, its matrices in another type. What it has seen is forgotten."""
        if draft_type != self._draft_type:
            self._drafter = self._make_drafter(draft_type)
            self._draft_type = draft_type

    def _load_draft(self, pair: Pair | None) -> None:
        draft = self._draft_options
        with loading(self.model_path):
            self._target = Target(int(self._ctx.ctx), int(self._model.model), self._tap)
        self._rollbacks = [RecurrentRound(self._target, seq_id) for seq_id in range(draft.n_parallel)]
        self._rollback = self._rollbacks[0]
        self._pair_id = ("", "")
        if pair is None or pair.head is None or draft.model_path is None:
            return
        self._drafter = self._make_drafter(draft.type)
        self._pair_id = (fingerprint(self.model_path), fingerprint(draft.model_path))
        self._n_state_bytes = self._measure_state()
        if self.verbose and self._tap is not None:
            why = "draft_target_layers" if draft.target_layers else pair.head.boundaries_why
            print(
                f"Eagle3Llama: draft '{draft.model_path}' ({pair.head.dialect}) on {self._drafter.device}, "
                f"reads {self._drafter.boundaries} of {pair.target.n_layer} layers by the {self._tap.kind} tap"
                + (f" ({why})" if why else "")
                + f"; rejected tokens go by {self._rollback.kind}"
                + (f", {self._n_state_bytes} bytes of state per sequence" if self._n_state_bytes else ""),
                file=sys.stderr,
            )

    def _measure_state(self) -> int:
        """Bytes of recurrent state per sequence; 0 for targets that only attend."""
        if self._rollback.kind == "trim":
            return 0
        self._target.decode([max(0, self.token_bos())], 0, False)
        n_bytes = self._rollback.n_state_bytes
        self._target.truncate(0)
        return n_bytes

    @property
    def n_state_bytes(self) -> int:
        """Bytes of recurrent state that the target keeps per sequence; 0 for targets that only attend."""
        return self._n_state_bytes

    def _take_argmax_on_device(self, wanted: bool) -> None:
        """Greedy on an accelerator: have it take the argmax of each row, so that rows of logits never travel."""
        wanted = (
            wanted
            and self._can_take_argmax
            and self._target.logits_are_remote
            and not self._logits_all
            and not (self._tap is not None and self._tap.needs_all_outputs)
        )
        if wanted != self._argmax_on_device:
            try:
                self._target.set_device_argmax(min(N_ROWS_ARGMAX, self.n_batch) if wanted else 0)
            except Eagle3Error:
                self._can_take_argmax = False  # several devices that act as one cannot
                return
            self._argmax_on_device = wanted
            if not wanted:
                self._requires_eval = True  # the last logits stayed there

    def _n_rows_max(self) -> int:
        """Rows that a round may have."""
        return min(N_ROWS_ARGMAX, self.n_batch) if self._argmax_on_device else self.n_batch

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens behind those that are there; the draft takes in their hidden states."""
        with self._guard:
            self._take_argmax_on_device(False)
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
        tokens = self._missing() + tokens
        for i in range(0, len(tokens), self.n_batch):
            chunk = tokens[i : i + self.n_batch]
            n_past, n = self.n_tokens, len(chunk)
            self._decode(chunk, n_past, self._logits_all)
            self.input_ids[n_past : n_past + n] = chunk
            if self._logits_all:
                self.scores[n_past : n_past + n] = self._target.logits_all(n)
            self._show_draft(chunk, n_past, list(range(n)))
            self.n_tokens = self._own_end = n_past + n
            self._stats.prompt_tokens += n

    def _missing(self) -> list[int]:
        """Make target and draft end where the context does; returns the tokens that must then be evaluated again."""
        n_past, drafter = self.n_tokens, self._drafter
        if n_past > self._own_end:
            return []  # somebody else has decoded, such as an image
        if self._target.n_past() == n_past and (drafter is None or drafter.n_past() <= n_past):
            return []
        start = self._rewind(n_past)
        if start < min(self._unseen_end, n_past):
            self._reset()
            raise Eagle3Error(f"the target's memory cannot go back to its first {n_past} tokens: it was reset")
        return [int(t) for t in self.input_ids[start:n_past]]

    def _show_draft(self, tokens: list[int], n_past: int, rows: list[int]) -> None:
        """Show the draft these rows of what was just decoded; those that it has already are left out."""
        drafter, tap = self._drafter, self._tap
        if drafter is None or tap is None:
            return
        n_seen = drafter.n_past()
        if n_seen < n_past:
            self._unseen_end = n_past
            drafter.restart(n_past)
            if self.verbose:
                print(
                    f"Eagle3Llama: positions {n_seen} to {n_past - 1} were decoded behind the draft's back; "
                    "it goes on without them",
                    file=sys.stderr,
                )
        first = max(0, n_seen - n_past)
        if first < len(tokens):
            drafter.process(tap, tokens[first:], n_past + first, rows=rows[first:])

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

    def _decode(self, tokens: list[int], n_past: int, logits_all: bool) -> None:
        """One pass of the target; remember where its rows belong."""
        self._check_servers()
        self._requires_eval = True
        self._decode_len = 0
        self._decode_path = None
        self._target.decode(tokens, n_past, logits_all)
        self._decode_pos, self._decode_len = n_past, len(tokens)
        self._requires_eval = False

    def _verify(self, id_last: int, draft: Draft, n_past: int) -> None:
        """One pass of the target over the last token and a draft, which may be taken back in parts."""
        self._check_servers()
        self._requires_eval = True
        self._decode_len = 0
        tokens = [id_last, *draft.tokens]
        if draft.is_chain:
            self._rollback.begin(len(tokens))
            try:
                self._target.decode(tokens, n_past)
            except BaseException:
                self._rollback.abort()
                raise
        else:
            self._target.decode_tree(tokens, [-1, *(parent + 1 for parent in draft.parents)], n_past)
        self._decode_pos, self._decode_len = n_past, len(tokens)
        self._requires_eval = False

    def _check_servers(self) -> None:
        """Raise RpcError if an rpc server has gone: llama.cpp would end the process."""
        if self._servers is not None:
            self._servers.check()

    def _keep(self, token: int, row: int) -> None:
        """Accept a token of the open round: from here on it is part of the context."""
        n_past, opened = self.n_tokens, self._round
        self.input_ids[n_past] = token
        if self._logits_all:
            self.scores[n_past] = self._target.logits(row)
        if opened is not None:
            opened.path.append(row)
            opened.tokens.append(token)
            self._decode_path = opened.path
        self.n_tokens = self._own_end = n_past + 1

    def _last_row(self) -> int:
        """Row of our last decode that belongs to the last token; -1 if somebody else has decoded that one."""
        return self._row_at(self.n_tokens - 1)

    def _row_at(self, position: int) -> int:
        """Row of our last decode that belongs to a position of the context; -1 if none does."""
        i = position - self._decode_pos
        if self._decode_path is not None:
            return self._decode_path[i] if 0 <= i < len(self._decode_path) and self._decode_len else -1
        return i if 0 <= i < self._decode_len else -1

    def _logits(self, row: int) -> npt.NDArray[np.single]:
        if row >= 0:
            return self._target.logits(row)
        return np.array(np.ctypeslib.as_array(self._ctx.get_logits_ith(-1), shape=(self._n_vocab,)))

    def _begin_text(self) -> None:
        """Another prompt is about to be evaluated."""

    def _go_back(self, n_past: int) -> None:
        """Keep exactly the first tokens of the context."""
        commit(self)
        self.n_tokens = n_past
        self._eval([])

    def _prefill(self, tokens: list[int], reset: bool) -> None:
        """Evaluate a prompt, reusing what the context has of it already (Llama's rules)."""
        start_ns = perf_counter_ns()
        commit(self)
        self._begin_text()
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
                start = self._rewind(n_reuse, same_next=consumed) if n_reuse > 0 else 0
                if start > 0 and (start >= self._unseen_end or start == n_reuse):
                    tokens, reset = tokens[start:], False
                    if self.verbose:
                        print(f"Eagle3Llama.generate: reusing {start} evaluated tokens", file=sys.stderr)
        if reset:
            self._reset()
        if self._rollback.kind != "trim" and len(tokens) > 1:
            # the state before the prompt's last token is where the same prompt, or a longer one, can go on
            self._eval(tokens[:-1])
            self._target.save()
            tokens = tokens[-1:]
        self._eval(tokens)
        if self._rollback.kind == "trim":
            self._target.save()  # only sliding windows need it
        self._refresh_logits()
        self._stats.prefill_ns += perf_counter_ns() - start_ns

    def _rewind(self, n_tokens: int, same_next: bool = False) -> int:
        """Keep the first tokens of the context. Returns the position from which they must be evaluated again.

        That is less than n_tokens where the memory can only go back to a saved state, or where the draft needs the row
        before it once more because another token is to follow it; with `same_next` it is the same one.
        """
        drafter = self._drafter
        start = n_tokens
        if drafter is not None and drafter.n_past() > n_tokens:
            start = drafter.truncate(n_tokens, same_next=same_next)
        start = self._target.truncate(start)
        self.n_tokens = self._own_end = start
        self._requires_eval = True
        return start

    def reset(self) -> None:
        """Forget everything that was evaluated."""
        with self._guard:
            self._epoch += 1
            self._reset()

    def _reset(self) -> None:
        self._round = None
        self._decode_len = 0
        self._own_end = self._unseen_end = 0
        self._target.truncate(0)
        super().reset()
        if self._drafter is not None:
            self._drafter.reset()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            commit(self)
            self._check_servers()
            self._target.settle()
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
                self._own_end = self.n_tokens
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
