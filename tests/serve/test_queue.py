"""The queue: a request without room is refused at once, and a request's share is released however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3.serve.api_errors import ApiError
from llama_cpp_eagle3.serve.queue import Queue


class Thread:
    """Takes answers and does nothing with them."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(target=SimpleNamespace(n_seq=2))
        self.answers: set[Any] = set()
        self.cancelled: list[Any] = []
        self.failure = ""

    def submit(self, answer: Any) -> None:
        self.answers.add(answer)

    def cancel(self, answer: Any) -> None:
        self.cancelled.append(answer)


@pytest.fixture
def queue() -> Queue:
    thread: Any = Thread()
    metrics: Any = SimpleNamespace(mean_request_seconds=3.0)
    return Queue(thread, metrics, 4, 100_000, 10.0)


async def parts(*sizes: int) -> AsyncIterator[bytes]:
    for n in sizes:
        yield b"x" * n


def refused(queue: Queue, n: int) -> ApiError:
    async def ask() -> None:
        async with queue.place(n):
            pytest.fail("it has a place")

    with pytest.raises(ApiError) as error:
        asyncio.run(ask())
    return error.value


def test_places(queue: Queue) -> None:
    async def main() -> None:
        async with queue.place(1) as place:
            place.take(3)
            assert (queue.n_preparing, queue.n_waiting) == (4, 2)
            async with queue.place(2):
                assert queue.n_waiting == 4
            place.start([object(), object(), object()])  # type: ignore[list-item]
            assert (queue.n_preparing, queue.n_waiting) == (0, 1)
        assert (queue.n_preparing, queue.n_waiting) == (0, 1)
        with pytest.raises(ApiError, match="has left") as late:
            place.take(1)  # a thread that is late
        assert late.value.code == 499
        with pytest.raises(ApiError, match="has left"):
            place.start([object()])  # type: ignore[list-item]
        assert (len(queue.engine_thread.answers), queue.n_preparing) == (3, 0)

    asyncio.run(main())
    assert queue.n_preparing == 0


def test_refusals(queue: Queue) -> None:
    assert (refused(queue, 7).code, "never fits" in refused(queue, 7).message) == (400, True)

    async def main() -> None:
        async with queue.place(6) as place:
            full = None
            try:
                place.take(1)
            except ApiError as e:
                full = e
            assert full is not None
            assert full.code == 429
            assert full.headers == {"Retry-After": "6"}  # 4 wait for 2 slots, 3 s each
            assert queue.n_preparing == 6

    asyncio.run(main())
    queue.engine_thread.failure = "the device is gone"
    assert refused(queue, 1).code == 500
    assert queue.n_preparing == 0


def test_an_error_gives_everything_back(queue: Queue) -> None:
    async def main() -> None:
        async with queue.place(2) as place:
            await place.read(parts(70_000, 20_000))
            assert queue.n_bytes == 90_000
            raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(main())
    assert queue.n_preparing == queue.n_bytes == 0


def test_what_was_started_ends_with_the_request(queue: Queue) -> None:
    """The thread that prepares a request starts its answers, and the client may leave before the thread knows of it."""
    thread: Any = queue.engine_thread
    answers: list[Any] = [object(), object()]

    async def main() -> None:
        async with queue.place(2) as place:
            place.start(answers)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(main())
    assert thread.cancelled == answers
    assert queue.n_preparing == 0


def test_bodies_are_bounded_together(queue: Queue) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            *large, other, small = [await stack.enter_async_context(queue.place()) for _ in range(6)]
            for place in large:
                assert len(await place.read(parts(70_000, 27_500))) == 97_500
            with pytest.raises(ApiError, match="bodies of other requests") as error:
                await other.read(parts(40_000, 40_000))
            assert error.value.code == 503
            assert await small.read(parts(50_000)) == b"x" * 50_000  # a small body always has room
            assert queue.n_bytes == 390_000

    asyncio.run(main())
    assert queue.n_bytes == 0


def test_a_body_that_is_too_large_or_too_slow(queue: Queue) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 90_000
        await asyncio.sleep(60.0)

    async def read(stream: AsyncIterator[bytes]) -> ApiError:
        async with queue.place() as place:
            with pytest.raises(ApiError) as error:
                await place.read(stream)
        return error.value

    assert asyncio.run(read(parts(99_999, 2))).code == 413
    queue.body_seconds = 0.05
    assert asyncio.run(read(slow())).code == 408
    assert queue.n_bytes == 0
