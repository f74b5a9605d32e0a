"""Describe an EAGLE-3 head: family, boundaries, norms, vocabulary, sizes, who can run it, whether it fits."""

from __future__ import annotations

import argparse

from llama_cpp_eagle3.cli.fetch_files import fetch_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "head", metavar="FILE", help="a GGUF head, a small model in GGUF, the name of one, or a checkpoint folder"
    )
    parser.add_argument("--target", metavar="TARGET", help="the target's GGUF, name or folder, to see if they fit")


def run(args: argparse.Namespace) -> int:
    """Print the facts; the exit code is 2 if the head does not fit the target."""
    from ..convert import inspect

    fetch_named(args, "head", "target")
    report = inspect(args.head, args.target)
    print(report)
    return 2 if report.misfit else 0
