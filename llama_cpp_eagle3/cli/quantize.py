"""Rewrite a GGUF head with its matrices in another type; norms, biases and the vocabulary map stay exact."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import Eagle3Error

TYPES = ("f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("head", metavar="IN.gguf", help="a GGUF head")
    parser.add_argument("output", metavar="OUT.gguf", help="the file to write")
    parser.add_argument("type", choices=TYPES, help="type of the matrices")


def run(args: argparse.Namespace) -> int:
    """Quantize, and print both sizes."""
    try:
        from ..convert import quantize
    except ImportError as e:
        raise Eagle3Error(str(e)) from e
    path = quantize(args.head, args.output, args.type, progress=sys.stderr.isatty())
    before, after = (Path(p).stat().st_size / 1e6 for p in (args.head, path))
    print(f"{path}: {after:.1f} MB ({args.head}: {before:.1f} MB)")
    return 0
