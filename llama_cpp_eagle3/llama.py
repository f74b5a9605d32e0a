"""`Eagle3Llama`: a `llama_cpp.Llama` that drafts with an EAGLE-3 head."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any, Literal

from llama_cpp import LlamaGrammar, LlamaTokenizer, LogitsProcessorList, StoppingCriteriaList

from .batch import BatchResult, make_lanes, run_batch
from .drafting import DRAFT_SETTINGS, Drafting
from .errors import Eagle3Error
from .features import Features
from .hub import download
from .options import DraftOptions, check_names, check_values, draft_mode
from .sampling import CheckedProcessors, Draw, chain_draw, changes_logits, check_grammar, foreign_draw, n_best_needed
from .speculative import Speculation, commit
from .stats import Stats
from .text import token_to_piece

_NOT_SAMPLING = ("self", "prompts", "options", "progress")


class Eagle3Llama(Drafting):
    """A `llama_cpp.Llama` whose generation is sped up by an EAGLE-3 head, without changing what comes out.

    Everything that Llama offers is there. Without a `draft_model_path` it is a plain Llama on the same engine.

    Example:
        >>> llm = Eagle3Llama("target.gguf", draft_model_path="eagle3.gguf", n_ctx=4096)
        >>> llm("def fibonacci(", max_tokens=64, temperature=0)["choices"][0]["text"]
        >>> llm.last_stats
    """

    last_token_drafted: bool = False
    """Whether the token that `generate` yielded last had been drafted."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        draft_model_path: str | os.PathLike[str] | None = None,
        draft: Literal["auto", "chain", "tree"] | None = None,
        draft_n_max: int | None = None,
        draft_n_min: int = 0,
        draft_p_min: float = 0.0,
        draft_tree_depth: int | None = None,
        draft_tree_topk: int | None = None,
        draft_tree_tokens: int | None = None,
        draft_n_gpu_layers: int = -1,
        draft_device: str | None = None,
        draft_type: int | None = None,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        draft_target_layers: Sequence[int] | None = None,
        n_parallel: int = 1,
        rpc_servers: str | Sequence[str] | None = None,
        checked: bool = True,
        **options: Any,
    ):
        """Load a target and, if given, its head. Loading is all or nothing.

        Args:
            model_path: the target, a GGUF file.
            draft_model_path: the EAGLE-3 head, a GGUF file in llama.cpp's dialect or ours.
            draft: "auto" drafts in every round what pays best on this machine, which may be nothing; "chain" drafts
                draft_n_max tokens, "tree" a tree. Default: "tree" or "chain" if one of their arguments is given, else
                "auto". On targets with a recurrent state trees become chains.
            draft_n_max: how many tokens that follow each other to draft per round, at most (default 3, in auto 8).
            draft_n_min: shorter chains are dropped.
            draft_p_min: a chain ends before a token that is less likely than this.
            draft_tree_depth: levels of a tree (default 4); SGLang calls them steps.
            draft_tree_topk: successors that are looked at behind each of the best nodes of a level (default 3).
            draft_tree_tokens: nodes of a tree that are verified (default 8).
            draft_n_gpu_layers: 0 = the head runs on the CPU, > 0 = on this machine's first accelerator, -1 = where the
                target's lm_head is, or on this machine's first accelerator if that is on an rpc server.
            draft_device: where the head runs instead: a ggml device (CPU, CUDA0, ...) or one of `rpc_servers`.
            draft_type: ggml type to which the head's matrices are converted while loading, those that are wider: less
                is read then, and a few drafts fewer are accepted. F32 leaves all as they are. Default: as they are, or
                with draft="auto" Q4_0, if that was measured to draft so much faster that it pays.
            draft_type_k: ggml type of the head's K cache (default F16).
            draft_type_v: ggml type of the head's V cache (default F16).
            draft_target_layers: which hidden states to read, as numbers of layers they have passed, instead of what
                the head's file says. Without a head: which ones `features` gives.
            n_parallel: how many prompts `generate_batch` advances together; they share n_ctx.
            rpc_servers: ggml-rpc servers whose devices hold the target's layers, beside this machine's accelerators, as
                ["HOST:PORT", ...] or "HOST:PORT,HOST:PORT". `n_gpu_layers` is -1 (all) then, if it is not given.
            checked: load the header of a target that this machine has not seen yet in a process of its own first (a few
                tenths of a second, once), so that no damaged file can end this one.
            **options: what `llama_cpp.Llama` takes.

        Raises:
            ModelFileError: a file is missing or is not what it should be.
            IncompatibleDraftError: head and target do not belong together.
            RpcError: one of the rpc_servers cannot be used.
        """
        tree = (draft_tree_depth, draft_tree_topk, draft_tree_tokens)
        mode = draft_mode(draft, draft_n_max is not None or bool(draft_n_min or draft_p_min), tree != (None,) * 3)
        draft_options = DraftOptions(
            model_path=None if draft_model_path is None else os.fspath(draft_model_path),
            mode=mode,
            n_max=(8 if mode == "auto" else 3) if draft_n_max is None else draft_n_max,
            n_min=draft_n_min,
            p_min=draft_p_min,
            tree_depth=4 if draft_tree_depth is None else draft_tree_depth,
            tree_topk=3 if draft_tree_topk is None else draft_tree_topk,
            tree_tokens=max(8, draft_tree_depth or 0) if draft_tree_tokens is None else draft_tree_tokens,
            n_gpu_layers=draft_n_gpu_layers,
            device=draft_device,
            type=draft_type,
            type_k=draft_type_k,
            type_v=draft_type_v,
            target_layers=None if draft_target_layers is None else [int(b) for b in draft_target_layers],
            n_parallel=n_parallel,
        )
        check_names(options, Eagle3Llama.__init__)
        check_values(draft_options, options)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        super().__init__(os.fspath(model_path), draft_options, rpc_servers, options | {"checked": checked})

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
                            self._take_argmax_on_device(draw == self._target.argmax and not stopping_criteria)
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

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        progress: bool | None = None,
    ) -> list[BatchResult]:
        """Complete prompts, `n_parallel` at a time, with one draft graph and one pass of the target per round for all.

        Each prompt gets what `create_completion` would give it alone. Finished ones make room for those that wait. What
        the context held before is forgotten.

        Args:
            prompts: texts, or tokens.
            options: what is different for single prompts, one mapping of the arguments below for each.
            max_tokens: None = as many as the prompt's share of n_ctx holds.
            stop: strings that end a text, and are cut off.
            seed: of each prompt's sampler; None = the model's.
            temperature: 0 = greedy. This and the following: as `create_completion` takes them.
            top_k: see there.
            top_p: see there.
            min_p: see there.
            typical_p: see there.
            repeat_penalty: see there.
            frequency_penalty: see there.
            presence_penalty: see there.
            tfs_z: see there.
            mirostat_mode: see there.
            mirostat_tau: see there.
            mirostat_eta: see there.
            logits_processor: see there; a processor gets the tokens of its own prompt.
            grammar: see there.
            progress: show a tqdm bar over the prompts; None = on a terminal.

        Returns:
            One result per prompt, in their order.

        Raises:
            ContextFullError: a prompt and its max_tokens do not fit into n_ctx.
        """
        common = {name: value for name, value in locals().items() if name not in _NOT_SAMPLING}
        for option in options or ():
            unknown = set(option) - set(common)
            if unknown:
                raise TypeError(f"generate_batch() got unexpected options {sorted(unknown)}")
        with self._guard:
            start = perf_counter_ns()
            self._epoch += 1
            lanes = make_lanes(self, prompts, options, common)
            self._begin_stats()
            seed_before = self._seed
            try:
                return run_batch(self, lanes, progress)
            finally:
                self._seed = seed_before
                self._stats.total_ns += perf_counter_ns() - start

    def _make_draw(self, logits_processor: LogitsProcessorList | None, options: dict[str, Any]) -> Draw:
        """Set up Llama's sampler chain, and how to draw with it."""
        self._sampler, draw = self._make_chain(logits_processor, options)
        return draw

    def _make_chain(
        self, logits_processor: Iterable[Callable[..., Any]] | None, options: dict[str, Any]
    ) -> tuple[Any, Draw]:
        """A sampler chain as Llama makes it, and how to draw with it."""
        check_grammar(self._model.vocab, options.get("grammar"))
        processors = CheckedProcessors(logits_processor) if logits_processor else None
        sampler = self._init_sampler(logits_processor=None if processors is None else processors.as_list(), **options)
        n_best = 0 if processors is not None or self._changes_logits(**options) else n_best_needed(**options)
        if n_best == 1:
            return sampler, self._target.argmax
        return sampler, chain_draw(self._target, sampler, processors, n_best)

    def _changes_logits(self, **options: Any) -> bool:
        """Whether the chain makes other logits of the target's."""
        return changes_logits(**options)

    def sample(self, *args: Any, idx: int | None = None, **options: Any) -> int:
        """Draw one token, as `Llama.sample` does, from the logits of the last token or of the one at position `idx`."""
        with self._guard:
            commit(self)
            self._take_argmax_on_device(False)
            self._refresh_logits()
            sampler = self._sampler if self._sampler is not None else self._init_sampler(*args, **options)
            if idx is None and self._last_row() < 0:
                return int(sampler.sample(self._ctx))
            row = self._row_at(self.n_tokens - 1 if idx is None else idx)
            if row < 0:
                raise ValueError(f"expected a position that was decoded last, found {idx}")
            return chain_draw(self._target, sampler, None)(row)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """Text of tokens, as `Llama.detokenize` gives it; but pieces longer than 32 bytes are not lost."""
        if type(self.tokenizer_) is not LlamaTokenizer:
            return bytes(super().detokenize(tokens, prev_tokens, special))
        text = b"".join([self._piece(token, special) for token in tokens])
        return text[1:] if text[:1] == b" " and tokens[0] == self._model.token_bos() else text

    def _piece(self, token: int, special: bool) -> bytes:
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = token_to_piece(self._model.vocab, token, special)
        return piece

    @property
    def features(self) -> Features:
        """Hidden states of what `eval` or `generate` decoded last, (n_tokens, n_boundaries, n_embd); see `Features`."""
        with self._guard:
            if self._tap is None:
                raise Eagle3Error("no features: give a draft_model_path or draft_target_layers")
            return Features(
                self._tap.rows,
                tokens=self._target.tokens,
                positions=self._target.pos,
                boundaries=self._tap.boundaries,
            )

    @property
    def stats(self) -> Stats:
        """Figures since creation."""
        return self._stats_before + self._stats

    @property
    def last_stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return Stats() + self._stats

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
        draft = {f"draft_{name}": value for name, value in asdict(self._draft_options).items()}
        draft |= {"draft": draft.pop("draft_mode"), "n_parallel": draft.pop("draft_n_parallel")}
        return {
            **super().__getstate__(),
            **draft,
            **{name: getattr(self, name) for name in DRAFT_SETTINGS},
            "rpc_servers": self._rpc_servers,
            "checked": self._checked,
        }
