"""Complete the requests of a file with a target and its head, as fast as this machine can.

The input is OpenAI's batch format (/v1/chat/completions and /v1/completions), a JSON line per prompt, mt-bench's
question.jsonl, or plain text with a prompt per line. Requests whose results are in the output already are skipped.
Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..extras import extra
from .parser import Parser
from .server_options import add_server_flags


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    with extra("serve"):
        import pydantic  # noqa: F401  a missing package is an error before any flag is
    parser.add_argument("input", type=Path, help="requests, a line each")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FNAME", help="results, a line each")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first ones")
    parser.add_argument("--retry-errors", action="store_true", help="do again what ended with an error")
    group = parser.add_argument_group("several workers, through Ray Data")
    group.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="of a cluster (default: the one at hand, or a local one)"
    )
    group.add_argument("--ray-workers", type=int, default=1, metavar="N", help="engines (default: 1)")
    group.add_argument("--ray-gpus", type=float, metavar="X", help="of each (default: 1, or 0 without GPU support)")
    add_server_flags(parser)
    parser.hide("host", "port", "alias", "api_key", "metrics", "embeddings")  # no socket is opened


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with extra("serve"):
        from .run_batch import run_batch
    return run_batch(args)
