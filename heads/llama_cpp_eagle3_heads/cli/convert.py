"""Convert a Hugging Face EAGLE-3 head or block drafter to a GGUF, for llama.cpp too where that can run it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_cpp_eagle3.cli.fetch_files import fetch_named
from llama_cpp_eagle3.files.text_file import read_text
from llama_cpp_eagle3.files.whole_file import output_path

_ON_OFF = {"auto": None, "on": True, "off": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("draft", metavar="DRAFT_DIR", help="folder with the draft's config.json and weights")
    parser.add_argument("--target", required=True, metavar="TARGET", help="the target's GGUF or Hugging Face folder")
    parser.add_argument("-o", "--output", metavar="OUT.gguf", help="(default: DRAFT_DIR's name and the type, here)")
    parser.add_argument(
        "--outtype",
        default="auto",
        choices=("auto", "f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0"),
        help="type of the matrices (default: auto, bf16 stays, all else f16)",
    )
    group = parser.add_argument_group("what the checkpoint leaves open")
    group.add_argument("--probe", metavar="PROMPTS", help="text file; draft with each reading on it, keep the best")
    group.add_argument("--probe-target", metavar="GGUF", help="the target's GGUF for --probe, if TARGET is a folder")
    group.add_argument(
        "--layer-boundaries",
        type=_numbers,
        metavar="N,N,N",
        help="hidden states that the head reads, as numbers of layers they have passed",
    )
    for flag, what in (
        ("--norm-output", "whether the normed state is fed back"),
        ("--norm-before-residual", "whether the residual starts at the normed hidden state"),
    ):
        group.add_argument(flag, default="auto", choices=_ON_OFF, help=f"{what} (default: auto, as in the config)")
    group.add_argument("--rope-theta", type=float, metavar="X", help="base of the rotation")
    group.add_argument("--mask-token", type=int, metavar="ID", help="mask token of a P-EAGLE head or a block drafter")


def run(args: argparse.Namespace) -> int:
    """Convert, and describe the result."""
    from ..convert import convert, inspect
    from ..convert.probe import format_table

    fetch_named(args, "target", "probe_target")
    if args.output is not None:
        output_path(args.output, args.probe)
    result = convert(
        args.draft,
        args.target,
        args.output,
        outtype=args.outtype,
        boundaries=args.layer_boundaries,
        norm_output=_ON_OFF[args.norm_output],
        norm_before_residual=_ON_OFF[args.norm_before_residual],
        rope_theta=args.rope_theta,
        mask_token=args.mask_token,
        probe_prompts=read_prompts(Path(args.probe)) if args.probe else None,
        probe_target=args.probe_target,
        progress=sys.stderr.isatty(),
    )
    if result.probe:
        print(format_table(result.probe), end="\n\n")
    print(inspect(result.path))
    for note in result.spec.notes:
        print(f"note: {note}")
    for warning in result.spec.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for doubt in result.spec.doubts:
        print(f"warning: the checkpoint leaves open: {doubt}. Settle it with --probe PROMPTS.", file=sys.stderr)
    return 0


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file: paragraphs if there are empty lines, else lines."""
    text = read_text(path)
    parts = text.split("\n\n" if "\n\n" in text.strip() else "\n")
    return [part for part in parts if part.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas, found {text!r}") from None
