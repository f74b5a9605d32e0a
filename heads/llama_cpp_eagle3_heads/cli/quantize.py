"""Rewrite a GGUF head with its matrices in another type, and for fewer tokens; norms and biases stay exact."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_cpp_eagle3.cli.fetch_files import fetch_named
from llama_cpp_eagle3.files.text_file import read_text
from llama_cpp_eagle3.files.whole_file import output_path

TYPES = ("f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("head", metavar="IN.gguf", help="a GGUF head")
    parser.add_argument("output", metavar="OUT.gguf", help="the file to write")
    parser.add_argument("type", type=str.lower, choices=TYPES, help="type of the matrices")
    group = parser.add_argument_group("draft vocabulary")
    group.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="tokens that the head should still draft (default: all that it does)",
    )
    group.add_argument(
        "--vocab-text",
        action="append",
        type=Path,
        default=[],
        metavar="FNAME",
        help="text, best the target's own, whose most frequent tokens are kept (default: those with the lowest ids)",
    )
    group.add_argument("--target", metavar="TARGET.gguf", help="whose tokenizer reads --vocab-text")


def run(args: argparse.Namespace) -> int:
    """Rewrite, and print both sizes."""
    from ..convert import count_tokens, quantize

    if args.vocab_text and (args.draft_vocab is None or args.target is None):
        raise ValueError("--vocab-text needs --draft-vocab and --target")
    fetch_named(args, "head", "target")
    output_path(args.output, args.head, args.target, *args.vocab_text)
    counts = count_tokens(args.target, map(read_text, args.vocab_text)) if args.vocab_text else None
    if counts is not None and not counts:
        raise ValueError(f"--vocab-text: expected text in '{args.vocab_text[0]}', found none")
    path = quantize(
        args.head, args.output, args.type, draft_vocab=args.draft_vocab, counts=counts, progress=sys.stderr.isatty()
    )
    before, after = (Path(p).stat().st_size / 1e6 for p in (args.head, path))
    print(f"{path}: {after:.1f} MB ({args.head}: {before:.1f} MB)")
    return 0
