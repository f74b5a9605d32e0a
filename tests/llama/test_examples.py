"""Each example runs as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loading import load_plain, path_of, take

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *args: Any, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run an example and expect success."""
    command = [sys.executable, str(EXAMPLES / name), *(str(a) for a in args)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def perfect(tiny_dir: Path) -> Any:
    """Return a pair whose drafts are all accepted."""
    from tiny import write_perfect_pair

    return write_perfect_pair(tiny_dir / "example.gguf", tiny_dir / "example-head.gguf")


def test_speculative_simple(perfect: Any) -> None:
    target, head = perfect
    done = run("speculative_simple.py", path_of(target), path_of(head), "the self")
    assert float(done.stderr.split()[-3]) > 3.5  # of 4 tokens a step
    with closing(load_plain(target)) as plain:
        expected = plain.detokenize(take(plain, plain.tokenize(b"the self"), 64)).decode(errors="replace")
    assert done.stdout == f"the self{expected}\n"


def test_speculative_simple_with_a_bad_head(tiny_target: Any, tiny_head: Any) -> None:
    done = run("speculative_simple.py", path_of(tiny_target), path_of(tiny_head), "the self")
    with closing(load_plain(tiny_target)) as plain:
        expected = plain.detokenize(take(plain, plain.tokenize(b"the self"), 64)).decode(errors="replace")
    assert done.stdout.replace("\r", "") == f"the self{expected}\n".replace("\r", "")


def test_chat(perfect: Any) -> None:
    done = run("chat.py", *(path_of(m) for m in perfect), stdin="the return\nof the self\n")
    assert done.stdout.count("> ") >= 2
    assert done.stdout.count("<Stats: 64 tokens") == 2
    assert "<Stats: 128 tokens" in done.stdout.splitlines()[-1]


def test_features(tiny_target: Any) -> None:
    done = run("features.py", path_of(tiny_target), "the")
    assert done.stdout.startswith("(3, 3, 64) = (tokens, boundaries, width), float32, boundaries (0, 1, 2)")
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_with_the_bundled_pair(name: str) -> None:
    from loading import bundled_pair

    bundled_pair()
    assert run(name, stdin="class Stack:\n").stdout
