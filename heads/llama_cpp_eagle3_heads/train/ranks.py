"""Several processes that train one head, as `torchrun` starts them; each loads a target of its own."""

# mypy: disable-error-code="misc, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")
_TIMEOUT = timedelta(days=7)
"""The timeout of the other ranks, which wait while rank 0 makes the texts; torchrun ends them if rank 0 has ended."""


class Ranks:
    """The ranks of a training; here one process alone."""

    rank, n_ranks, local_rank = 0, 1, 0

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the files and the log."""
        return self.rank == 0

    def broadcast(self, make: Callable[[], T]) -> T:
        """Return to every rank the value that `make` returns on rank 0."""
        return make()

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order."""
        return [value]

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all ranks, in place."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all ranks, in place."""


class Distributed(Ranks):
    """One rank of several, in torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.n_ranks = distributed.get_rank(), distributed.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))

    def broadcast(self, make: Callable[[], T]) -> T:
        """Return to every rank the value that `make` returns on rank 0."""
        values: list[Any] = [make() if self.is_first else None]
        distributed.broadcast_object_list(values)
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order."""
        values: list[Any] = [None] * self.n_ranks
        distributed.all_gather_object(values, value)
        return values

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all ranks, in place."""
        tensors = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        distributed.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all ranks, in place; a parameter without a gradient counts as 0."""
        parameters = [p for p in parameters if p.requires_grad]
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.all_reduce(p.grad for p in parameters)
        for p in parameters:
            p.grad /= self.n_ranks


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Open the process group of the ranks that torchrun has started, or of one process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # gloo carries objects and CPU tensors, nccl those of GPUs
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_TIMEOUT)
    try:
        yield Distributed()
    finally:
        distributed.destroy_process_group()
