"""Requests of a file over several processes or machines, through Ray Data: each worker has an engine of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from .._core import local_accelerators
from ..errors import Eagle3Error
from ..extras import extra
from ..serve.batch_answers import answer_all
from ..serve.batch_file import BatchRequest
from .load_server import batch_server

_BATCHES_PER_SLOT = 8  # a worker gets so many requests per slot at once


class Worker:
    """The class that Ray runs in each worker process."""

    def __init__(self, flags: dict[str, Any]):
        """Load the pair. flags: of the command."""
        self._loop = asyncio.new_event_loop()
        self._server = batch_server(argparse.Namespace(**flags))
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._server.start()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Answer a batch of requests, all at once: column "request" -> column "line", both JSON."""
        requests = [BatchRequest(**json.loads(text)) for text in batch["request"]]
        lines: list[str] = []
        work = answer_all(self._server, requests, lambda line: lines.append(json.dumps(line)))
        self._loop.run_until_complete(work)
        return {"line": lines}


def answer_with_ray(args: argparse.Namespace, requests: Sequence[BatchRequest]) -> Iterator[dict[str, Any]]:
    """Lines of results, as they come. Other workers repeat the requests of a worker that dies.

    Raises:
        Eagle3Error: Ray is missing, cannot be reached, or no worker can load the pair.
    """
    with extra("ray"):
        import ray
        import ray.data
        import ray.exceptions
    with _connected(ray, args):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        n_slots = args.n_parallel if args.n_parallel > 0 else 4
        flags = {name: value for name, value in vars(args).items() if name not in ("input", "output")}
        n_batch = min(_BATCHES_PER_SLOT * n_slots, max(n_slots, -(-len(requests) // args.ray_workers)))
        # one block per batch, made here: workers may take all CPUs, so that none is left to split the data
        data = ray.data.from_items(
            [{"request": json.dumps(asdict(request))} for request in requests],
            override_num_blocks=-(-len(requests) // n_batch),
        )
        found = data.map_batches(
            Worker,
            fn_constructor_args=(flags,),
            batch_size=n_batch,
            concurrency=args.ray_workers,
            num_cpus=args.n_threads,
            num_gpus=_gpus(args),
        )
        try:
            for row in found.iter_rows():
                yield json.loads(row["line"])
        except ray.exceptions.RayError as e:
            reason = str(e).strip().splitlines()[-1]
            raise Eagle3Error(f"Ray gave up: {reason}") from e


@contextmanager
def _connected(ray: Any, args: argparse.Namespace) -> Iterator[None]:
    """Join a cluster, or start one here if there is none."""
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(address=args.ray or None, log_to_driver=args.verbose, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise Eagle3Error(f"--ray: cannot join {args.ray or 'a cluster'}: {e}") from e
    try:
        yield
    finally:
        if is_ours:
            ray.shutdown()


def _gpus(args: argparse.Namespace) -> float:
    """GPUs of each worker."""
    if args.ray_gpus is not None:
        return float(args.ray_gpus)
    return float(bool(local_accelerators()) and args.n_gpu_layers != 0)
