"""`--learn`: what is kept of texts, for whom, and what is left out."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joint import write_head_of
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.draft.learn import Folder, Texts, heads
from llama_cpp_eagle3.draft.learn.heads import HEAD, Heads
from llama_cpp_eagle3.engine.keeping import half
from llama_cpp_eagle3.errors import Eagle3Error
from loading import load
from serving import Running
from small import write_small_pair
from tiny import write_head, write_target

LONG = [1, 5, 6, 7, 8] * 4


def texts_of(folder: Path) -> dict[int, list[int]]:
    """Return the tokens of all kept texts."""
    texts = Texts(Folder(folder))
    return {entry.id: texts.tokens(entry) for entry in texts}


def test_rows_are_those_of_a_pass(pair: Any, tmp_path: Path) -> None:
    """Each token of a conversation is kept once, with the hidden states that a pass over the whole text gives."""
    kept = tmp_path / "kept"
    with closing(load(*pair, learn_dir=kept, n_parallel=2)) as llm:
        options: Any = {"max_tokens": 20, "temperature": 0, "progress": False}
        first, other = llm.generate_batch([LONG, [1, 9, 8]], **options)
        again = LONG + first.tokens + [4, 4, 5]
        (second,) = llm.generate_batch([again], **options)
        paced = [token for token, _ in zip(llm.generate([1, 3, 3, 3], temp=0), range(15), strict=False)]
        plain = llm.create_completion([1, 7, 7], max_tokens=12, temperature=0, echo=False)
    found = Texts(Folder(kept))
    tokens = [found.tokens(entry) for entry in found]
    asked = [LONG + first.tokens, [1, 9, 8, *other.tokens], again + second.tokens, [1, 3, 3, 3, *paced]]
    assert sorted(tokens[:3]) == sorted(asked[:3])
    assert tokens[3] == asked[3]
    assert tokens[4][:3] == [1, 7, 7]
    assert plain["usage"]["completion_tokens"] == 12
    by_tokens = {tuple(found.tokens(entry)): entry for entry in found}
    ancestor, heir = by_tokens[tuple(asked[0])], by_tokens[tuple(asked[2])]
    assert (heir.parent, heir.root, heir.n_shared) == (ancestor.id, ancestor.root, len(asked[0]))
    assert len(heir.own) == 23
    assert len(found.conversations()) == 4
    with closing(load(*pair, logits_all=True, n_batch=512)) as llm:
        for entry in found:
            llm.reset()
            llm.eval(found.tokens(entry))
            first_row, rows = found.rows(entry, 512)
            assert first_row == 0
            assert len(rows) >= len(found.tokens(entry)) - 1
            np.testing.assert_array_equal(rows, half(np.asarray(llm.features))[: len(rows)])
    for path in (kept, kept / "rows"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in kept.rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_requests_leave_out(pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`store: false`, the header and short answers are left out; the first line says what is kept and how to forget."""
    caplog.set_level(logging.INFO)
    kept = tmp_path / "kept"
    with Running(*pair, learn_dir=kept) as running:
        body = {"max_tokens": 12, "temperature": 0}
        running.ask("/v1/completions", {**body, "prompt": "one", "store": False})
        for value in ("no", "off"):
            assert running.post("/v1/completions", {**body, "prompt": "two"}, headers={"X-Learn": value}).is_success
        running.ask("/v1/completions", {**body, "prompt": "three", "max_tokens": 5})
        running.ask("/v1/completions", {**body, "prompt": "four", "store": True})
        running.ask("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "five"}]})
        shown = running.client.get("/props").json()["learn"]
        assert shown["folder"] == str(kept)
        assert shown["head"] == 0
        assert "llamacpp:learn_texts " in running.client.get("/metrics").text
        vocab = running.server.tokenizer
        four = vocab.tokenize("four", True)
    tokens = list(texts_of(kept).values())
    assert len(tokens) == 2
    assert tokens[0][: len(four)] == four
    said = [r.getMessage() for r in caplog.records]
    (first,) = [text for text in said if text.startswith("--learn: prompts")]
    for part in (str(kept), "of at most 4096.0 (--learn-max-size)", "X-Learn", f"learn '{kept}' --forget"):
        assert part in first
    assert f"2 answers were kept in '{kept / 'texts.jsonl'}'" in said


def test_killed_at_any_byte(pair: Any, tmp_path: Path) -> None:
    """Whatever was written last is cut off: the texts before it are there, and keeping goes on."""
    kept, cut = tmp_path / "kept", tmp_path / "cut"
    with closing(load(*pair, learn_dir=kept)) as llm:
        llm.generate_batch([LONG, [1, 9]], max_tokens=10, temperature=0, progress=False)
    data, whole = (kept / "texts.jsonl").read_bytes(), texts_of(kept)
    end = data.index(b"\n") + 1
    shutil.copytree(kept, cut)
    for n in range(end, len(data)):
        (cut / "texts.jsonl").write_bytes(data[:n])
        assert texts_of(cut) == {0: whole[0]}
    (cut / "heads.json").write_text('{"heads": [')
    for path in (cut / "rows").iterdir():
        path.write_bytes(path.read_bytes()[:-50])
    with closing(load(*pair, learn_dir=cut)) as llm:
        llm.generate_batch([[1, 8, 8]], max_tokens=10, temperature=0, progress=False)
    found = Texts(Folder(cut))
    assert [entry.id for entry in found] == [0, 1]
    assert len(found.rows(found.by_id[0], 512)[1]) == 0
    assert len(found.rows(found.by_id[1], 512)[1]) > 10


def test_another_model_is_refused(pair: Any, tmp_path: Path) -> None:
    """A folder of another target, of other layers, or with other files, is refused by name."""
    kept, options = tmp_path / "kept", {"n_ctx": 64}
    with closing(load(*pair, learn_dir=kept, **options)):
        pass
    target = write_target(tmp_path / "other.gguf", n_layer=7)
    with pytest.raises(Eagle3Error, match=r"is of another target: .*other\.gguf.*Name another folder"):
        load(target, learn_dir=kept, **options)
    head = write_head(tmp_path / "head.gguf", target)
    kept = tmp_path / "layers"
    with closing(load(target, head, learn_dir=kept, **options)):
        pass
    with pytest.raises(Eagle3Error, match="a head that reads other layers"):
        load(target, head, learn_dir=kept, draft_target_layers=[2, 4, 6], **options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(Eagle3Error, match="holds other files"):
        load(*pair, learn_dir=tmp_path / "mine", **options)
    with pytest.raises(Eagle3Error, match="holds other files"):
        main_forget(tmp_path / "mine")


def main_forget(folder: Path) -> int:
    """Run `learn DIR --forget` without the command's own handling of errors."""
    from llama_cpp_eagle3.draft.learn import forget

    return forget(folder)


def test_two_processes(pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    """The second one keeps nothing, and says so; nobody forgets what is used."""
    kept = tmp_path / "kept"
    options: Any = {"max_tokens": 10, "temperature": 0, "progress": False}
    with closing(load(*pair, learn_dir=kept)) as a, closing(load(*pair, learn_dir=kept)) as b:
        assert b.keeper is None
        assert "another process keeps texts" in caplog.text
        for llm in (a, b):
            llm.generate_batch([[1, 5]], **options)
        assert main(["learn", str(kept), "--forget"]) == 2
    assert len(texts_of(kept)) == 1
    assert main(["learn", str(kept)]) == 0
    assert "1 texts of 1 conversations, 10 tokens of answers" in capsys.readouterr().out
    assert main(["learn", str(kept), "--forget"]) == 0
    assert not kept.exists()
    assert main(["learn", str(kept)]) == 2
    assert "no folder of --learn" in capsys.readouterr().err


def test_the_limit(pair: Any, tmp_path: Path) -> None:
    """Rows of old texts go, some of the older half at a time; texts stay, and the newest rows do."""
    kept = tmp_path / "kept"
    with closing(load(*pair, learn_dir=kept, learn_max_bytes=80_000, n_parallel=2)) as llm:
        for i in range(20):
            llm.generate_batch([[1, 5 + i]], max_tokens=30, temperature=0, progress=False)
    found = Texts(Folder(kept))
    assert len(found) == 20 or (kept / "texts.jsonl").stat().st_size <= 80_000 // 16
    n_rows = [len(found.rows(entry, 512)[1]) for entry in found]
    assert n_rows[-1] > 0
    assert 0 in n_rows
    assert sum(path.stat().st_size for path in kept.rglob("*")) < 100_000


def test_answers_are_drafted_by_the_next_process(pair: Any, tmp_path: Path) -> None:
    """What was answered is in the n-gram store from the start on."""
    target, _ = pair
    with closing(load(target, learn_dir=tmp_path / "kept", draft_sources=("ngram",))) as llm:
        (answer,) = llm.generate_batch([[1, 5]], max_tokens=30, temperature=0, progress=False)
        assert llm.keeper is not None
    with closing(load(target, learn_dir=tmp_path / "kept", draft_sources=("ngram",))) as llm:
        assert llm.keeper is not None
        assert len(llm.keeper.ngrams()) >= 30
        drafter = llm.engine.drafting.ngram
        assert drafter is not None
        drafter.update([1, 9, *answer.tokens[:6]])
        assert [node[1] for node in drafter.propose(4, 4)] == answer.tokens[6:10]


def test_rows_of_tokens_that_were_taken_back(pair: Any, tmp_path: Path) -> None:
    """After going back, rows are those of the tokens that came instead."""
    target, head = pair
    with closing(load(target, head, learn_dir=tmp_path / "kept", logits_all=True)) as llm:
        llm.eval([1, 9, 9, 9, 9, 9, 9, 9])
        llm.n_tokens = 3
        for _ in zip(llm.generate([1, 9, 9, 5, 6, 7], temp=0), range(12), strict=False):
            pass
    found = Texts(Folder(tmp_path / "kept"))
    (entry,) = found
    first, rows = found.rows(entry, 512)
    with closing(load(target, head, logits_all=True, n_batch=512)) as llm:
        llm.eval(found.tokens(entry))
        np.testing.assert_array_equal(rows, half(np.asarray(llm.features))[first : first + len(rows)])
        assert len(rows) > 12


def test_a_process_that_is_killed(pair: Any, tmp_path: Path) -> None:
    """A process that ends in the middle leaves a folder that the next one takes."""
    target, head = pair
    program = f"""
import os, sys, time
sys.path[:0] = {sys.path!r}
from joint import write_head_of
from loading import load
llm = load({target.path!r}, {head.path!r}, learn_dir={str(tmp_path / "kept")!r})
llm.generate_batch([[1, 5]], max_tokens=10, temperature=0, progress=False)
while llm.keeper.n_written < 1:
    time.sleep(0.01)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=100, check=False).returncode == 9
    with closing(load(*pair, learn_dir=tmp_path / "kept")) as llm:
        assert llm.keeper is not None
        assert len(llm.keeper.texts) == 1


def test_a_full_disk(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What is known of heads cannot be written: the log says it once, and text and end are as ever."""

    def write_json(path: Path, value: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(load(*pair)) as llm:
        expected = llm.generate_batch([LONG], max_tokens=20, temperature=0, progress=False)[0].tokens
    with closing(load(*pair, learn_dir=tmp_path / "kept")) as llm:
        monkeypatch.setattr(heads, "write_json", write_json)
        found = llm.generate_batch([LONG], max_tokens=20, temperature=0, progress=False)[0].tokens
        llm.close()
    assert found == expected
    told = f"'{tmp_path / 'kept' / 'heads.json'}': {os.strerror(errno.ENOSPC)}"
    assert caplog.text.count(told) == 1
    with closing(load(*pair, learn_dir=tmp_path / "kept")) as llm:  # nobody else holds the folder
        assert llm.keeper is not None


def test_a_learned_head_drafts_beside_a_small_model(tmp_path: Path) -> None:
    """It takes the place of a head that is given, and no other drafter's."""
    target, small = write_small_pair(tmp_path)
    head, kept = write_head_of(target, tmp_path / "head.gguf"), tmp_path / "kept"
    with closing(load(target, small, learn_dir=kept)) as llm:
        assert llm.draft_sources == ("simple", "ngram", "grammar")
    assert Folder(kept).about()["head"] is None
    found = Heads(Folder(kept))
    found.folder.round.mkdir()
    shutil.copy(head, found.folder.round / HEAD)
    figures = {"n_texts": 1, "n_answer": 1, "before": 1.0, "after": 2.0, "error": 0.1, "gate": []}
    found.take_in({"state": "used", "why": "", "until": 0, **figures})
    for given, sources in (([small], ("eagle3", "simple")), ([small, head], ("simple", "eagle3"))):
        with closing(load(target, small, draft_model_path=given, learn_dir=kept)) as llm:
            assert llm.draft_sources == (*sources, "ngram", "grammar")
            paths = {file.source: file.path for file in llm.loaded.plan.drafts}
            assert paths == {"eagle3": str(kept / "heads" / "0001.gguf"), "simple": small}
