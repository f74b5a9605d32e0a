"""Serve a target and its head over HTTP, with the flags and endpoints of llama-server, compatible with OpenAI's API.

Without -m the bundled pair is served.
"""

from __future__ import annotations

import argparse

from ..errors import Eagle3Error
from .model import list_devices
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    try:
        from ..serve.options import add_arguments as add
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: pip install 'llama-cpp-eagle3[serve]'") from e
    add(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.list_devices:
        return list_devices()
    try:
        from ..serve.run import serve
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: pip install 'llama-cpp-eagle3[serve]'") from e
    return serve(args)
