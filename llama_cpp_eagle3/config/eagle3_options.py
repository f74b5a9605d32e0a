"""The options of `Eagle3Llama` beside those of `llama_cpp.Llama`."""

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from ..engine.arguments import as_type
from . import flag as flags
from .drafting_options import DRAFTS, DraftingOptions
from .flag import flag
from .llama_options import DEVICES, MODELS, LlamaOptions
from .option import Option, flags_of, in_range, options_of, types_of
from .serve_options import AllowHttp

F = TypeVar("F", bound=Callable[..., Any])

SERVER = "server"
"""Title of the help."""
KERNEL_MODES = ("auto", "on", "off")
MODEL_PARAMS = ("check_tensors", "lazy_mode", "load_mode", "no_host", "use_extra_bufts")
_server_flag, _device_flag, _model_flag, _draft_flag = (
    partial(flag, title=title) for title in (SERVER, DEVICES, MODELS, DRAFTS)
)


def _host_bytes(text: str) -> int:
    """MiB as bytes, where a negative number is no limit."""
    n_bytes = flags.mebibytes(text)
    return n_bytes if n_bytes >= 0 else sys.maxsize


def _at_least_one(name: str, value: Any) -> None:
    if value < 1:
        raise ValueError(f"expected {name} >= 1, found {value}")


def _model_params(name: str, value: Any) -> None:
    for field in value or ():
        if field not in MODEL_PARAMS:
            raise ValueError(f"{name}: expected some of {', '.join(MODEL_PARAMS)}, found {field!r}")


class Eagle3LlamaOptions(DraftingOptions, total=False):
    """What `Eagle3Llama` takes by name: the arguments of `llama_cpp.Llama`, and the following."""

    n_parallel: Annotated[
        int,
        Option(
            "slots: sequences that run together",
            default=1,
            flag=_server_flag(
                "-np --parallel N LLAMA_ARG_N_PARALLEL", "slots (default: 4 that share -c)", int, default=-1
            ),
        ),
    ]
    kv_unified: Annotated[
        bool | None,
        Option(
            "`True`: sequences share `n_ctx`, can draft trees, share prefixes without a copy, and are preempted when "
            "it is full. `False`: each has `n_ctx / n_parallel`, and passes over many are faster, since none reads the "
            'others\' cells. `None`: `False`, or `True` with `draft="tree"`',
            flag=_server_flag("-kvu --kv-unified LLAMA_ARG_KV_UNIFIED | -no-kvu --no-kv-unified", "slots share -c"),
        ),
    ]
    prefill_budget: Annotated[
        int | None,
        Option("prompt tokens in a step in which other sequences decode. `None`: as many as double the step's time"),
    ]
    prefix_cache_bytes: Annotated[
        int | None,
        Option(
            "host memory for prefixes that are evicted from their slots, and for saved states of recurrent layers and "
            "sliding windows. `None`: 8 GiB, or a quarter of the free memory if that is less",
            flag=_server_flag(
                "-cram --cache-ram MiB LLAMA_ARG_CACHE_RAM",
                "for prompts (default: 8192, or a quarter of the free memory)",
                _host_bytes,
                differs="8192 or a quarter of the free memory, llama.cpp 8192; states count too",
            ),
        ),
    ]
    prefix_cache_dir: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "a folder for prefixes and states, which outlive the process there and are read by one with the same files "
            "and settings ([disk](serving.md#conversations-that-outlive-the-process)). It is for its owner alone, as "
            "the texts of conversations are in it. `None`: nothing is kept",
            flag=_server_flag(
                "--cache-disk DIR", "keep prompts there, for the next start too (default: no)", Path, is_ours=True
            ),
        ),
    ]
    prefix_cache_disk_bytes: Annotated[
        int | None,
        Option(
            "of all files in that folder. `None`: 8 GiB, or a quarter of the free room if that is less",
            flag=_server_flag(
                "--cache-disk-size MiB",
                "of that folder (default: 8192, or a quarter of the free room)",
                flags.mebibytes,
                is_ours=True,
            ),
        ),
    ]
    ctx_checkpoints: Annotated[
        int,
        Option(
            "saved states of one text at most, of recurrent layers and sliding windows ([prefix "
            "cache](serving.md#what-does-a-conversation-cost)); 0: none",
            default=32,
            flag=_server_flag(
                "-ctxcp --ctx-checkpoints --swa-checkpoints N LLAMA_ARG_CTX_CHECKPOINTS",
                "saved states of a text (default: 32)",
                int,
            ),
        ),
    ]
    checkpoint_min_step: Annotated[
        int,
        Option(
            "tokens between two of them; those where a system prompt, the last message or the answer begins may be "
            "nearer",
            default=256,
            flag=_server_flag(
                "-cms --checkpoint-min-step N LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
                "tokens between two of them (default: 256)",
                int,
                differs="256, llama.cpp 8192",
            ),
        ),
    ]
    learn_dir: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "a folder for prompts and answers, for their owner alone, from which a head learns ([learn](learn.md)); "
            "its newest head drafts. `None`: nothing is kept",
            flag=_draft_flag(
                "--learn DIR",
                "keep prompts and answers there, and learn to draft them (default: off)",
                Path,
                is_ours=True,
            ),
        ),
    ]
    learn_max_bytes: Annotated[
        int,
        Option(
            "of all files in that folder; when there is no room, hidden states of old texts go first",
            default=4 << 30,
            check=_at_least_one,
            flag=_draft_flag(
                "--learn-max-size MiB",
                "of that folder (default: 4 GiB)",
                flags.mebibytes,
                default=4 << 30,
                is_ours=True,
            ),
        ),
    ]
    rpc_servers: Annotated[
        str | Sequence[str] | None,
        Option(
            "ggml-rpc servers whose devices hold the target's layers, beside this machine's accelerators, as "
            '`["HOST:PORT", ...]` or `"HOST:PORT,HOST:PORT"` ([rpc](rpc.md)). `n_gpu_layers` is -1 then, if it is not '
            "given",
            flag=_device_flag(
                "--rpc SERVERS LLAMA_ARG_RPC", "ggml-rpc servers for the target, HOST:PORT,HOST:PORT,..."
            ),
        ),
    ]
    devices: Annotated[
        str | Sequence[str] | None,
        Option(
            "ggml devices for the target's layers, by name and in this order, instead of all accelerators; "
            '`"none"`: the CPU',
            flag=_device_flag(
                "-dev --device DEV,... LLAMA_ARG_DEVICE", "devices for the target, none = CPU", flags.items
            ),
        ),
    ]
    override_tensor: Annotated[
        Sequence[tuple[str, str]],
        Option(
            "pairs of a regular expression and a buffer type for the tensors that match, such as "
            r'`(r"\.ffn_(up|down|gate)_exps", "CPU")`',
            default=(),
            flag=_device_flag(
                "-ot --override-tensor PATTERN=BUFFER,... LLAMA_ARG_OVERRIDE_TENSOR",
                "put tensors whose name matches into a device's buffers",
                flags.overrides,
            ),
        ),
    ]
    lora: Annotated[
        Sequence[str | tuple[str, float]],
        Option(
            "LoRA adapters in GGUF, or `(adapter, scale)` pairs, that are applied together",
            default=(),
            flag=_model_flag("--lora FNAME,...", "LoRA adapters for the target", flags.items),
        ),
    ]
    model_params: Annotated[
        Mapping[str, Any] | None,
        Option(
            "fields of `llama_model_params` that Llama has no argument for: "
            + ", ".join(f"`{name}`" for name in MODEL_PARAMS),
            check=_model_params,
        ),
    ]
    cpu_kernels: Annotated[
        Literal["auto", "on", "off"],
        Option(
            'what multiplies by the weights on a CPU: `"auto"`: for each weight format our kernels or ggml\'s, '
            "whichever is measured to be faster when a model is loaded (once per machine, about a second; kept, as the "
            'sides sum in different orders); `"on"`: ours where there is one, prompts too; `"off"`: ggml\'s. '
            "`loaded.cpu_kernels_used` shows the choice. Other models of the process are not affected",
            default="auto",
            flag=_device_flag(
                "--cpu-kernels MODE LLAMA_ARG_CPU_KERNELS",
                "our kernels on a CPU: auto (where they were measured to be faster, once per machine), on, off "
                "(default: auto)",
                flags.one_of(KERNEL_MODES),
                is_ours=True,
            ),
        ),
    ]
    rng: Annotated[
        Literal["gumbel", "llama"],
        Option(
            'the generator that samples; also an attribute. `"gumbel"`: seeded noise that drafters can compute too, so '
            'that more drafts are accepted; `"llama"`: llama.cpp\'s, for its texts for a seed (with '
            '`cpu_kernels="off"`). The probabilities are the same',
            default="gumbel",
        ),
    ]
    progress: Annotated[
        Callable[[float], None] | None, Option("called with the share of the target that is loaded, 0 to 1")
    ]
    mmproj_path: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "a multimodal projector, a GGUF file: `create_chat_completion` then takes images or sounds in messages "
            '([multimodal](multimodal.md)); `chat_format` is `"auto"`, if it is not given',
            flag=flag("--mmproj -mm FILE LLAMA_ARG_MMPROJ", "multimodal projector, a GGUF file: images or sounds"),
        ),
    ]
    media_placeholder: Annotated[
        int | str | None,
        Option(
            "token, or its text, that the head reads in place of each row of an image. `None`: by the projector's type "
            "and the vocabulary"
        ),
    ]
    media_http: Annotated[
        AllowHttp,
        Option(
            'fetch public `http` addresses in messages; `"private"`: also those of this machine and of private '
            "networks",
            default=False,
        ),
    ]
    checked: Annotated[
        bool,
        Option(
            "load the header of a target that is new to this machine in a child process first (tenths of a second, "
            "once), so that a damaged file cannot end this process",
            default=True,
        ),
    ]


DraftPaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""A drafter's file or name, or several; None: none is given."""


class ConstructorOptions(Eagle3LlamaOptions, total=False):
    """All arguments of the constructor beside `model_path`."""

    draft_model_path: Annotated[
        DraftPaths,
        Option(
            "the drafter: a GGUF file ([which drafter](drafters.md)), or a name; a list of several, of which each "
            "drafts where it pays; without one a block in the target's file drafts, and n-grams",
            flag=_model_flag(
                "-md --model-draft --spec-draft-model FNAME LLAMA_ARG_SPEC_DRAFT_MODEL",
                "EAGLE-3 head, block drafter (dflash), Gemma 4 assistant, a small model of the same vocabulary, or a "
                "block for multi-token prediction: a GGUF file; may be repeated, so that several draft (default: none)",
                repeats=True,
            ),
        ),
    ]


OPTIONS = options_of(ConstructorOptions)
_TYPES = types_of(ConstructorOptions) | {"draft_model": Any}  # any function may draft
(MMPROJ,) = flags_of(OPTIONS, "")
DEFAULTS = cast(
    Eagle3LlamaOptions,
    {
        name: OPTIONS[name].default
        for name in Eagle3LlamaOptions.__annotations__
        if name not in LlamaOptions.__annotations__
    },
)
"""Defaults of our own arguments; those of `llama_cpp.Llama` have its defaults."""

_LINK = re.compile(r" \(\[.*?\]\(.*?\)\)", re.DOTALL)
Eagle3LlamaOptions.__doc__ = f"{Eagle3LlamaOptions.__doc__}\n\n    Attributes:\n" + "".join(
    f"        {name}: {_LINK.sub('', OPTIONS[name].doc)}.\n" for name in DEFAULTS
)


def show_arguments(function: F) -> F:
    """Let `help`, notebooks and `inspect` show our arguments by name, which the function takes as `**options`."""
    signature = inspect.signature(function)
    *named, options = signature.parameters.values()
    types = types_of(ConstructorOptions)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in DEFAULTS.items()
    ]
    others = options.replace(name="llama_options", annotation="Unpack[LlamaOptions]")
    function.__signature__ = signature.replace(parameters=[*named, *own, others])  # type: ignore[attr-defined]
    return function


def check_names(function: str, given: Iterable[str], *more: str) -> None:
    """Raise TypeError for a keyword that `Eagle3Llama` does not have, and name the nearest one; Llama ignores these.

    more: further ones that the function takes.
    """
    known = [*OPTIONS, *more]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")


def drafter_paths(given: DraftPaths) -> tuple[str, ...]:
    """The files or names in a `draft_model_path`."""
    if given is None:
        return ()
    return tuple(os.fspath(path) for path in ((given,) if isinstance(given, str | os.PathLike) else given))


def check_arguments(function: str, given: ConstructorOptions) -> None:
    """Check each argument by itself, and give it the type that it has here.

    Raises:
        TypeError: there is no such argument.
        ValueError: it cannot have its value.
    """
    check_names(function, given)
    for name, value in given.items():
        found = given[name] = as_type(name, value, _TYPES[name])  # type: ignore[literal-required]
        check = OPTIONS[name].check
        if check is not None:
            check(name, found)
        elif name.startswith(("rope_freq", "yarn")):  # others make the model's numbers NaN
            in_range(0.0 if name.startswith("rope") else -1.0, 1e9)(name, found)
