"""The options of drafting."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from .._core import NgramStore
from ..draft.kinds import KINDS, DraftSource
from ..ggml_types import CACHE_TYPES, WEIGHT_TYPES
from . import flag as flags
from .flag import NO_OTHER_DRAFTS, flag
from .llama_options import MODELS, N_CTX_MAX, LlamaOptions, n_threads
from .option import Option, in_range

DRAFTS = "speculative decoding"
"""Title of the help."""
TEXT_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
"""llama.cpp's names for drafts from text. Its kinds differ in how they search; here all mean the n-gram drafter."""
MODES = ("auto", "chain", "tree")
N_VOCAB_MAX = 1 << 24

_DRAFTERS = "; ".join(f"{', '.join(kind.spec_types)}: a {kind.title}" for kind in KINDS)
_USUAL = ", ".join(f"{kind.spec_types[0]},ngram-simple with a {kind.title}" for kind in KINDS)

_draft_flag, _model_flag = partial(flag, title=DRAFTS), partial(flag, title=MODELS)


def _spec_types(text: str) -> tuple[str, ...]:
    kinds = tuple(kind for kind in text.split(",") if kind and kind != "none")
    known = (*dict.fromkeys(name for kind in KINDS for name in kind.spec_types), *TEXT_TYPES)
    for kind in kinds:
        if kind not in known:
            raise argparse.ArgumentTypeError(
                f"expected none or some of {', '.join(known)}, found {kind!r}: {NO_OTHER_DRAFTS}"
            )
    return kinds


class DraftingOptions(LlamaOptions, total=False):
    """The options of `Eagle3Llama` for drafting."""

    draft: Annotated[
        Literal["auto", "chain", "tree"] | None,
        Option(
            '`None` is `"auto"`. `"auto"`: each step drafts what pays best on this machine, which may be nothing; '
            '`"chain"`: `draft_n_max` tokens; `"tree"`: a tree. One exception: with a drafter that has weights, a '
            'fixed size says the mode, `draft_n_max`, `draft_n_min` and `draft_p_min` `"chain"`, those of trees '
            '`"tree"`. N-grams draft in auto alone. On targets with a recurrent state, or with `swa_full=False`, trees '
            "become chains",
        ),
    ]
    draft_sources: Annotated[
        Sequence[DraftSource] | None,
        Option(
            'drafters in auto: `"eagle3"` (a head), `"dflash"`, `"mtp"`, `"assistant"`, `"simple"` ([which '
            'drafter](drafters.md)), `"ngram"`, which proposes what followed the text\'s last n-gram before, and '
            '`"grammar"`, what a request\'s grammar or schema forces, in all modes. `"mtp"` beside a file\'s: both '
            "draft ([two at once](drafter-kinds.md#two-at-once)), fixed settings are the first one's. `None`: the file "
            "that is given, else a block in the target's own file, else none of both, "
            'and `"ngram"` and `"grammar"` (not with `draft_model`, `embedding` or `draft_n_max=0`). `()`: nothing, as '
            "llama_cpp",
            flag=_draft_flag(
                "--spec-type TYPE,... LLAMA_ARG_SPEC_TYPE",
                f"the drafters; {_DRAFTERS}: what -md names, or a block in the model's own file, or both (fixed "
                "settings are the first one's); ngram-simple, ngram-map-k, ngram-map-k4v: what followed before in the "
                f"text; ngram-mod: in all texts of the process; none: nothing (default: {_USUAL}, else ngram-simple)",
                _spec_types,
                dest="spec_type",
                lacks="ngram-cache; the kinds of ngram search alike",
                differs=f"{_USUAL}, else ngram-simple, llama.cpp none: what there is is used",
            ),
        ),
    ]
    draft_n_max: Annotated[
        int | None,
        Option(
            "longest chain to draft per step, of a head at most 129, of others 33. Of several drafters it is the first "
            "one's. `None`: 3, in auto 8, of a block drafter 16",
            flag=_draft_flag(
                "--spec-draft-n-max N LLAMA_ARG_SPEC_DRAFT_N_MAX",
                "tokens to draft (default: what pays best on this machine)",
                int,
                differs="what was measured to pay best on this machine, llama.cpp 3",
            ),
        ),
    ]
    draft_ngram_n_max: Annotated[
        int | None,
        Option(
            "longest draft without a model: n-grams, what a grammar forces. `None`: `draft_n_max` if that is given, "
            "else 64"
        ),
    ]
    draft_ngram_store: Annotated[
        NgramStore | bool,
        Option(
            "`True`: also search the texts of all objects of the process on the same target; or your own `NgramStore`",
            default=False,
        ),
    ]
    draft_corpus: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "a text file, or a folder of them such as a project's sources, in which the n-gram drafter searches too "
            "([n-grams](drafter-kinds.md#n-grams)). It is tokenized while loading; what is no text, or exceeds 256 MiB "
            "of memory, is left out and told",
            flag=_draft_flag(
                "--draft-corpus PATH",
                "search for n-grams in this text file, or in the text files of this folder, too: a project's sources",
                is_ours=True,
            ),
        ),
    ]
    draft_n_min: Annotated[
        int,
        Option(
            "drop shorter drafts",
            default=0,
            flag=_draft_flag(
                "--spec-draft-n-min N LLAMA_ARG_SPEC_DRAFT_N_MIN", "drop shorter drafts (default: 0)", int
            ),
        ),
    ]
    draft_p_min: Annotated[
        float,
        Option(
            "end a chain before a token less likely than this, 0 to 1",
            default=0.0,
            flag=_draft_flag(
                "--spec-draft-p-min --draft-p-min P LLAMA_ARG_SPEC_DRAFT_P_MIN",
                "end the draft before a token less likely than this (default: 0.0)",
                float,
            ),
        ),
    ]
    draft_tree_depth: Annotated[
        int | None,
        Option(
            "levels of a tree: SGLang's steps. `None`: 4",
            flag=_draft_flag("--tree-depth N", "draft trees of that many levels", int, is_ours=True),
        ),
    ]
    draft_tree_topk: Annotated[
        int | None,
        Option(
            "children of each of the best nodes of a level. `None`: 3",
            flag=_draft_flag("--tree-topk N", "with that many successors after each node", int, is_ours=True),
        ),
    ]
    draft_tree_tokens: Annotated[
        int | None,
        Option(
            "nodes of a tree that are verified: SGLang's draft tokens - 1. `None`: 8",
            flag=_draft_flag("--tree-tokens N", "and verify that many nodes", int, is_ours=True),
        ),
    ]
    draft_n_gpu_layers: Annotated[
        int,
        Option(
            "0: the drafter runs on the CPU; > 0: on this machine's first accelerator; -1: where the target's lm_head "
            "is, or on this machine's first accelerator if that is on an rpc server",
            default=-1,
            flag=_model_flag(
                "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl N LLAMA_ARG_N_GPU_LAYERS_DRAFT",
                "0: head on the CPU, auto: where the target's output is",
                flags.layers,
            ),
        ),
    ]
    draft_device: Annotated[
        str | None,
        Option(
            "where the head runs instead: a ggml device (`CPU`, `CUDA0`, ...), or one of `rpc_servers`",
            flag=_model_flag(
                "-devd --device-draft --spec-draft-device DEV",
                "run the head on this ggml device, or on this one of the rpc servers; none = CPU",
                lambda text: "CPU" if text == "none" else text,
            ),
        ),
    ]
    draft_type: Annotated[
        int | str | None,
        Option(
            'ggml type to which the drafter\'s wider matrices are converted (`"q4_0"`, `llama_cpp.GGML_TYPE_Q4_0`; '
            '`"f32"` converts none): it drafts faster, and slightly fewer tokens are accepted. A head is converted '
            "while loading; a small model, a block drafter or an assistant once, into the cache folder. `None`: of a "
            "head as in the file, in auto Q4_0 where that was measured to pay; of others Q4_0, if it is read faster "
            "([small models](drafter-kinds.md#a-small-model-draft-simple))",
            flag=_model_flag(
                "--spec-draft-type TYPE",
                "convert the drafter's wider matrices to this, f32: none (default: to q4_0, of a head if that was "
                "measured to pay, of others if it is read faster)",
                flags.one_of(WEIGHT_TYPES),
                is_ours=True,
            ),
        ),
    ]
    draft_type_k: Annotated[
        int | str | None,
        Option(
            "ggml type of the drafter's K cache. `None`: F16",
            flag=_model_flag(
                "-ctkd --cache-type-k-draft --spec-draft-type-k TYPE LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
                "type of the head's K cache (default: f16)",
                flags.one_of(CACHE_TYPES),
            ),
        ),
    ]
    draft_type_v: Annotated[
        int | str | None,
        Option(
            "ggml type of the drafter's V cache. `None`: F16",
            flag=_model_flag(
                "-ctvd --cache-type-v-draft --spec-draft-type-v TYPE LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
                "type of the head's V cache (default: f16)",
                flags.one_of(CACHE_TYPES),
            ),
        ),
    ]
    draft_vocab: Annotated[
        int | None,
        Option(
            "tokens that a small model, a block for multi-token prediction or an assistant always drafts, beside those "
            "of the texts that it read last: the CPU computes no logits of the others "
            "([cost](drafter-kinds.md#which-tokens-are-drafted)). `None`: 32768 of a vocabulary of 65536 or more, "
            "where our CPU kernels compute its logits; 0: all",
            check=in_range(0, N_VOCAB_MAX),
            flag=_draft_flag(
                "--draft-vocab N",
                "tokens that a small model, a block for multi-token prediction or an assistant always drafts, beside "
                "those of the texts; 0: all (default: 32768 of a large vocabulary, where our CPU kernels compute its "
                "logits)",
                int,
                is_ours=True,
            ),
        ),
    ]
    draft_target_layers: Annotated[
        Sequence[int] | None,
        Option(
            "boundaries that the head reads, as numbers of layers before them, instead of those in its file. Without a "
            "head: those that `features` gives"
        ),
    ]
    draft_n_threads: Annotated[
        int | None,
        Option(
            "CPU threads of the drafter. `None`: `n_threads`",
            check=n_threads,
            flag=_model_flag(
                "-td --threads-draft --spec-draft-threads N", "CPU threads of the head (default: as -t)", int
            ),
        ),
    ]
    draft_n_ctx: Annotated[
        int | None,
        Option(
            "tokens of a sequence that a small model reads, which limits its memory; it drafts nothing after them. "
            "`None`: `n_ctx`",
            check=in_range(1, N_CTX_MAX),
            flag=_model_flag(
                "-cd --ctx-size-draft N",
                "tokens of a slot that a small model reads, which limits its memory; it drafts nothing after them "
                "(default: all)",
                int,
                is_ours=True,
            ),
        ),
    ]
