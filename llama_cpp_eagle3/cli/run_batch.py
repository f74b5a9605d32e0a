"""Run the requests of a file that have no result yet, here or by Ray."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from ..files.whole_file import naming, output_path
from ..log import progress_bar
from ..serve.batch_answers import Keep, answer_all
from ..serve.batch_file import BatchRequest, Total, count_result, read_done, read_requests
from ..serve.jsons import dumps
from .load_model import BAR
from .load_server import batch_server


def run_batch(args: argparse.Namespace) -> int:
    """Run a file; 1 if a request ended with an error.

    Raises:
        ValueError, OSError, RuntimeError: it cannot be started, or the output cannot be written.
    """
    requests = read_requests(args.input)[: args.limit]
    output = output_path(args.output, args.input)
    done, lines = read_done(output, args.retry_errors)
    totals: dict[str, Total] = defaultdict(Total)
    categories = {request.custom_id: request.category for request in requests}
    for result in lines:
        count_result(totals[categories.get(result["custom_id"], "")], result)
    left = [request for request in requests if request.custom_id not in done]
    if left:
        bars = closing(progress_bar(len(requests), "", desc="requests", **BAR))
        with bars as bar, naming(output), output.open("ab") as file:
            bar.update(len(requests) - len(left))

            def keep(line: dict[str, Any]) -> None:
                file.write(dumps(line, has_halves=True) + b"\n")  # `custom_id` is found again
                file.flush()
                count_result(totals[categories[line["custom_id"]]], line)
                bar.update(1)

            _run(args, left, keep)
    for text in report(totals):
        print(text, file=sys.stderr)
    return int(any(total.n_errors for total in totals.values()))


def _run(args: argparse.Namespace, requests: Sequence[BatchRequest], keep: Keep) -> None:
    """Answer requests here, or by Ray."""
    if args.ray is not None:
        from .batch_ray import answer_with_ray

        for line in answer_with_ray(args, requests):
            keep(line)
        return
    server = batch_server(args)

    async def run() -> None:
        server.start()
        try:
            await answer_all(server, requests, keep)
        finally:
            server.stop()

    asyncio.run(run())


def report(totals: dict[str, Total]) -> Iterator[str]:
    """Print the results by category."""
    for category, total in sorted(totals.items()):
        errors = f", {total.n_errors} errors" if total.n_errors else ""
        yield (
            f"{category or 'all'}: {total.n} requests{errors}, {total.n_tokens} tokens, "
            f"mean acceptance length {total.mean_acceptance_length:.2f}"
        )
