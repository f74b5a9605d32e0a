"""The constructor's arguments: their defaults, and checks before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import llama_cpp

from ..config.llama_options import N_CTX_MAX
from ..draft.kinds import KINDS, NGRAM, DrafterFile, DraftSource, MtpBlock, kind_of_source
from ..draft.kinds.eagle3 import Eagle3Head
from ..engine import DraftSettings
from ..engine.request import DraftMode
from ..ggml_types import CACHE_TYPES, FLOAT_TYPES, WEIGHT_TYPES, type_id
from ..machine import default_threads

if TYPE_CHECKING:
    from ..config.eagle3_options import ConstructorOptions

DrafterKind = type[DrafterFile]

SOURCES = (*(kind.source for kind in KINDS), NGRAM)
_N_LEAVES_AUTO = 8
_N_MAX_TEXT = 64


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The draft's side of the constructor's arguments, as `Eagle3Llama` documents them."""

    given: ConstructorOptions
    """The arguments, with defaults for those that were not given."""
    model_path: str | None
    kinds: tuple[DrafterKind, ...]
    """The drafters with weights; the first one drafts fixed settings."""
    uses_own_block: bool
    """Whether the target's own block for multi-token prediction is one of them."""
    settings: DraftSettings
    """How to draft for requests that do not say it."""
    type: int | None
    type_k: int | None
    type_v: int | None
    """ggml types."""

    @classmethod
    def of(
        cls,
        arguments: ConstructorOptions,
        *,
        has_block: bool = False,
        has_text: bool = True,
        draft_kind: DrafterKind = Eagle3Head,
    ) -> DraftOptions:
        """The constructor's arguments, with the defaults of those that are None.

        has_block: the target's file has a block for multi-token prediction, which drafts if there is no head.
        has_text: n-grams may draft unless they are named: the target generates, and no draft_model of llama_cpp drafts.
        draft_kind: what model_path is.

        Raises:
            ValueError: an unknown source or type.
        """
        model_path, draft, n_max = arguments["draft_model_path"], arguments["draft"], arguments["draft_n_max"]
        n_min, p_min, ngram_n_max = arguments["draft_n_min"], arguments["draft_p_min"], arguments["draft_ngram_n_max"]
        tree_depth, tree_tokens = arguments["draft_tree_depth"], arguments["draft_tree_tokens"]
        tree_topk = arguments["draft_tree_topk"]
        has_tree = (tree_depth, tree_topk, tree_tokens) != (None, None, None)
        path = None if model_path is None else os.path.expanduser(os.fspath(model_path))
        of_file = draft_kind if path is not None else None
        usual = MtpBlock if of_file is None and has_block else of_file
        is_auto = draft in (None, "auto") and n_max != 0  # in other modes n-grams do not draft
        has_text = has_text and (is_auto or arguments["draft_corpus"] is not None)
        chosen = _sources(arguments["draft_sources"], usual, of_file, has_text=has_text)
        kinds = tuple(kind for name in chosen for kind in {of_file, MtpBlock} if kind and kind.source == name)
        if of_file is not None and of_file not in kinds:
            kinds = (of_file,)
        has_chain = n_max is not None or bool(n_min or p_min)
        usual_mode: DraftMode = "tree" if has_tree else "chain" if has_chain else "auto"
        if chosen == (NGRAM,) and not kinds:
            usual_mode = "auto"  # in which alone n-grams draft
        mode: DraftMode = draft or usual_mode
        settings = DraftSettings(
            mode=mode,
            sources=chosen,
            n_max=_n_max(kinds, mode) if n_max is None else n_max,
            ngram_n_max=(n_max or _N_MAX_TEXT) if ngram_n_max is None else ngram_n_max,
            n_min=n_min,
            p_min=p_min,
            tree_depth=4 if tree_depth is None else tree_depth,
            tree_topk=3 if tree_topk is None else tree_topk,
            tree_tokens=max(8, tree_depth or 0) if tree_tokens is None else tree_tokens,
        )
        return cls(
            given=arguments,
            model_path=path,
            kinds=kinds,
            uses_own_block=MtpBlock in kinds and of_file is not MtpBlock,
            settings=settings,
            type=type_id("draft_type", arguments["draft_type"], WEIGHT_TYPES),
            type_k=type_id("draft_type_k", arguments["draft_type_k"], CACHE_TYPES),
            type_v=type_id("draft_type_v", arguments["draft_type_v"], CACHE_TYPES),
        )

    @property
    def has_model(self) -> bool:
        """Whether a head, a block of the target, or a small model is loaded to draft."""
        return bool(self.kinds)

    @property
    def paths(self) -> list[str | None]:
        """The files of the drafters with weights, in their order; None for the target's own block."""
        return [None if kind is MtpBlock and self.uses_own_block else self.model_path for kind in self.kinds]

    @property
    def has_text_alone(self) -> bool:
        """Whether n-grams may draft, and nothing else."""
        return not self.kinds and self.settings.sources == (NGRAM,)

    def without_text(self) -> DraftOptions:
        """These options without n-grams."""
        sources = tuple(s for s in self.settings.sources if s != NGRAM)
        return replace(self, settings=replace(self.settings, sources=sources))

    def without_model(self) -> DraftOptions:
        """These options without a drafter with weights."""
        sources = tuple(s for s in self.settings.sources if s == NGRAM)
        settings = replace(self.settings, sources=sources)
        return replace(self, kinds=(), uses_own_block=False, model_path=None, settings=settings)

    @property
    def target_layers(self) -> list[int] | None:
        """The boundaries that a head reads instead of those in its file."""
        layers = self.given["draft_target_layers"]
        return None if layers is None else [int(b) for b in layers]

    @property
    def drafts(self) -> bool:
        """Whether anything may be drafted."""
        return bool(self.kinds or self.settings.sources)

    @property
    def n_rows(self) -> int:
        """Tokens that a draft can have at most."""
        return self.settings.tree_tokens if self.settings.mode == "tree" else self.settings.n_max

    @property
    def depth(self) -> int:
        """The greatest length of a path in a draft, in tokens."""
        return self.settings.depth

    @property
    def is_pooled(self) -> bool:
        """Whether the sequences share their cells."""
        asked = self.given["kv_unified"]
        return self.given["n_parallel"] == 1 or (self.settings.mode == "tree" if asked is None else asked)

    @property
    def n_leaves(self) -> int:
        """Sequences that verifying a draft can take: one for each leaf of a tree."""
        return {"chain": 1, "tree": self.settings.tree_tokens, "auto": _N_LEAVES_AUTO}[self.settings.mode]


def _n_max(kinds: Sequence[DrafterKind], mode: str) -> int:
    return 3 if mode != "auto" else max((kind.n_max_auto for kind in kinds), default=DrafterFile.n_max_auto)


def _sources(
    sources: Sequence[DraftSource] | None, usual: DrafterKind | None, of_file: DrafterKind | None, *, has_text: bool
) -> tuple[str, ...]:
    """The drafters of "auto": the argument, without those that are missing. Raises ValueError for unknown ones.

    usual: the drafter with weights if none is named; of_file: what is given as a file; has_text: n-grams alone draft
    if there is none.
    """
    if sources is None:
        return (usual.source, NGRAM) if usual is not None else (NGRAM,) if has_text else ()
    if isinstance(sources, str) or not set(sources) <= set(SOURCES):
        raise ValueError(f"expected draft_sources to be some of {SOURCES}, found {sources!r}")
    of_models = [name for name in dict.fromkeys(sources) if name != NGRAM]
    for name in of_models:
        asked = kind_of_source(name)
        if of_file is not None and (of_file.source not in of_models or asked not in (of_file, MtpBlock)):
            raise ValueError(
                f"draft_sources names {name!r}, but a {of_file.title} is given as draft_model_path: name "
                f"{of_file.source!r}, alone or with 'mtp', the block in the target's file; or drop the file"
            )
        if of_file is None and asked.needs_file:
            raise ValueError(f"draft_sources names {name!r}, but no {asked.title} is given as draft_model_path")
    # ("eagle3", "ngram") is valid with and without a head; "mtp" without a block is refused when it is looked for
    return tuple(name for name in dict.fromkeys(sources) if name != Eagle3Head.source or of_file is Eagle3Head)


def set_defaults(options: dict[str, Any], *, has_projector: bool, has_servers: bool) -> None:
    """Set our defaults for loading the target, where they differ from llama_cpp's."""
    # llama_cpp's defaults are half of the logical cores, and all of them for batches, such as verified drafts
    options["n_threads"] = options.get("n_threads") or default_threads()
    options["n_threads_batch"] = options.get("n_threads_batch") or options["n_threads"]
    if has_projector:
        options.setdefault("chat_format", "auto")
    if has_servers:
        options.setdefault("n_gpu_layers", -1)


def cache_types(options: Mapping[str, Any]) -> dict[str, Any]:
    """The target's cache types as llama_cpp wants them; ValueError for those that llama.cpp's attention cannot read."""
    return {name: type_id(name, options[name], CACHE_TYPES) for name in ("type_k", "type_v") if name in options}


def check_values(draft: DraftOptions, options: Mapping[str, Any]) -> None:
    """Raise ValueError for values that are invalid or contradict each other, TypeError for a path as a draft model."""
    if isinstance(options.get("draft_model"), (str, os.PathLike)):
        raise TypeError("draft_model takes a LlamaDraftModel of llama_cpp; the file of a head goes to draft_model_path")
    s = draft.settings
    if not 0 <= s.n_min <= s.n_max or not 0.0 <= s.p_min <= 1.0:
        raise ValueError(
            "expected 0 <= draft_n_min <= draft_n_max and 0 <= draft_p_min <= 1, found "
            f"draft_n_min={s.n_min}, draft_n_max={s.n_max}, draft_p_min={s.p_min}"
        )
    if min(s.tree_depth, s.tree_topk) < 1 or s.tree_tokens < s.tree_depth:
        raise ValueError(
            "expected draft_tree_depth >= 1, draft_tree_topk >= 1 and draft_tree_tokens >= draft_tree_depth, found "
            f"draft_tree_depth={s.tree_depth}, draft_tree_topk={s.tree_topk}, "
            f"draft_tree_tokens={s.tree_tokens}"
        )
    n_parallel = draft.given["n_parallel"]
    n_seq_max = int(llama_cpp.llama_max_parallel_sequences())
    if not 1 <= n_parallel <= n_seq_max or (s.mode == "tree" and draft.n_leaves > n_seq_max):
        raise ValueError(
            f"llama.cpp has room for {n_seq_max} sequences, found n_parallel={n_parallel} and "
            f"draft_tree_tokens={s.tree_tokens}"
        )
    n_ctx, n_batch, n_ubatch = (options.get(name, 512) for name in ("n_ctx", "n_batch", "n_ubatch"))
    if not 0 <= n_ctx <= N_CTX_MAX or n_batch < 1 or n_ubatch < 1:
        raise ValueError(
            f"expected n_ctx in 0..{N_CTX_MAX}, n_batch >= 1 and n_ubatch >= 1, found "
            f"n_ctx={n_ctx}, n_batch={n_batch}, n_ubatch={n_ubatch}"
        )
    flash_attn = options.get("flash_attn")
    if options.get("type_v") not in (None, *FLOAT_TYPES) and flash_attn is not None and not flash_attn:
        raise ValueError("type_v: only flash attention reads a quantized V cache: use flash_attn=True too")
    if options.get("vocab_only") and options.get("embedding"):
        raise ValueError("vocab_only and embedding exclude each other: nothing can be evaluated without weights")
    if s.mode == "tree" and not draft.is_pooled:
        raise ValueError("trees of several sequences need a shared cache: leave kv_unified out, or use kv_unified=True")
    if n_parallel > min(n_batch, n_ubatch):
        raise ValueError(
            f"n_parallel={n_parallel} sequences need batches of that size, found n_batch={n_batch} and "
            f"n_ubatch={n_ubatch}"
        )
    if draft.given["draft_n_ctx"] is not None and draft.has_model and not any(kind.takes_n_ctx for kind in draft.kinds):
        raise ValueError(f"draft_n_ctx is for small models: a {draft.kinds[0].title} has the target's context")
    if not draft.has_model:
        return
    if draft.model_path is None and any(
        v is not None for v in (draft.type, draft.target_layers, draft.given["draft_device"])
    ):
        raise ValueError(
            "draft_type, draft_target_layers and draft_device are for heads: a block of the target ('mtp') has the "
            "target's types and runs where the target's last layer does"
        )
    if draft.type is not None and not any(kind.takes_type for kind in draft.kinds):
        raise ValueError(f"draft_type: a {draft.kinds[0].title} has the types of its file: leave it out")
    if draft.target_layers is not None and not any(kind.takes_layers for kind in draft.kinds):
        raise ValueError(f"draft_target_layers is for heads: the file of a {draft.kinds[0].title} shows what it reads")
    n_room = min(n_ctx or n_batch, n_batch)
    if s.mode != "auto" and draft.n_rows + 1 > n_room:
        name = "draft_tree_tokens" if s.mode == "tree" else "draft_n_max"
        raise ValueError(
            f"{name}={draft.n_rows} needs batches of {draft.n_rows + 1} tokens, n_ctx={n_ctx} and "
            f"n_batch={n_batch} leave {n_room}. Draft less, or give more room."
        )
    for name in ("draft_model", "embedding", "vocab_only"):
        if options.get(name):
            other = "draft_model_path" if draft.model_path is not None else "'mtp' in draft_sources"
            raise ValueError(f"{name} and {other} exclude each other: drop one of them")
