"""Several processes that train one head, as `torchrun` starts them: each has a target of its own."""

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
"""The others wait while the first makes the texts; torchrun ends them if that one has ended."""


class Ranks:
    """One process alone."""

    rank, n_ranks, local_rank = 0, 1, 0

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and speaks."""
        return self.rank == 0

    def broadcast(self, make: Callable[[], T]) -> T:
        """What the first makes, in all of them."""
        return make()

    def all_gather(self, value: T) -> list[T]:
        """What each of them has, in order."""
        return [value]

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all."""

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all."""


class Distributed(Ranks):
    """One of several, in torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.n_ranks = distributed.get_rank(), distributed.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))

    def broadcast(self, make: Callable[[], T]) -> T:
        """What the first makes, in all of them."""
        values: list[Any] = [make() if self.is_first else None]
        distributed.broadcast_object_list(values)
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        """What each of them has, in order."""
        values: list[Any] = [None] * self.n_ranks
        distributed.all_gather_object(values, value)
        return values

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all."""
        tensors = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        distributed.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all; one without any has learned nothing from its share."""
        parameters = [p for p in parameters if p.requires_grad]
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.all_reduce(p.grad for p in parameters)
        for p in parameters:
            p.grad /= self.n_ranks


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The ranks that torchrun has started, or one alone."""
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
