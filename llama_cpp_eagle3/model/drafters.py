"""Load a plan's drafters beside their target."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from os import PathLike
from typing import Any

import llama_cpp.llama_cpp as lib

from .._core import Drafter, NgramDrafter, NgramStore
from ..draft.corpus import read_corpus
from ..draft.kinds import NGRAM, WITHOUT_MODEL, DrafterFile, Place
from ..draft.requantize import with_type
from ..engine.vocab import Vocab
from ..errors import IncompatibleDraftError, ModelFileError
from ..files.fingerprint import file_key
from .plan import LoadPlan
from .target import LoadedTarget

N_VOCAB_DRAFTED, N_VOCAB_LARGE = 1 << 15, 1 << 16
"""Tokens that are always drafted, of a vocabulary that has this many or more (docs/drafter-kinds.md)."""
_log = logging.getLogger("llama_cpp_eagle3")
_stores: dict[Any, NgramStore] = {}  # [`file_key` of the target]: texts that all objects of the process have generated


def load_drafters(target: LoadedTarget, log: Callable[[str], None]) -> list[Drafter]:
    """Load the drafters with weights. None, with a line for the user, if one cannot be loaded and none was asked for.

    Raises:
        ModelFileError, IncompatibleDraftError: see `Eagle3Llama`.
    """
    given, files = target.plan.given, target.plan.drafts
    with ExitStack() as stack:
        try:
            drafters = [
                stack.enter_context(closing(load_drafter(target, file, target.plan.draft_type, log))) for file in files
            ]
        except (IncompatibleDraftError, ModelFileError) as e:
            if given["draft_sources"] is not None or given["draft_model_path"] is not None:
                raise
            log(f"the {files[0].describe()} does not draft: {e}")
            return []
        stack.pop_all()
    return drafters


def load_drafter(
    target: LoadedTarget, file: DrafterFile, draft_type: int | None, log: Callable[[str], None]
) -> Drafter:
    """Load a drafter, its wider matrices in a type: those of a head while it is loaded, of a model by a copy of it.

    Raises:
        ModelFileError, IncompatibleDraftError: it cannot be run.
    """
    plan, place = target.plan, _place_in(target)
    if file.is_model:
        copy = with_type(file.path, draft_type, place.is_on_cpu, place.n_threads, log)
        if copy != file.path:
            file.copy, file.note = copy, f"converted for drafting: '{copy}'"
    drafter = file.make(place, draft_type)
    if file.vocabulary.left_out:
        drafter.leave_out(file.vocabulary.left_out)
    matrices = drafter.matrices
    if matrices and target.kernel_choice.mode != "off":
        drafter.use_cpu_kernels(target.kernel_choice.limits(matrices, place.n_threads, log))
    asked = plan.given["draft_vocab"]
    if asked is None and place.n_vocab < N_VOCAB_LARGE:
        return drafter
    if not drafter.limit_vocab(N_VOCAB_DRAFTED if asked is None else asked) and asked and asked < place.n_vocab:
        _log.warning(
            "draft_vocab=%d: the %s drafts all of its tokens. That needs a product of its output matrix by our CPU "
            "kernels, and tokens that are numbered by their frequency; a head is given fewer tokens by `quantize "
            "--draft-vocab`",
            asked,
            file.title,
        )
    return drafter


def load_ngrams(
    plan: LoadPlan, vocab: Vocab, log: Callable[[str], None], kept: NgramStore | None = None
) -> NgramDrafter | None:
    """Make the n-gram drafter, if it is a source; it searches in a store of texts and in a corpus too, if given.

    What grammars force is drafted through it. kept: answers of other processes, its store unless one is given.
    """
    store: NgramStore | bool = plan.given["draft_ngram_store"]
    corpus: str | PathLike[str] | None = plan.given["draft_corpus"]
    if NGRAM not in plan.settings.sources and corpus is not None:
        _log.warning("draft_corpus is not read: n-grams do not draft here (draft_sources, --spec-type)")
        corpus = None
    if set(WITHOUT_MODEL).isdisjoint(plan.settings.sources):
        return None
    if store is True:  # those of this process and file
        store = _stores.setdefault(file_key(plan.path), NgramStore())
    elif kept is not None and not isinstance(store, NgramStore):
        store = kept
    read = None if corpus is None else read_corpus(corpus, vocab, log)
    return NgramDrafter(plan.given["n_parallel"], store if isinstance(store, NgramStore) else None, read)


def _place_in(target: LoadedTarget) -> Place:
    plan, model, context = target.plan, target.model, target.context
    given, params = plan.given, target.ctx.params
    return Place(
        model=model.model,
        ctx=target.ctx.ctx,
        model_params=model.params,
        context_params=params,
        n_vocab=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model.model))),
        n_ctx=context.n_ctx,
        n_seq=given["n_parallel"],
        is_pooled=target.context.is_pooled,
        has_trees=context.n_leaves_max > 1,
        has_servers=bool(target.servers),
        draft_n_ctx=given["draft_n_ctx"],
        n_threads=given["draft_n_threads"] or max(1, int(params.n_threads)),
        n_gpu_layers=given["draft_n_gpu_layers"],
        device=target.draft_device,
        type_k=plan.draft_type_k,
        type_v=plan.draft_type_v,
    )
