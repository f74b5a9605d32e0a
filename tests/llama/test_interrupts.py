"""A Ctrl-C while a model loads ends the load, also if it comes while llama.cpp logs a line."""

from __future__ import annotations

import signal
from typing import Any

import llama_cpp.llama_cpp as lib
import pytest
from llama_cpp._logger import llama_log_callback

from llama_cpp_eagle3.llama.interrupts import interrupts_at_end
from loading import load


def test_while_a_line_is_logged(tiny_target: Any) -> None:
    lines = []

    @lib.llama_log_callback
    def interrupt(level: int, text: bytes, data: Any) -> None:
        lines.append(text)
        if len(lines) == 3:
            signal.raise_signal(signal.SIGINT)

    lib.llama_log_set(interrupt, None)
    try:
        with pytest.raises(KeyboardInterrupt):
            load(tiny_target)
    finally:
        lib.llama_log_set(llama_log_callback, None)
    assert len(lines) > 3
    load(tiny_target).close()


def test_the_second_one_is_not_held_back() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def interrupt_twice() -> None:
        with interrupts_at_end():
            for i in range(2):
                signal.raise_signal(signal.SIGINT)
                done.append(i)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert done == [0]
    assert signal.getsignal(signal.SIGINT) is before
