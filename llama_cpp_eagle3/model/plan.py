"""What is loaded and how: each decision that is taken before weights are read, by arguments and headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib

from ..config.eagle3_options import check_arguments, drafter_paths
from ..config.llama_options import LLAMA_DEFAULTS, N_CTX_MAX
from ..draft.kinds import WITHOUT_MODEL, DrafterFile, MtpBlock, SmallModel, kind_of_source
from ..draft.kinds.eagle3 import Eagle3Head
from ..engine.request import DraftMode, DraftSettings
from ..errors import ModelFileError
from ..files.fingerprint import Stamps
from ..files.model_file import BLOCKS
from ..ggml_types import CACHE_TYPES, FLOAT_TYPES, WEIGHT_TYPES, type_id
from ..machine import default_threads
from .pair import Headers, Pair, fit, read_headers

if TYPE_CHECKING:
    from ..config.eagle3_options import ConstructorOptions

N_SNAPSHOTS, N_SNAPSHOTS_SHARED = 3, 1
"""Snapshots that llama.cpp keeps of a recurrent target's only sequence, and of each of several: so many tokens of a
draft can be rejected without a replay. Each costs a copy of all layers' convolution states in every pass."""
_N_SEQ_DRAFTED = 4
"""With more sequences, `auto` on a CPU keeps no snapshots: it rarely drafts for so many."""
_N_LEAVES_AUTO = 8
_N_MAX_TEXT = 64
_WITHOUT_DRAFTERS = ("draft_model", "embedding", "vocab_only")
_OF_HEADS = ("draft_type", "draft_target_layers", "draft_device")
_OF_WEIGHTS = ("draft_n_min", "draft_p_min", "draft_tree_depth", "draft_tree_topk", "draft_tree_tokens")
_ROTATION = (
    "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_orig_ctx",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Room:
    """The sequences of a target's context, and what it keeps of them."""

    n_seq: int
    """Ids: those of slots, and those that share their cells: guards, or leaves of trees."""
    n_states: int = 0
    """Snapshots of recurrent states."""
    n_guards: int = 0
    """Ids that keep cells that have left the windows of a pool."""
    note: str = ""
    """What is lost with these sizes."""
    may_pool: bool = True
    """Whether the sequences can share their cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is loaded and how."""

    path: str
    given: ConstructorOptions
    """Our own arguments, with their defaults."""
    options: Mapping[str, Any]
    """All arguments of `llama_cpp.Llama`, with our defaults and the keys that the target's file needs."""
    pair: Pair | None
    """Target and drafters by their headers, the first of which drafts fixed settings; None: only a vocabulary."""
    settings: DraftSettings
    """How to draft for requests that do not say it."""
    draft_type: int | None
    """ggml type of the drafters' weights; None: the fastest one."""
    draft_type_k: int | None
    draft_type_v: int | None
    devices: tuple[str, ...] | None
    """Names of the target's devices; None: all."""
    lora: tuple[tuple[str, float], ...]
    """(file, scale) of each adapter."""
    stamps: Stamps
    """Of all files, before their weights are read."""
    notes: tuple[str, ...] = ()
    """What users should know before they wait."""

    @property
    def drafts(self) -> tuple[DrafterFile, ...]:
        """The drafters with weights."""
        return () if self.pair is None else self.pair.drafts

    @property
    def draft_path(self) -> str | None:
        """The first file that is given as a drafter, if one drafts."""
        return next((file.path for file in self.drafts if not file.is_in_target), None)

    def ids(self, identify: Callable[[str], str]) -> tuple[str, str]:
        """Ids of the target's file and of the drafters' files, as one text ("mtp": the target's own block)."""
        own = MtpBlock.source
        return identify(self.path), "+".join(own if f.is_in_target else identify(f.weights) for f in self.drafts)

    def without_drafters(self) -> LoadPlan:
        """This plan without drafters with weights."""
        sources = tuple(name for name in self.settings.sources if name in WITHOUT_MODEL)
        pair = None if self.pair is None else replace(self.pair, drafts=())
        return replace(self, pair=pair, settings=replace(self.settings, sources=sources))

    @property
    def why_nothing_drafts(self) -> str:
        """Why nothing can draft at all; empty if something can."""
        if self.drafts or self.settings.sources:
            return ""
        if self.pair is not None and self.pair.target.why_no_text:
            return f"no drafter can be used: {self.pair.target.why_no_text}"
        if self.given["draft_sources"] is not None:
            return "draft_sources (--spec-type) leaves no drafter"
        return (
            "the settings leave none: no drafter is given (draft_model_path, -md), and n-grams draft in auto alone, "
            "unless draft_n_max is 0"
        )

    @property
    def without_effect(self) -> str:
        """Which settings of drafts have no effect, as there is no drafter with weights; empty: all have."""
        mode, given = self.settings.mode, self.given
        wants_none = self.settings.n_max == 0 or given["draft_sources"] in ((), [])
        if self.drafts or self.options["draft_model"] is not None:
            return ""
        if mode != "auto" and not wants_none:
            shapes = "trees" if mode == "tree" else "chains"
            return (
                f"nothing is drafted: {shapes} of a fixed size are a drafter's with weights (draft_model_path), and "
                'there is none; n-grams draft with draft="auto"'
            )
        unused = [name for name in _OF_WEIGHTS if given[name]]  # type: ignore[literal-required]
        if self.settings.sources and unused:
            return (
                f"{', '.join(unused)}: for a drafter with weights (draft_model_path), and there is none; n-grams draft "
                "what pays"
            )
        return ""

    @property
    def is_pooled(self) -> bool:
        """Whether the sequences share their cells."""
        asked = self.given["kv_unified"]
        return self.given["n_parallel"] == 1 or (self.settings.mode == "tree" if asked is None else asked)

    @property
    def n_leaves(self) -> int:
        """Sequences that verifying a draft can take: one for each leaf of a tree."""
        return {"tree": self.settings.tree_tokens, "auto": _N_LEAVES_AUTO}.get(self.settings.mode, 1)

    def room(self, *, n_swa: int, swa_full: bool, has_states: bool, n_ubatch: int, on_cpu: bool) -> Room:
        """The sequences of the target's context.

        Args:
            n_swa: tokens of its sliding windows; 0: it has none.
            swa_full: whether the context keeps tokens that have left them.
            has_states: whether it has recurrent layers.
            n_ubatch: rows of a physical batch.
            on_cpu: whether a CPU computes it.
        """
        n_seq, is_pooled = self.given["n_parallel"], self.is_pooled
        n_most = lib.llama_max_parallel_sequences()
        n_max = min(max(n_seq, n_ubatch), n_most)
        n_guards, note, may_pool = 0, "", True
        if n_swa > 0 and has_states and is_pooled and n_seq > 1:
            # Such models need several ubatches for a batch. llama.cpp plans the cells of all before it computes the
            # first, and what a later one takes of a window is missing there: llama_kv_cache::prepare restores the cells
            # that were taken, not those that apply_ubatch purges beside them
            is_pooled = may_pool = False
            note = (
                f"a model with recurrent layers and sliding windows gives each of {n_seq} sequences cells of its own: "
                "llama.cpp would lose some of those that they share"
            )
        if n_swa > 0 and swa_full and is_pooled and n_seq > 1:
            if n_seq <= n_max // 2:
                n_guards = n_seq
            else:
                half = n_most // 2
                remedy = f"n_parallel of at most {half}" if n_seq > half else f"n_ubatch of at least {2 * n_seq}"
                note = (
                    f"n_parallel = {n_seq} with n_ubatch = {n_ubatch}: llama.cpp may give cells that have left a "
                    f"window to other sequences, and a cached prefix is then evaluated again; {remedy} prevents that"
                )
        n_ids = n_seq + n_guards
        if not self.drafts and not self.settings.sources:
            return Room(n_ids, 0, n_guards, note, may_pool)
        if has_states:
            # llama.cpp makes it 0 if the architecture keeps no snapshots
            return Room(n_ids, min(self.settings.depth, self._n_snapshots(on_cpu)), n_guards, note, may_pool)
        if is_pooled and (swa_full or n_swa == 0):
            # The ids after n_parallel are for the leaves of trees. Of a window alone (swa_full=False) llama.cpp frees
            # no cell that a leaf borrows: the cache would run full, so that there are only chains
            n_ids = min(n_ids + self.n_leaves - 1, n_max)
        return Room(n_ids, 0, n_guards, note)

    def _n_snapshots(self, on_cpu: bool) -> int:
        if not self.drafts:
            return 0  # each pass would pay for them, and n-grams draft rarely, and then more tokens than they take back
        n_seq = self.given["n_parallel"]
        if n_seq == 1:
            return N_SNAPSHOTS
        return 0 if n_seq > _N_SEQ_DRAFTED and self.settings.mode == "auto" and on_cpu else N_SNAPSHOTS_SHARED


def plan(path: str, given: ConstructorOptions, headers: Headers | None = None) -> LoadPlan:
    """Decide what is loaded and how.

    Args:
        path: the target's file.
        given: our own arguments, with their defaults, and those of `Llama` that were given.
        headers: of the files; None: they are read.

    Raises:
        TypeError: an unknown argument.
        ValueError: a value is invalid, or contradicts another one.
        ModelFileError, IncompatibleDraftError: see `Eagle3Llama`.
    """
    check_arguments("Eagle3Llama", given)
    options = _options_of_llama(given)
    lora = _adapters(given)
    draft_paths = tuple(map(os.path.expanduser, drafter_paths(given["draft_model_path"])))
    excluded = next((name for name in _WITHOUT_DRAFTERS if options[name]), "")
    if excluded and (draft_paths or MtpBlock.source in (given["draft_sources"] or ())):
        other = "draft_model_path" if draft_paths else "'mtp' in draft_sources"
        raise ValueError(f"{excluded} and {other} exclude each other: drop one of them")
    if headers is None and not options["vocab_only"]:
        headers = read_headers(path, draft_paths)
    sources, drafts = _drafters(given, headers, generates=not excluded)
    found = LoadPlan(
        path=path,
        given=given,
        options=options,
        pair=None if headers is None else Pair(headers.target, drafts),
        settings=_settings(given, sources, drafts),
        draft_type=type_id("draft_type", given["draft_type"], WEIGHT_TYPES),
        draft_type_k=type_id("draft_type_k", given["draft_type_k"], CACHE_TYPES),
        draft_type_v=type_id("draft_type_v", given["draft_type_v"], CACHE_TYPES),
        devices=_devices(given),
        lora=lora,
        stamps=Stamps([path, *(adapter for adapter, _ in lora), *(file.weights for file in drafts)]),
    )
    _check_sizes(found)
    _check_drafters(found)
    if headers is None:
        return found
    target = headers.target
    found = replace(found, pair=fit(target, drafts, given["draft_target_layers"]))
    notes: list[str] = []
    if target.why_no_text and not set(WITHOUT_MODEL).isdisjoint(sources):
        if given["draft_sources"] is not None:
            notes.append(f"n-grams do not draft for '{path}' ({target.arch}): {target.why_no_text}")
        left = tuple(name for name in sources if name not in WITHOUT_MODEL)
        found = replace(found, settings=replace(found.settings, sources=left))
    notes += [file.vocabulary.warning for file in drafts if file.vocabulary.warning]
    if found.settings.mode != "auto" and len(drafts) > 1:
        rest = " and the ".join(file.title for file in drafts[1:])
        notes.append(f"chains and trees of a fixed size are the {drafts[0].title}'s: the {rest} drafts in auto alone")
    for info in (target, *(file.info for file in drafts if isinstance(file, SmallModel))):
        for key, token in info.unknown_ids.items():
            notes.append(
                f"'{info.path}': key '{key}': expected one of {info.n_vocab} tokens, found {token}: llama.cpp takes "
                "the tokenizer's default, if it has one"
            )
        if info.n_layer_gone:
            keys = ", ".join(f"{key} = {value}" for key, value in info.keys_without_block.items())
            told = f": it is loaded with {keys}" if keys else ""
            notes.append(f"'{info.path}' announces {BLOCKS} that are not in it{told}")
    if mended := dict(target.keys_without_block):
        options = {**options, "kv_overrides": mended | (options["kv_overrides"] or {})}
    return replace(found, options=options, notes=(*notes, *_of_rotation(found)))


def _options_of_llama(given: ConstructorOptions) -> dict[str, Any]:
    """All arguments of `Llama`, with our defaults where they differ from llama_cpp's."""
    options: dict[str, Any] = {name: value for name, value in given.items() if name in LLAMA_DEFAULTS}
    options |= {name: type_id(name, options[name], CACHE_TYPES) for name in ("type_k", "type_v") if name in options}
    # llama_cpp's defaults are half of the logical cores, and all of them for batches, such as verified drafts
    options["n_threads"] = options.get("n_threads") or default_threads()
    options["n_threads_batch"] = options.get("n_threads_batch") or options["n_threads"]
    if given["mmproj_path"] is not None:
        options.setdefault("chat_format", "auto")
    if given["rpc_servers"]:
        options.setdefault("n_gpu_layers", -1)
    if not callable(options.get("draft_model", len)) and options["draft_model"] is not None:
        raise TypeError("draft_model takes a LlamaDraftModel of llama_cpp; the file of a head goes to draft_model_path")
    return {**LLAMA_DEFAULTS, **options}


def _drafters(
    given: ConstructorOptions, headers: Headers | None, *, generates: bool
) -> tuple[tuple[str, ...], tuple[DrafterFile, ...]]:
    """The names of all drafters of "auto", and the drafters with weights.

    generates: the target generates, and no draft_model of llama_cpp drafts.
    """
    files = () if headers is None else headers.drafts
    if len({file.source for file in files}) < len(files):
        found = ", ".join(f"'{file.path}' ({file.title})" for file in files)
        raise ValueError(f"draft_model_path: expected drafters of different kinds, found {found}")
    uses_block = headers is not None and headers.has_block and generates and given["draft_target_layers"] is None
    sources = given["draft_sources"]
    if sources is not None:
        names = _named(sources, files)
    else:
        usual = tuple(file.source for file in files) or ((MtpBlock.source,) if uses_block else ())
        is_auto = given["draft"] in (None, "auto") and given["draft_n_max"] != 0  # in other modes n-grams do not draft
        has_text = generates and (is_auto or given["draft_corpus"] is not None)
        names = (*usual, *WITHOUT_MODEL) if usual else WITHOUT_MODEL if has_text else ()
    by_name = {} if headers is None else {MtpBlock.source: headers.block}
    by_name |= {file.source: file for file in files}
    drafts = tuple(by_name[name] for name in names if name in by_name)
    return names, drafts if set(files) <= set(drafts) else files


def _named(sources: Any, files: Sequence[DrafterFile]) -> tuple[str, ...]:
    """`draft_sources` without drafters that are missing. files: the drafters' that are given. Raises ValueError."""
    of_models = [name for name in dict.fromkeys(sources) if name not in WITHOUT_MODEL]
    given = [file.source for file in files]
    for name in of_models:
        if files and (not set(given) <= set(of_models) or name not in (*given, MtpBlock.source)):
            raise ValueError(
                f"draft_sources names {name!r}, but a {' and a '.join(file.title for file in files)} is given as "
                f"draft_model_path: name {' and '.join(map(repr, given))}, alone or with 'mtp', the block in the "
                "target's file; or drop the file"
            )
        asked = kind_of_source(name)
        if not files and asked.needs_file:
            raise ValueError(f"draft_sources names {name!r}, but no {asked.title} is given as draft_model_path")
    # ("eagle3", "ngram") is valid with and without a head; "mtp" without a block is refused when it is looked for
    return tuple(name for name in dict.fromkeys(sources) if name != Eagle3Head.source or name in given)


def _settings(given: ConstructorOptions, sources: tuple[str, ...], drafts: tuple[DrafterFile, ...]) -> DraftSettings:
    n_max, ngram_n_max, tree_depth = given["draft_n_max"], given["draft_ngram_n_max"], given["draft_tree_depth"]
    tree_topk, tree_tokens = given["draft_tree_topk"], given["draft_tree_tokens"]
    mode: DraftMode = "auto"
    if given["draft"] is not None:
        mode = given["draft"]
    elif drafts or not sources:  # n-grams draft in auto alone
        if (tree_depth, tree_topk, tree_tokens) != (None, None, None):
            mode = "tree"
        elif n_max is not None or given["draft_n_min"] or given["draft_p_min"]:
            mode = "chain"
    of_kinds = max((file.n_max_auto for file in drafts), default=DrafterFile.n_max_auto)
    return DraftSettings(
        mode=mode,
        sources=sources,
        n_max=n_max if n_max is not None else of_kinds if mode == "auto" else 3,
        ngram_n_max=(n_max or _N_MAX_TEXT) if ngram_n_max is None else ngram_n_max,
        n_min=given["draft_n_min"],
        p_min=given["draft_p_min"],
        tree_depth=4 if tree_depth is None else tree_depth,
        tree_topk=3 if tree_topk is None else tree_topk,
        tree_tokens=max(8, tree_depth or 0) if tree_tokens is None else tree_tokens,
    )


def _devices(given: ConstructorOptions) -> tuple[str, ...] | None:
    names = given["devices"]
    names = names.split(",") if isinstance(names, str) else names
    return None if names is None else tuple(name.strip() for name in names)


def _adapters(given: ConstructorOptions) -> tuple[tuple[str, float], ...]:
    adapters = [(item, 1.0) if isinstance(item, str) else item for item in given["lora"]]
    if (path := given.get("lora_path")) is not None:
        adapters.insert(0, (os.fspath(path), given.get("lora_scale", 1.0)))
    found = tuple((os.path.expanduser(path), float(scale)) for path, scale in adapters)
    for path, scale in found:
        if not abs(scale) <= 1e9:  # more makes NaN of logits
            raise ValueError(f"lora: expected a number of at most 1e9 as the scale of '{path}', found {scale}")
        if not os.path.exists(path):
            raise ModelFileError(f"'{path}' is missing: lora takes LoRA adapters in GGUF")
    return found


def _check_sizes(p: LoadPlan) -> None:
    """Raise ValueError for sizes that are invalid or contradict each other."""
    s, options, n_parallel = p.settings, p.options, p.given["n_parallel"]
    for least, name in (("n_min", "n_max"), ("tree_depth", "tree_tokens")):
        if (low := getattr(s, least)) > (value := getattr(s, name)):
            raise ValueError(f"expected draft_{least} <= draft_{name}, found draft_{least}={low}, draft_{name}={value}")
    n_seq_max = int(lib.llama_max_parallel_sequences())
    if not 1 <= n_parallel <= n_seq_max or (s.mode == "tree" and p.n_leaves > n_seq_max):
        raise ValueError(
            f"llama.cpp has room for {n_seq_max} sequences, found n_parallel={n_parallel} and "
            f"draft_tree_tokens={s.tree_tokens}"
        )
    n_ctx, n_batch, n_ubatch = options["n_ctx"], options["n_batch"], options["n_ubatch"]
    if not 0 <= n_ctx <= N_CTX_MAX or n_batch < 1 or n_ubatch < 1:
        raise ValueError(
            f"expected n_ctx in 0..{N_CTX_MAX}, n_batch >= 1 and n_ubatch >= 1, found "
            f"n_ctx={n_ctx}, n_batch={n_batch}, n_ubatch={n_ubatch}"
        )
    flash_attn = options["flash_attn"]
    if options["type_v"] not in (None, *FLOAT_TYPES) and flash_attn is not None and not flash_attn:
        raise ValueError("type_v: only flash attention reads a quantized V cache: use flash_attn=True too")
    if options["vocab_only"] and options["embedding"]:
        raise ValueError("vocab_only and embedding exclude each other: nothing can be evaluated without weights")
    if s.mode == "tree" and not p.is_pooled:
        raise ValueError("trees of several sequences need a shared cache: leave kv_unified out, or use kv_unified=True")
    if 0 < n_ctx < n_parallel:
        raise ValueError(f"n_parallel={n_parallel} sequences need as many tokens of context, found n_ctx={n_ctx}")
    if n_parallel > min(n_batch, n_ubatch):
        raise ValueError(
            f"n_parallel={n_parallel} sequences need batches of that size, found n_batch={n_batch} and "
            f"n_ubatch={n_ubatch}"
        )


def _check_drafters(p: LoadPlan) -> None:
    """Raise ValueError for options that none of the drafters takes, and for drafts that are too long."""
    if not p.drafts:
        return
    first, s, given = p.drafts[0], p.settings, p.given
    if given["draft_n_ctx"] is not None and not any(file.takes_n_ctx for file in p.drafts):
        raise ValueError(f"draft_n_ctx is for small models: a {first.title} has the target's context")
    if not drafter_paths(given["draft_model_path"]) and any(given[name] is not None for name in _OF_HEADS):  # type: ignore[literal-required]
        raise ValueError(
            "draft_type, draft_target_layers and draft_device are for heads: a block of the target ('mtp') has the "
            "target's types and runs where the target's last layer does"
        )
    if p.draft_type is not None and not any(file.takes_type for file in p.drafts):
        raise ValueError(f"draft_type: a {first.title} has the types of its file: leave it out")
    if given["draft_target_layers"] is not None and not any(file.takes_layers for file in p.drafts):
        raise ValueError(f"draft_target_layers is for heads: the file of a {first.title} shows what it reads")
    if s.mode == "auto":
        return
    n_ctx, n_batch, n_rows = p.options["n_ctx"], p.options["n_batch"], s.tree_tokens if s.mode == "tree" else s.n_max
    n_room = min(n_ctx or n_batch, n_batch)
    if n_rows + 1 > n_room:
        name = "draft_tree_tokens" if s.mode == "tree" else "draft_n_max"
        raise ValueError(
            f"{name}={n_rows} needs batches of {n_rows + 1} tokens, n_ctx={n_ctx} and n_batch={n_batch} leave "
            f"{n_room}. Draft less, or give more room."
        )
    if first.n_draft_max is not None and s.depth > first.n_draft_max:
        name = "draft_tree_depth" if s.mode == "tree" else "draft_n_max"
        raise ValueError(
            f"{name}={s.depth}: the {first.title} '{first.path}' was trained to draft {first.n_draft_max} tokens: "
            "expected that or less"
        )


def _of_rotation(p: LoadPlan) -> list[str]:
    """That arguments for RoPE do not change a head, which was trained with the rotation in its file."""
    usual = lib.llama_context_default_params()  # as the command line has them
    names = [name for name in _ROTATION if p.options[name] not in (LLAMA_DEFAULTS[name], getattr(usual, name))]
    if not names or not p.drafts:
        return []
    alike = " and ".join(["the target", *(f"the {f.title}" for f in p.drafts if not f.has_own_rotation)])
    own = "".join(f"; the {f.title} rotates as its file says" for f in p.drafts if f.has_own_rotation)
    return [f"{', '.join(names)}: for {alike}{own}"]
