"""`Eagle3Llama`: a `llama_cpp.Llama` that drafts with an EAGLE-3 head.

`attributes` has its attributes, `completion` its methods for texts and conversations, `context` the text of `eval` and
`generate`. A `LoadPlan` says what it loads, and the result is `Loaded`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_cpp import LlamaGrammar, LlamaState, LlamaTokenizer, LogitsProcessorList, StoppingCriteriaList

from .._core import Guard
from ..config.eagle3_options import DEFAULTS, DraftPaths, check_arguments, check_names, drafter_paths, show_arguments
from ..config.llama_options import LLAMA_DEFAULTS
from ..engine import Media, SamplerChain, Sampling, token_list
from ..engine.arguments import as_type
from ..errors import Eagle3Error
from ..files.model_file import file_errors
from ..guard import bury
from ..log import log_fetch, log_info, show_llama_cpp
from ..model.loaded import Loaded
from ..model.plan import plan
from ..model.rpc import RpcServers
from ..model.target import LoadedTarget, load_target
from ..models import resolve
from .attributes import DRAFT_ATTRIBUTES
from .completion import LlamaCompletion
from .context import Context, Generation
from .interrupts import interrupts_at_end
from .sampling_arguments import checked
from .state import Eagle3State, check_state

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ..config.eagle3_options import ConstructorOptions, Eagle3LlamaOptions
    from ..draft.learn import Keeper, Opening
    from ..media import Projector

_FROM_PRETRAINED = (
    "filename", "additional_files", "local_dir", "cache_dir", "draft_repo_id", "draft_filename", "token", "offline",
)  # fmt: skip
_NOT_PICKLED = ("progress", "draft_ngram_store")


def _open_learning(path: str | os.PathLike[str] | None, target: str) -> Opening | None:
    if path is None:
        return None
    from ..draft.learn import Opening  # not above: most models learn nothing

    return Opening(path, target)


class Eagle3Llama(LlamaCompletion):
    """A `llama_cpp.Llama` that generates faster by speculative decoding with an EAGLE-3 head. The output is the same.

    It has all methods of `llama_cpp.Llama`. Without a `draft_model_path` n-grams draft: what followed before in the
    text. With `draft_sources=()` it is a plain Llama on the same engine.

    Examples:
        >>> llm = Eagle3Llama("target.gguf", draft_model_path="eagle3.gguf", n_ctx=4096)
        >>> llm("def fibonacci(", max_tokens=64, temperature=0)["choices"][0]["text"]
        >>> llm.last_stats
    """

    @show_arguments
    def __init__(
        self,
        model_path: str | os.PathLike[str],
        draft_model_path: DraftPaths = None,
        **options: Unpack[Eagle3LlamaOptions],
    ):
        """Load a target and, if given, its drafter. Loading is all or nothing.

        Args:
            model_path: the target: a GGUF file, or one of `models.names()`, which is fetched if it is not there.
            draft_model_path: the drafter, a file or a name too: an EAGLE-3 head in llama.cpp's dialect or ours; a block
                drafter (dflash); a small model of the target's vocabulary; or the target's block for multi-token
                prediction in a file of its own (mtp-*.gguf). A list: of several kinds, and each drafts where it pays.
            **options: what `llama_cpp.Llama` takes, and our own arguments: see `Eagle3LlamaOptions`. An unknown name is
                a TypeError.

        Raises:
            ModelFileError: a file is missing, damaged or of another kind.
            IncompatibleDraftError: head and target do not belong together.
            RpcError: one of the rpc_servers cannot be used.
        """
        given: ConstructorOptions = {**DEFAULTS, **options, "draft_model_path": draft_model_path}
        check_arguments("Eagle3Llama", given)
        as_type("model_path", model_path, str | os.PathLike[str])
        log, fetch = (partial(function, given.get("verbose", True)) for function in (log_info, log_fetch))
        path = resolve(model_path, fetch)
        drafts = [resolve(draft, fetch) for draft in drafter_paths(draft_model_path)]
        self._stack = ExitStack()
        self._keeper: Keeper | None = None
        learned = self._learned = _open_learning(given["learn_dir"], path)
        try:
            if learned is not None:
                self._stack.callback(learned.close)
                drafts = learned.drafters(drafts)
            given["draft_model_path"] = drafts or None
            self._plan = plan(path, given)
        except BaseException:
            self._stack.close()
            raise
        self._guard = Guard(type(self).__name__)
        self._context = Context()
        self._loaded: Loaded | None = None
        self._projector: Projector | None = None
        show_llama_cpp(bool(self._plan.options["verbose"]))
        self.n_parallel = given["n_parallel"]
        self.rng = given["rng"]
        self.draft_settings = self._plan.settings
        servers = RpcServers()
        try:
            servers = self._stack.enter_context(closing(RpcServers(given["rpc_servers"] or ())))
            with interrupts_at_end():
                target = load_target(self._plan, servers, self._stack, log)
                with file_errors(path):
                    self._set_attributes(target)
                self._start(target, log)
        except BaseException as e:
            try:
                if isinstance(e, Exception):
                    servers.check()  # if one was lost meanwhile, that is why
            finally:
                self.close()
            raise

    def _start(self, target: LoadedTarget, log: Callable[[str], None]) -> None:
        """Make the engine of the loaded target, with drafters and a projector if they are given."""
        given = self._plan.given
        if self._learned is not None:
            boundaries = () if target.tap is None else target.tap.boundaries
            self._keeper = self._learned.start(self._plan.lora, boundaries, given["learn_max_bytes"])
        kept = None if self._keeper is None else self._keeper.ngrams()
        loaded = self._loaded = self._stack.enter_context(closing(Loaded(target, log, kept)))
        engine, self._plan = loaded.engine, loaded.plan
        if self._keeper is not None:
            engine.keep_texts(self._keeper.take)
            for drafter in engine.drafters:
                if drafter.draft_vocab:
                    drafter.draft_always(self._keeper.frequent_tokens())
        self.draft_sources = self._plan.settings.sources  # without a block that cannot draft
        engine.draft = self.draft_settings
        self._n_ctx = engine.n_ctx
        self._context.start(loaded, logits_all=self._logits_all)
        self._hook_handler()
        if given["mmproj_path"] is not None:
            from ..media import open_projector

            self._projector = open_projector(self, given["mmproj_path"], given["media_placeholder"])
            self._stack.enter_context(closing(self._projector))
            log(self._projector.describe())
            for file in self._plan.drafts:
                if file.of_media:
                    log(file.of_media)
        if self.draft == "auto":
            loaded.use_stored_type()

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        token: str | None = None,
        offline: bool = False,
        **kwargs: Unpack[ConstructorOptions],
    ) -> Eagle3Llama:
        """Load a target, and a head if one is named, from the Hugging Face hub (needs the extra `hub`).

        Args:
            repo_id: the target's repository, USER/REPO or USER/REPO:QUANT.
            filename: the target's file in it, or a glob pattern that matches one file, instead of QUANT. Without both
                it is the Q4_K_M one, else Q8_0, else the first. Shards come all.
            additional_files: more files of the target's repository, or patterns.
            local_dir: where to put GGUF files, instead of the hub's cache.
            local_dir_use_symlinks: ignored, as by Llama: huggingface_hub decides that itself.
            cache_dir: the hub's cache.
            draft_repo_id: the head's repository, USER/REPO or USER/REPO:QUANT (default: the target's, if
                `draft_filename` is given). A Hugging Face checkpoint without a GGUF file is converted for the target,
                once per revision. "auto" is the small model of the target's family ([which](pairs.md#small-models)).
            draft_filename: the head's file, or a pattern.
            token: for gated and private repositories; default: HF_TOKEN, or the token of `hf auth login`.
            offline: use the files that are on this machine already. HF_HUB_OFFLINE=1 does the same.
            **kwargs: what the constructor takes.

        Raises:
            HubError: the hub has no such file, refuses it, or does not answer.
            ImportError: a package of the extra `hub` is missing.
        """
        from ..hub import Access, fetch_pair

        check_names("Eagle3Llama.from_pretrained", kwargs, *_FROM_PRETRAINED)
        if "draft_model_path" in kwargs and (draft_repo_id is not None or draft_filename is not None):
            raise TypeError("give either draft_model_path or draft_repo_id and draft_filename")
        pair = fetch_pair(
            repo_id,
            draft_repo_id,
            Access(cache_dir, local_dir, token, offline),
            target_file=filename,
            more_files=tuple(additional_files or ()),
            head_file=draft_filename,
            log=partial(log_info, bool(kwargs.get("verbose", True))),
        )
        if pair.head is not None:
            kwargs["draft_model_path"] = pair.head
        assert pair.target is not None
        return cls(pair.target, **kwargs)

    def close(self) -> None:
        """Free everything. This also happens when the object is deleted. In a fork of its process nothing is freed."""
        guard = self.__dict__.get("_guard")
        if guard is None or guard.closed or guard.is_inherited:
            return
        with guard:
            guard.closed = True
            self._loaded = self._sampler = None
            self._context.close()
            super().close()  # all of the stack: projector, engine, drafters, target, connections to servers
            for name in ("_model", "_ctx", "_batch"):
                if name in self.__dict__:
                    bury(self.__dict__[name], type(self).__name__)

    def __enter__(self) -> Self:
        with self._guard:
            return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._loaded is None:
            return f"<{name} closed>"
        head = "" if self.draft_model_path is None else f" draft={self.draft_model_path!r}"
        return f"<{name} {self.model_path!r}{head} n_ctx={self.n_ctx()} n_parallel={self.n_parallel}>"

    def __getstate__(self) -> dict[str, Any]:
        others = (*LLAMA_DEFAULTS, *_NOT_PICKLED)
        given = {name: value for name, value in self._plan.given.items() if name not in others}
        changed = {name: getattr(self, name) for name in (*DRAFT_ATTRIBUTES, "rng")}
        return {**super().__getstate__(), **given, **changed}

    def set_seed(self, seed: int | None) -> None:
        """Set the seed of texts that name none; None: another one each time."""
        self._seed = as_type("seed", seed, int | None)  # llama_cpp's Random takes no integers of NumPy

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head again with its matrices in another ggml type; its cache is empty then."""
        with self._guard:
            self.loaded.convert_draft(draft_type)

    def use_learned(self, version: int, gain: float = 0.0) -> Callable[[], None]:
        """Load a head of the folder of `learn_dir` beside the one that drafts; the result puts it in its place.

        The second call belongs between two steps; the first may come from any thread.

        Args:
            version: its number; 0: the head that came with the model.
            gain: tokens a step that it is expected to give beyond the present one.

        Raises:
            Eagle3Error: there is no such head, or it cannot be used.
        """
        learned = self._learned
        if learned is None:
            raise Eagle3Error("nothing is learned: learn_dir was not given")
        path = learned.heads.path(version) if version else learned.first_head()
        if path is None:
            raise Eagle3Error(f"head {version} of '{learned.folder.path}' is gone")
        return partial(self.loaded.use_head, self.loaded.load_head(str(path)), gain)

    def calibrate(self, seconds: float | None = None, log: Callable[[str], None] | None = None) -> None:
        """Measure what passes cost now, unless that is known; else the first generation with `draft="auto"` does it.

        Args:
            seconds: to spend; None: 2, and at most 0.3 if n-grams alone draft.
            log: called with a line before it begins, and with the results; None: by `verbose`.

        Raises:
            Eagle3Error: they must be measured, and the context is not empty.
        """
        as_type("seconds", seconds, float | None)
        with self._guard:
            self._context.stats.calibrate_ns += self.loaded.have_costs(seconds, must=True, log=log)

    # what Llama's own methods read and set

    def n_ctx(self) -> int:
        """Positions of the context, or of each sequence's part of it."""
        return int(super().n_ctx()) if self._loaded is None else self.engine.n_ctx

    # generating

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
        *,
        ignore_eos: bool = False,
        sampling: Sampling | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow `tokens`, as `Llama.generate` does and with its arguments.

        The consumer may `send` tokens, which are appended after the last one. The generator can be closed at any
        token; the context then holds all tokens before it, as Llama's does. Stopping criteria get the logits that the
        token was sampled from.

        Args beside those of `Llama.generate`:
            ignore_eos: never sample a token that ends the text.
            sampling: all of llama.cpp's sampling options, instead of the arguments above.

        Raises:
            ContextFullError: no room for the tokens, or for one more.
        """
        given = checked(locals())
        sampling = given["sampling"] or self._defaults.sampling(given)
        prompt = token_list(given["tokens"], self.engine.vocab.n_tokens)

        def begin() -> Generation:
            self._sampler = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
            self._sampler.see(prompt)
            settings = self.draft_settings
            self._context.begin_run(settings)
            return Generation(self._sampler, settings, stopping_criteria)

        yield from self._context.generate(self._guard, begin, prompt, reset)

    # evaluating and drawing token by token

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those of the context, in target and draft.

        Raises:
            ContextFullError: they do not fit; nothing is evaluated then.
        """
        with self._guard, self._context.timed():
            self._context.eval(token_list(tokens, self.engine.vocab.n_tokens))

    def eval_media(self, media: Media) -> None:
        """Evaluate an image after the tokens of the context, in target and draft.

        Raises:
            ContextFullError: it does not fit; nothing is evaluated then.
            ValueError: its rows see each other, and n_batch or n_ubatch is smaller than it.
        """
        with self._guard, self._context.timed():
            self._context.eval_media(as_type("media", media, Media))

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
        arguments = checked(locals())
        with self._guard:
            chain = self._sampler
            if chain is None:
                sampling = self._defaults.sampling(arguments)
                chain = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
            return self._context.sample(chain, arguments["idx"])

    # saved states

    def reset(self) -> None:
        """Clear the context."""
        with self._guard:
            self._context.clear()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            servers = self.loaded.target.servers
            servers.check()
            engine = self._context.flush()
            draft_state = engine.drafters.state_get(0)
            state = super().save_state()
            servers.check()
            return Eagle3State(state, draft_state, self.loaded.pair_id, engine.target.spans())

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state. One that a plain Llama saved works too; drafting then pauses until the next prompt.

        Raises:
            IncompatibleDraftError: the state belongs to another pair, or does not fit the context.
            ValueError: the state is damaged, or was saved with another model, n_ctx, type_k, type_v or flash_attn.
        """
        with self._guard:
            servers = self.loaded.target.servers
            check_state(state, self.loaded.pair_id, self._n_ctx)
            servers.check()
            self._context.load(state, self.ctx)
            servers.check()
            self._seed = state.seed

    # figures and features

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """Text of tokens, as `Llama.detokenize` gives it; but pieces longer than 32 bytes are not lost."""
        if type(self.tokenizer_) is not LlamaTokenizer:
            return bytes(super().detokenize(tokens, prev_tokens, special))
        tokens, special = as_type("tokens", tokens, list[int]), as_type("special", special, bool)
        text = b"".join([self.engine.vocab.piece(token, special) for token in tokens if token >= 0])
        return text[1:] if text[:1] == b" " and tokens[0] == self._model.token_bos() else text
