"""A corpus of files for the n-gram drafter: files that are read, files that are left out, and drafts from it."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_text
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import NgramDrafter, NgramStore
from llama_cpp_eagle3.draft import corpus as corpus_module
from llama_cpp_eagle3.draft.corpus import read_corpus
from loading import cheap_rows, is_tie, load, load_plain, take

tokens = st.integers(0, 3)


@given(
    st.lists(st.lists(tokens, max_size=30), max_size=4),
    st.lists(tokens, max_size=30),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_as_a_search_through_the_files(files: list[list[int]], text: list[int], n_max: int, top_k: int) -> None:
    corpus, stored = NgramStore(1000), []
    for file in files:
        corpus.add(file)
        stored += [*file, -1] if file else []  # nothing continues after a separator
    drafter = NgramDrafter(1, None, corpus)
    drafter.update(text)
    others = []
    for place, length in reference_text.matches(stored, text):
        following = stored[place : place + n_max]
        end = following.index(-1) if -1 in following else len(following)
        others += [(following[:end], length)] if end else []
    found = drafter.propose(n_max, 8, top_k)
    expected = reference_text.propose(text, n_max, 8, top_k, others)
    assert [p for _, _, p, _ in found] == pytest.approx([p for _, _, p, _ in expected], rel=1e-4)
    if top_k == 1:
        assert [node[:2] for node in found] == [node[:2] for node in expected]


def test_what_one_user_writes_goes_nowhere_unless_asked() -> None:
    """A corpus is only read; generated text goes only into a store, which a user must ask for."""
    written, begun = list(range(100, 200)), list(range(100, 110))
    corpus, store = NgramStore(1000), NgramStore(1000)
    corpus.add([1, 2, 3, 4])
    for store_or_none, expected in ((None, []), (store, list(range(110, 118)))):
        drafter = NgramDrafter(2, store_or_none, corpus)
        drafter.update([7], 1, seq_id=0)
        drafter.update([7, *written], 1, seq_id=0)
        drafter.begin(0)
        drafter.update([8], 1, seq_id=0)
        drafter.update(begun, len(begun), seq_id=1)
        assert [token for _, token, _, _ in drafter.propose(8, 8, 1, seq_id=1)] == expected
        assert len(corpus) == 5
        drafter.update([9, 1, 2], 3, seq_id=0)
        assert [token for _, token, _, _ in drafter.propose(8, 8, 1, seq_id=0)] == [3, 4]


@pytest.fixture
def llm(tiny_target: Any) -> Any:
    with closing(load(tiny_target)) as llm:
        yield llm


def write(path: Path, data: bytes, seconds: int = 0) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (seconds, seconds))


def test_files_of_a_folder(llm: Eagle3Llama, tmp_path: Path) -> None:
    texts = [b"one two three\n" * 3, b"four five six\n"]
    for name in ("newer.py", "sub/older.txt"):
        write(tmp_path / name, texts[name == "newer.py"], seconds=100 * (name == "newer.py"))
    others = {"image.png": b"\x89PNG\0", "latin.txt": b"caf\xe9", ".hidden": b"secret", ".git/x": b"y"}
    for name, data in others.items():
        write(tmp_path / name, data)
    lines: list[str] = []
    corpus = read_corpus(tmp_path, llm.engine.vocab, lines.append)
    assert corpus is not None
    n = [len(llm.tokenize(text, add_bos=False)) for text in texts]
    assert len(corpus) == sum(n) + 2
    assert len(lines) == 1
    assert "2 files" in lines[0]
    assert "left out: 2 that are no text" in lines[0]
    one = read_corpus(tmp_path / "newer.py", llm.engine.vocab, lines.append)
    assert one is not None
    assert len(one) == n[1] + 1


def test_a_corpus_within_its_budget(llm: Eagle3Llama, tmp_path: Path) -> None:
    for i in range(8):
        write(tmp_path / f"{i}.txt", b"".join(b"%d " % (i * 10000 + k) for k in range(7000)), seconds=i)
    lines: list[str] = []
    budget = 1 << 20
    corpus = read_corpus(tmp_path, llm.engine.vocab, lines.append, budget)
    assert corpus is not None
    assert budget / 8 < corpus.n_bytes <= budget
    assert "for which 1 MiB of memory leave no room" in lines[0]
    latest = llm.tokenize(b"70000 70001 70002 70003 70004 ", add_bos=False)  # the file that changed last is there
    drafter = NgramDrafter(1, None, corpus)
    drafter.update(latest[:-4])
    assert [token for _, token, _, _ in drafter.propose(2, 2)] == latest[-4:-2]


@pytest.mark.parametrize("what", ["missing", "empty", "binary"])
def test_nothing_to_read_is_a_warning(
    llm: Eagle3Llama, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    if what == "binary":
        write(tmp_path / "x", b"\0\1")
    path = tmp_path / "none" if what == "missing" else tmp_path
    lines: list[str] = []
    with caplog.at_level(logging.WARNING, "llama_cpp_eagle3"):
        assert read_corpus(path, llm.engine.vocab, lines.append) is None
    assert lines == []
    assert len(caplog.records) == 1
    assert "drafts do without it" in caplog.text


def test_drafts_from_a_corpus(tiny_target: Any, tmp_path: Path, no_clock: None, monkeypatch: Any) -> None:
    """The model's text is in the corpus: it is drafted, and stays the target's own."""
    prompt = list(range(3, 40, 3))
    with closing(load_plain(tiny_target)) as plain:
        expected = take(plain, prompt, 40)
        store = NgramStore(1000)
        store.add([*prompt, *expected])
        monkeypatch.setattr(corpus_module, "tokenize", lambda *_: [*prompt, *expected])
        write(tmp_path / "x.txt", b"x")
        with closing(load(tiny_target, draft_corpus=tmp_path / "x.txt")) as llm:
            assert llm.draft_sources == ("ngram", "grammar")
            cheap_rows(llm)
            found = take(llm, prompt, 40)
            assert found == expected or is_tie(plain, prompt, expected, found)
            assert llm.stats.of("ngram").accepted > 10
