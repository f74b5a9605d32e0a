"""Spoilt files of heads and of targets of eight architectures: none ends the process (more: tools/fuzz_files.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_files import ARCHS, HEADS, Fuzzer, parse_args, run
from gguf_raw import parse, serialize


@pytest.mark.parametrize("seed", [1])
def test_spoilt_files(seed: int) -> None:
    record = run(parse_args(["--cases", "300", "--seed", str(seed)]))
    assert record.failures == []
    assert record.n_cases == 300
    summary = record.summary()
    # neither are all files refused, nor are all harmless
    assert min(summary["decoded"], summary["refused"]) > 50
    assert {name.split()[0] for name in record.outcomes} == {"head", *ARCHS}
    assert len(record.mutations) >= 15


def test_the_same_number_makes_the_same_file(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fuzzer = Fuzzer(tmp_path / name, ("llama",), {})
        fuzzer.make(1, 5, tmp_path / name / "case.gguf")
        files.append((tmp_path / name / "case.gguf").read_bytes())
    assert files[0] == files[1]


def test_what_is_not_spoilt_stays_as_it_is(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, ("gpt-oss",), {})
    assert len(fuzzer.good_files()) == 2 + len(HEADS)
    for path in fuzzer.good_files():
        data = path.read_bytes()
        assert serialize(parse(data)) == data
