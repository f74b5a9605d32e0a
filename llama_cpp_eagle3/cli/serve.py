"""Serve a target and its head over HTTP, with the flags and endpoints of llama-server, compatible with OpenAI's API.

Without -m the bundled pair is served.
"""

from __future__ import annotations

import argparse

from ..errors import Eagle3Error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    try:
        from ..serve.options import add_arguments as add
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: pip install 'llama-cpp-eagle3[serve]'") from e
    add(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        from ..serve.run import serve
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: pip install 'llama-cpp-eagle3[serve]'") from e
    return serve(args)
