"""A server without more memory, as under `ulimit -v`: a huge request is an error, and the server goes on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECK = {"prompt": "the self", "n_predict": 8, "temperature": 0.0}
MIB = 1 << 20


def bound_memory(n_bytes: int) -> None:
    """Limit this process to so many bytes more than now."""
    n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    n_most = n_pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (n_most, n_most))


def large() -> Iterator[tuple[str, bytes]]:
    """Yield (path, body) of requests that need many times the free memory."""
    words = b"a b " * (15 * MIB // 4)
    yield "/completion", b'{"prompt":"' + b"x" * (60 * MIB) + b'"}'
    yield "/completion", b'{"prompt":"a","x":[' + b"{}," * (4 * MIB - 10) + b"1]}"
    yield "/tokenize", b'{"content":"' + words[: 4 * MIB] + b'","with_pieces":true}'
    yield "/v1/chat/completions", b'{"messages":[{"role":"user","content":"' + words + b'"}]}'
    yield "/apply-template", b'{"messages":[{"role":"user","content":"' + words + b'"}]}'


def server(model: str, n_mib: int) -> None:
    from serving import Running

    with Running(model, n_ctx=512, options={"embeddings": True, "pooling": 1}) as running:
        expected = running.ask("/completion", CHECK)["content"]
        bodies = list(large())
        bound_memory(n_mib * MIB)
        refused = 0
        for path, body in bodies:
            try:
                response = running.client.post(path, content=body, timeout=120.0)
                status = response.status_code
                assert status in (200, 400, 503), response.text[:500]
            except (httpx.HTTPError, MemoryError):
                status = 0  # there was not even room for the body, here or in the server
            refused += status != 200
            assert running.ask("/completion", CHECK)["content"] == expected, path
        assert refused


CASES: dict[str, Callable[[str], None]] = {
    "little": lambda model: server(model, 64),
    "some": lambda model: server(model, 400),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
@pytest.mark.parametrize("case", CASES)
def test_large_requests(case: str, tiny_target: Any) -> None:
    result = subprocess.run(
        [sys.executable, __file__, case, str(tiny_target.path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]


if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
