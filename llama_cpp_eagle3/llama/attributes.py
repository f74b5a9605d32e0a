"""The attributes of `Eagle3Llama`: drafting, its parts, figures, and those that llama_cpp's methods read and set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from llama_cpp import LlamaTokenizer, llama_chat_format
from llama_cpp._internals import LlamaBatch, LlamaModel

from .._core import FeatureTap, Guard, Policy, Target
from ..draft.kinds import DraftSource
from ..engine import Drafters, DraftSettings, Engine, PrefixStats, Rng, SamplerChain
from ..engine.arguments import as_type, hints
from ..engine.stats import Stats
from ..errors import Eagle3Error
from ..files.model_file import check_projector
from ..guard import closed_error
from ..model.loaded import Loaded
from ..model.plan import LoadPlan
from ..model.target import LoadedTarget, numa_strategy
from .context import Context
from .features import Features

if TYPE_CHECKING:
    from ..draft.learn import Keeper
    from ..media import Projector

DRAFT_ATTRIBUTES = tuple("draft" if f.name == "mode" else f"draft_{f.name}" for f in fields(DraftSettings))


def _setting(name: str) -> Any:
    """An attribute that is a field of `draft_settings`."""

    own = "draft" if name == "mode" else f"draft_{name}"
    hint = tuple[DraftSource, ...] if name == "sources" else dict(hints(DraftSettings))[name]

    def change(llm: LlamaAttributes, value: Any) -> None:
        value = as_type(own, value, hint)
        llm.draft_settings = replace(llm.draft_settings, **{name: value})

    return property(lambda llm: getattr(llm.draft_settings, name), change)


_AS_GIVEN = (
    "verbose", "tensor_split", "kv_overrides", "n_batch", "n_threads", "n_threads_batch", "last_n_tokens_size",
    "lora_base", "lora_scale", "lora_path", "spm_infill", "chat_format", "draft_model",
)  # fmt: skip


class LlamaAttributes:
    """Attributes of `Eagle3Llama`: those of `llama_cpp.Llama`, and its own."""

    draft_settings: DraftSettings
    """The attributes `draft`, `draft_n_max`, ... as one object."""
    _context: Context
    _ctx: Any
    _guard: Guard
    _loaded: Loaded | None
    _plan: LoadPlan
    _projector: Projector | None
    _keeper: Keeper | None
    _stack: ExitStack
    n_batch: int
    verbose: bool
    chat_format: str | None
    _seed: int | None
    _sampler: SamplerChain | None

    def _set_attributes(self, target: LoadedTarget) -> None:
        """Set the attributes of `llama_cpp.Llama` that its methods and its users read."""
        options, model, ctx = target.options, target.model, target.ctx
        self.model_path, self._model, self._ctx = target.plan.path, model, ctx
        self.model_params, self.context_params = model.params, ctx.params
        for name in _AS_GIVEN:
            setattr(self, name, options[name])
        self._seed = int(options["seed"])
        self._logits_all = options["logits_all"]
        self.numa = numa_strategy(options["numa"])
        self.tokenizer_ = options["tokenizer"] or LlamaTokenizer(cast("Any", self))
        batch = LlamaBatch(n_tokens=self.n_batch, embd=0, n_seq_max=1, verbose=self.verbose)
        self._batch = self._stack.enter_context(closing(batch))
        self._n_vocab, self._n_ctx = model.n_vocab(), ctx.n_ctx()
        self.cache = self._sampler = None
        self.metadata = model.metadata()
        self._chat_handlers = _chat_handlers(model, self.metadata)
        self._chat_handler = options["chat_handler"]
        if self.chat_format is None and self.chat_handler is None:
            self.chat_format = "llama-2"
            if "chat_template.default" in self._chat_handlers:
                known = llama_chat_format.guess_chat_format_from_gguf_metadata(dict(self.metadata))
                self.chat_format = known or "chat_template.default"

    # how to draft, see `Eagle3LlamaOptions`; the next generation does it so
    draft: str = _setting("mode")
    draft_sources: Sequence[str] = _setting("sources")
    draft_n_max: int = _setting("n_max")
    draft_ngram_n_max: int = _setting("ngram_n_max")
    draft_n_min: int = _setting("n_min")
    draft_p_min: float = _setting("p_min")
    draft_tree_depth: int = _setting("tree_depth")
    draft_tree_topk: int = _setting("tree_topk")
    draft_tree_tokens: int = _setting("tree_tokens")

    # what it is made of

    @property
    def loaded(self) -> Loaded:
        """The loaded models: their devices, kernels and drafters, and what passes cost."""
        if self._loaded is None:
            raise closed_error(type(self).__name__)
        return self._loaded

    @property
    def engine(self) -> Engine:
        """The engine that generates; add sequences of your own and call `step`."""
        return self.loaded.engine

    @property
    def target(self) -> Target:
        """The target's context with `decode`, `sample`, `argmax` and `truncate`, for your own loop."""
        return self.engine.target

    @property
    def tap(self) -> FeatureTap | None:
        """The tap that reads the target's hidden states; None without a head."""
        return None if self._loaded is None else self._loaded.target.tap

    @property
    def drafters(self) -> Drafters:
        """The drafters with weights, with `process`, `begin`, `expand` and `truncate`, for your own loop."""
        return self.engine.drafters

    @property
    def policy(self) -> Policy:
        """Chooses what to draft; `stats()` shows its choices in `draft="auto"`, once `is_measured` is true."""
        return self.engine.drafting.policy

    @property
    def projector(self) -> Projector | None:
        """The encoder of images and sounds; None without an mmproj_path."""
        return self._projector

    @property
    def chat_handler(self) -> Any:
        """The handler that answers conversations in place of a chat format; multimodal ones use the engine."""
        return self._chat_handler

    @chat_handler.setter
    def chat_handler(self, handler: Any) -> None:
        self._chat_handler = as_type("chat_handler", handler, Callable[..., Any] | None)
        if self._loaded is not None:
            self._hook_handler()

    def _hook_handler(self) -> None:
        """Let a multimodal handler use the engine."""
        if self._chat_handler is not None:
            from ..media import hook_handler

            hook_handler(self._chat_handler, cast("Any", self), int(self._ctx.ctx))

    def check_projector(self, path: str) -> None:
        """Raise ModelFileError for a projector's file that llama.cpp would not survive with this model."""
        check_projector(path, self._plan.path, self._plan.options, self._plan.given["checked"])

    @property
    def rng(self) -> Rng:
        """The random generator, see `Sampling.rng`; setting it changes texts that begin later."""
        return self._rng

    @rng.setter
    def rng(self, rng: Rng) -> None:
        self._rng: Rng = as_type("rng", rng, Rng)

    @property
    def draft_model_path(self) -> str | None:
        """The drafter's file, of several the first; None without one."""
        return (self._plan if self._loaded is None else self._loaded.plan).draft_path

    @property
    def keeper(self) -> Keeper | None:
        """Keeps texts in the folder of `learn_dir`; None: they are not kept."""
        return self._keeper

    @property
    def draft_type(self) -> int | None:
        """The ggml type to which the head's wider matrices were converted; None = they are as in the file."""
        return self._plan.draft_type if self._loaded is None else self._loaded.draft_type

    @property
    def model_address(self) -> int:
        """Address of the loaded llama_model, for functions of llama.h."""
        return int(self._model.model)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the context. Set fewer to go back, or more after decoding them with llama.cpp itself."""
        return self._context.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._context.set_n_tokens(n)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """Tokens of the context, int32 (n_ctx,); the first n_tokens are valid."""
        return self._context.input_ids

    @property
    def scores(self) -> npt.NDArray[np.single]:
        """Logits, float32 (n_ctx, n_vocab), with `logits_all`."""
        return self._context.scores

    @property
    def last_token_drafted(self) -> bool:
        """Whether the token that `generate` yielded last had been drafted."""
        return self._context.last_token_drafted

    @property
    def features(self) -> Features:
        """Hidden states of the last decode, see `Features`: float32 (n_tokens, n_boundaries, n_embd)."""
        with self._guard:
            tap, target = self.tap, self.target
            if tap is None:
                raise Eagle3Error("no features: give a draft_model_path or draft_target_layers")
            return Features(tap.rows, tokens=target.tokens, positions=target.pos, boundaries=tap.boundaries)

    @property
    def stats(self) -> Stats:
        """Figures of everything since the model was loaded."""
        return self._context.total_stats

    @property
    def prefix_stats(self) -> PrefixStats:
        """The contents of the prefix cache, and what it did since the model was loaded."""
        return self.engine.slots.cache.stats

    @property
    def last_stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return Stats() + self._context.stats


def _chat_handlers(model: LlamaModel, metadata: Mapping[str, str]) -> dict[str, Any]:
    """llama_cpp's chat handlers for the templates of a file, by the names under which `Llama` has them.

    Raises:
        jinja2.TemplateError, UnicodeDecodeError: see `file_errors`.
    """
    templates = {
        name.removeprefix("tokenizer."): template
        for name, template in metadata.items()
        if name.startswith("tokenizer.chat_template.")
    }
    if "tokenizer.chat_template" in metadata:
        templates["chat_template.default"] = metadata["tokenizer.chat_template"]
    eos, bos = model.token_eos(), model.token_bos()
    return {
        name: llama_chat_format.Jinja2ChatFormatter(
            template=template,
            eos_token=model.token_get_text(eos) if eos != -1 else "",
            bos_token=model.token_get_text(bos) if bos != -1 else "",
            stop_token_ids=[eos],
        ).to_chat_handler()
        for name, template in templates.items()
    }
