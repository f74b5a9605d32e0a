"""llama.cpp's flags, as far as a single generation needs them."""

from __future__ import annotations

import argparse

from ..ggml_types import CACHE_TYPES, WEIGHT_TYPES
from ..options import default_threads

_REMOVED = {
    "--draft": "--spec-draft-n-max",
    "--draft-n": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n-min": "--spec-draft-n-min",
}


class _Renamed(argparse.Action):
    """A flag that llama.cpp has renamed: say how it is called now."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        parser.error(f"{option_string} is called {_REMOVED[option_string]} now")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what to load, and how."""
    group = parser.add_argument_group("models")
    group.add_argument("-m", "--model", metavar="FNAME", help="target, a GGUF file (default: the bundled pair)")
    group.add_argument(
        "-md", "--model-draft", "--spec-draft-model", metavar="FNAME", help="EAGLE-3 head, a GGUF file (default: none)"
    )
    group.add_argument("-mm", "--mmproj", metavar="FNAME", help="multimodal projector, a GGUF file: images or sounds")
    group.add_argument("--lora", metavar="FNAME", help="LoRA adapter for the target")
    group.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        metavar="N",
        help="context size (default: the model's, at most 4096; 0 = the model's)",
    )
    group.add_argument("-b", "--batch-size", type=int, default=2048, metavar="N", help="logical batch size")
    group.add_argument("-ub", "--ubatch-size", type=int, default=512, metavar="N", help="physical batch size")
    group.add_argument("-t", "--threads", type=int, default=default_threads(), metavar="N", help="CPU threads")
    group.add_argument("-tb", "--threads-batch", type=int, metavar="N", help="CPU threads for batches (default: as -t)")
    group.add_argument(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=_layers,
        default=-1,
        metavar="N",
        help="layers on the GPU, or all",
    )
    group.add_argument(
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        "--spec-draft-ngl",
        type=_layers,
        default=-1,
        metavar="N",
        help="0: head on the CPU, auto: where the target's output is",
    )
    group.add_argument("--rpc", metavar="SERVERS", help="ggml-rpc servers for the target, HOST:PORT,HOST:PORT,...")
    group.add_argument(
        "-devd",
        "--device-draft",
        "--spec-draft-device",
        metavar="DEVICE",
        help="run the head on this ggml device, or on this one of the rpc servers",
    )
    group.add_argument(
        "-fa",
        "--flash-attn",
        nargs="?",
        const="on",
        default="auto",
        choices=("on", "off", "auto"),
        help="flash attention",
    )
    for flag, draft_flag, what in (("-ctk", "-ctkd", "k"), ("-ctv", "-ctvd", "v")):
        for short, long, whose in (
            (flag, [f"--cache-type-{what}"], "the target"),
            (draft_flag, [f"--cache-type-{what}-draft", f"--spec-draft-type-{what}"], "the head"),
        ):
            group.add_argument(
                short, *long, choices=CACHE_TYPES, metavar="TYPE", help=f"type of the {what.upper()} cache of {whose}"
            )
    group.add_argument(
        "--spec-draft-type",
        choices=WEIGHT_TYPES,
        metavar="TYPE",
        help="convert the head's wider matrices to this while loading, f32: none "
        "(default: to q4_0, if that was measured to pay)",
    )
    group.add_argument("--no-mmap", action="store_true", help="read the target instead of mapping it")
    group.add_argument("--mlock", action="store_true", help="keep the target in RAM")


def add_draft_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of speculative decoding."""
    group = parser.add_argument_group("speculative decoding")
    group.add_argument(
        "--spec-type", choices=("draft-eagle3", "none"), default="draft-eagle3", help="none: do not draft"
    )
    group.add_argument(
        "--spec-draft-n-max", type=int, metavar="N", help="tokens to draft (default: what pays best on this machine)"
    )
    group.add_argument("--spec-draft-n-min", type=int, default=0, metavar="N", help="drop shorter drafts (default: 0)")
    group.add_argument(
        "--spec-draft-p-min",
        "--draft-p-min",
        type=float,
        default=0.0,
        metavar="P",
        help="end the draft before a token less likely than this (default: 0.0)",
    )
    for name, what in (
        ("depth", "draft trees of that many levels"),
        ("topk", "with that many successors behind each node"),
        ("tokens", "and verify that many nodes"),
    ):
        group.add_argument(f"--tree-{name}", type=int, metavar="N", help=what)
    for flag in _REMOVED:
        group.add_argument(flag, action=_Renamed, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the target's sampler."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temp", "--temperature", type=float, default=0.0, metavar="T", help="(default: 0, greedy)")
    group.add_argument("--top-k", type=int, default=40, metavar="N", help="(default: 40, 0 = off)")
    group.add_argument("--top-p", type=float, default=0.95, metavar="P", help="(default: 0.95, 1 = off)")
    group.add_argument("--min-p", type=float, default=0.05, metavar="P", help="(default: 0.05, 0 = off)")
    group.add_argument("--repeat-penalty", type=float, metavar="X", help="(default: 1, off; 1.15 for the demo prompt)")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="X", help="(default: 0, off)")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X", help="(default: 0, off)")
    group.add_argument("-s", "--seed", type=int, default=-1, metavar="N", help="(default: -1, random)")
    group.add_argument("--ignore-eos", action="store_true", help="never end the text before -n tokens")


def _layers(text: str) -> int:
    if text in ("all", "auto"):
        return -1
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, auto or all, found {text!r}") from None
