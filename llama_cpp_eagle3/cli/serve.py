"""Serve a target and its head over HTTP, with the flags and endpoints of llama-server, compatible with OpenAI's API.

Without -m the bundled pair is served.
"""

from __future__ import annotations

import argparse

from .extra import extra
from .model import list_devices
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    with extra("serve"):
        from ..serve.options import add_arguments as add
    add(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.list_devices:
        return list_devices()
    with extra("serve"):
        from ..serve.run import serve
    return serve(args)
