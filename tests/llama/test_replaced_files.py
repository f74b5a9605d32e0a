"""A file that is replaced while it is loaded: nothing is kept under the name of bytes that were not loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adapters import write_lora
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3.media import projector
from llama_cpp_eagle3.model import loaded
from loading import load, take
from serving import Running
from tiny import write_target
from vlm_pairs import load_vlm

PROMPT = [40 + 7 * i * i % 90 for i in range(60)]


@pytest.fixture
def replace_while_loading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], None]:
    """Return a function that lets a file take another's place after it was read, before it is identified."""

    def begin(path: Path, other: Path) -> None:
        real = loaded.once_fingerprinted

        def once(paths: Any, function: Any) -> Any:
            if other.exists() and str(path) in paths:
                os.replace(other, path)
            return real(paths, function)

        monkeypatch.setattr(loaded, "once_fingerprinted", once)
        monkeypatch.setattr(projector, "once_fingerprinted", once)

    return begin


def texts_of(llm: Eagle3Llama) -> tuple[list[int], int]:
    with closing(llm):
        found = take(llm, PROMPT, 12)
        return found, llm.prefix_stats.n_prefix_files


@pytest.mark.parametrize("what", ["target", "adapter"])
def test_prefixes(tmp_path: Path, replace_while_loading: Callable[[Path, Path], None], caplog: Any, what: str) -> None:
    target = tmp_path / "target.gguf"
    shape = write_target(target)
    if what == "target":
        path, other = target, tmp_path / "other.gguf"
        write_target(other, seed=1)
        options: dict[str, Any] = {}
    else:
        path, other = tmp_path / "lora.gguf", tmp_path / "other.gguf"
        write_lora(path, shape)
        write_lora(other, shape, scale=16.0)
        options = {"lora": [(str(path), 1.0)]}
    replace_while_loading(path, other)
    folder = tmp_path / "prefixes"
    first, n_files = texts_of(load(target, **options, prefix_cache_dir=folder))
    assert not list(folder.glob("*.prefix"))
    assert n_files == 0
    assert f"'{path}' was replaced or changed while it was loaded" in caplog.text
    expected, _ = texts_of(load(target, **options))
    assert expected != first
    assert texts_of(load(target, **options, prefix_cache_dir=folder))[0] == expected


def test_slots(tmp_path: Path, replace_while_loading: Callable[[Path, Path], None]) -> None:
    path, other = tmp_path / "target.gguf", tmp_path / "other.gguf"
    write_target(path)
    write_target(other, seed=1)
    replace_while_loading(path, other)
    with Running(path, options={"slot_save_path": tmp_path}) as running:
        running.ask("/completion", {"prompt": PROMPT, "n_predict": 4, "id_slot": 0})
        response = running.post("/slots/0?action=save", {"filename": "x"})
        assert response.status_code == 500
        assert f"'{path}' was replaced or changed while it was loaded" in response.json()["error"]["message"]
        assert not (tmp_path / "x").exists()
        assert running.client.get("/health").status_code == 200


def test_images(tmp_path: Path, replace_while_loading: Callable[[Path, Path], None], caplog: Any) -> None:
    """The rows of an image are those of the projector that was loaded: this process alone finds them again."""
    vlm = load_vlm("pixtral")
    path, other = tmp_path / "mmproj.gguf", tmp_path / "other.gguf"
    for file in (path, other):
        shutil.copyfile(vlm.mmproj, file)
    replace_while_loading(path, other)
    found = []
    for _ in range(2):
        with closing(load(vlm.path, mmproj_path=str(path), n_ctx=1024)) as llm:
            vision = llm.projector
            marker = vision.marker
            found += [vision.prompt(f"a{marker}b", [vlm.file]).tokens for _ in range(2)]
    assert f"'{path}' was replaced or changed while it was loaded" in caplog.text
    assert found[0] == found[1] != found[2] == found[3]


def test_nothing_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "target.gguf"
    write_target(path)
    with closing(load(path)) as llm:
        assert llm.loaded.maker.target
        os.utime(path)  # afterwards
        assert llm.loaded.maker.target
    with closing(load(path)) as llm:
        stamps = llm.loaded.plan.stamps
        stamps.check()
        os.truncate(path, 100)
        with pytest.raises(ModelFileError, match="was replaced or changed"):
            stamps.check()
