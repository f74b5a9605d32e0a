"""A model in a fork of its process: an error, where it would wait for ever for threads that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from loading import path_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

CODE = """
    import os, sys, threading
    from concurrent.futures import ThreadPoolExecutor
    from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama

    target = sys.argv[1]

    def load(n_threads):
        return Eagle3Llama(target, n_ctx=64, n_threads=n_threads, verbose=False)

    def complete(llm):
        stream = llm.generate([1, 2, 3], temp=0.0)
        return "tokens " + " ".join(str(next(stream)) for _ in range(4))

    def load_and_complete(n_threads):
        with load(n_threads) as llm:
            return complete(llm)

    def in_a_thread(n_threads):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(load_and_complete, n_threads).result()

    def error(call):
        try:
            return call()
        except Eagle3Error as e:
            return str(e)

    def child(call):
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(writer, str(error(call)).encode())
            os.close(writer)
            sys.exit(0)  # frees what there is
        os.close(writer)
        with open(reader) as file:
            print(file.read())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    child(lambda: load_and_complete(2))
    llm = load(2)
    complete(llm)
    child(lambda: complete(llm))
    child(lambda: llm.close())
    child(lambda: load_and_complete(2))
    child(lambda: load_and_complete(1))
    child(lambda: in_a_thread(2))
    print(complete(llm))
"""


def test_forks(tiny_target: Any) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CODE), path_of(tiny_target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    before, use, close, again, one_thread, new_thread, parent = result.stdout.splitlines()
    assert before == one_thread == new_thread == parent
    assert before.startswith("tokens ")
    assert use.startswith("this Eagle3Llama was loaded before the process was forked")
    assert close == "None"
    assert again == before or "load it with n_threads=1, in a new thread" in again  # without OpenMP it works
    assert result.stderr == ""
