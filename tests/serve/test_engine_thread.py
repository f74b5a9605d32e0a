"""The engine's thread: every call is answered, also when the thread has ended."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3.serve.answer import Answer
from llama_cpp_eagle3.serve.engine_thread import EngineThread
from llama_cpp_eagle3.serve.fields import Completion


class Idle:
    """An engine without work, or with a kind of work that ends its thread."""

    def __init__(self, ends_thread: bool = False):
        self.has_work, self.n_dropped = ends_thread, 0

    def step(self) -> Any:
        raise SystemExit

    def drop(self, sequences: list[Any]) -> None:
        self.n_dropped += 1


def make(engine: Any) -> EngineThread:
    observer: Any = None
    return EngineThread(engine, observer)


async def check_answered(worker: EngineThread) -> None:
    with pytest.raises(RuntimeError, match="shutting down"):
        await asyncio.wait_for(asyncio.wrap_future(worker.call(lambda: 1)), 5)
    heard: list[Any] = []
    sequence: Any = SimpleNamespace(result=SimpleNamespace(error=None))
    answer = Answer(0, sequence, Completion.model_validate({}), 512, receive=heard.append)
    worker.submit(answer)
    await asyncio.sleep(0.05)
    assert [(one, output.token, output.finish_reason) for one, output, _ in heard] == [(answer, None, "error")]
    assert str(sequence.result.error) == "the server is shutting down"
    assert not worker.answers


def test_after_the_end() -> None:
    async def main() -> None:
        worker = make(Idle())
        worker.start(asyncio.get_running_loop())
        assert await asyncio.wrap_future(worker.call(lambda: 7)) == 7
        assert worker.stop()
        await check_answered(worker)

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_thread_that_was_ended() -> None:
    async def main() -> None:
        worker = make(Idle(ends_thread=True))
        early = worker.call(lambda: 7)
        worker.start(asyncio.get_running_loop())
        assert await asyncio.wait_for(asyncio.wrap_future(early), 5) == 7
        while any(t.name == "engine" for t in threading.enumerate()):
            await asyncio.sleep(0.01)
        await check_answered(worker)
        assert worker.failure

    asyncio.run(main())


def test_what_is_written_while_it_is_idle_fails(caplog: pytest.LogCaptureFixture) -> None:
    """One line says so, and the thread goes on."""
    has_kept = threading.Event()

    class Full(Idle):
        def keep(self) -> bool:
            has_kept.set()
            raise OSError("no room")

    async def main() -> None:
        worker = make(Full())
        worker.start(asyncio.get_running_loop())
        assert await asyncio.to_thread(has_kept.wait, 30)
        assert await asyncio.wait_for(asyncio.wrap_future(worker.call(lambda: 7)), 30) == 7
        assert not worker.failure
        assert worker.stop()

    asyncio.run(main())
    assert ["no room" in line for line in caplog.messages] == [True]


def test_never_started() -> None:
    worker = make(Idle())
    early = worker.call(lambda: 1)
    assert worker.stop()
    for future in (early, worker.call(lambda: 1)):
        assert "shutting down" in str(future.exception(5))


def test_calls_while_it_ends() -> None:
    """No call is lost between the last look at the inbox and the end."""
    for _ in range(20):
        worker = make(Idle())
        loop = asyncio.new_event_loop()
        worker.start(loop)
        futures: list[Any] = []

        def ask(worker: EngineThread = worker, futures: list[Any] = futures) -> None:
            futures.extend(worker.call(lambda: 7) for _ in range(300))

        asking = threading.Thread(target=ask)
        asking.start()
        worker.stop()
        asking.join()
        for future in futures:
            assert future.exception(5) is not None or future.result() == 7
        loop.close()
