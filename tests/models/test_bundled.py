"""The code that makes the bundled pair, except the training itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.errors import ModelFileError

pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train import corpus, prompts, ship
from llama_cpp_eagle3_heads.train.conversations import read_prompts
from llama_cpp_eagle3_heads.train.data import Prompt, Store, Text


class Words:
    """A tokenizer whose tokens are words."""

    @staticmethod
    def encode(text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=text.split())


def test_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginnings are whole lines of training files, within the length limit, in a form that `train -f` takes."""
    train, held = corpus.sources()
    monkeypatch.setattr(corpus, "sources", lambda: (train, held))
    found = prompts.beginnings(Words(), 30)
    assert found == prompts.beginnings(Words(), 30)
    assert len({line["text"] for line in found}) > 25
    texts = "\0".join(source.text for source in train)
    for line in found:
        assert line["text"] in texts
        assert len(line["text"].split()) <= prompts.N_TOKENS_MAX or "\n" not in line["text"]
    path = tmp_path / "prompts.jsonl"
    prompts.write_beginnings(Words(), path, 30)
    assert list(read_prompts(path)) == [line["text"] for line in found]


def test_files_of_the_corpus_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of the tokenizer says neither which file it cannot read, nor which disk is full."""
    path = tmp_path / "tokenizer.json"
    for text in (None, "{", '{"model": "BPE"}'):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json': not readable as a tokenizer"):
            corpus.load_tokenizer(path)

    def save(part: str) -> None:
        Path(part).write_bytes(b"{")
        raise Exception("No space left on device (os error 28)")  # the library raises no other

    few = [corpus.Source("a.py", "a = 1\n")]
    monkeypatch.setattr(corpus, "sources", lambda: (few, few))
    monkeypatch.setattr(corpus, "train_tokenizer", lambda files: SimpleNamespace(save=save))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    work = tmp_path / "work"
    with pytest.raises(OSError, match=f"No space left on device: '{work / 'tokenizer.json'}'"):
        corpus.prepare(work)
    assert list(work.iterdir()) == []
    (work / "corpus.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"corpus\.json': not readable as JSON"):
        corpus.prepare(work)


def test_the_page_of_a_pair(tmp_path: Path) -> None:
    """The page names the command that made the pair and shows the figures that `train` left."""
    work = tmp_path / "draft.gguf.work"
    store = Store(work)
    store.add_prompts([Prompt(0, [1, 2], "file")])
    store.add_text(Text(0, [1, 2, 3, 4, 5], 2, 0.0, "file"))
    np.save(work / "d2t.npy", np.arange(7))
    log = [
        {"step": 100, "loss": 2.0, "seconds": 60, "length": 2.5, "accepted": [0.5, 0.25]},
        {"step": 200, "loss": 3.0, "seconds": 150, "length": 2.0, "accepted": [0.4, 0.2]},
    ]
    settings = {"ttt_steps": 6, "batch": 4, "max_tokens": 256, "n_ctx": 512, "seed": 1}
    (work / "log.json").write_text(json.dumps(log))
    (work / "settings.json").write_text(json.dumps(settings))
    recorded = json.loads((Path(models.__file__).parent / "PROVENANCE.json").read_text())
    for name in ("corpus", "target"):
        (tmp_path / f"{name}.json").write_text(json.dumps(recorded[name]))
    facts = ship.provenance(tmp_path, Path(models.__file__).parent, "A note.")
    page = ship.page(facts)
    assert "1 texts of the GGUF target's own, 3 tokens" in page
    assert "200 steps of 4 texts, 6 draft steps each" in page
    assert "(2.5 minutes)" in page
    assert "mean acceptance length 2.5 simulated" in page
    assert "--draft-vocab 7 --ttt-steps 6 --batch 4 --steps 200" in page
    assert recorded["files"][models.DRAFT_NAME]["sha256"] in page
