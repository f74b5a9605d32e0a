"""Models that are fetched by name, part by part: checked, resumed, refused by name. Small wheels stand in for them."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama, hub, models
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.errors import HubError, ModelFileError
from llama_cpp_eagle3.models import fetch
from llama_cpp_eagle3.models.table import ModelFile, model_files
from model_index import make_model_file, use_index
from tiny import write_perfect_pair

PIECES = [b"a" * 3000, b"b" * 2000, b"c" * 1000]
WHOLE = b"".join(PIECES)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFile:
    """Return a file in three parts, in an index of its own; the cache folder is empty."""
    found = make_model_file("three", PIECES, tmp_path / "index", "three-part")
    use_index(monkeypatch, tmp_path, found)
    return found


def _left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file())


def test_the_table() -> None:
    """Parts add up to their file, no part comes twice, and bundled files name their licence."""
    files = model_files()
    assert set(files) == {"smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma-3-270m"}
    for file in files.values():
        assert sum(part.bytes for part in file.parts) == file.bytes
        assert len({part.package for part in file.parts}) == len({part.sha256 for part in file.parts})
        assert all(len(digest) == 64 for digest in (file.sha256, *(part.sha256 for part in file.parts)))
        assert all("==" in part.package for part in file.parts)
        assert file.licence
    with pytest.raises(ValueError, match=r"expected one of smollm2-135m, .*found 'other'"):
        models.fetched("other")


def test_parts_are_fetched_once(file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file stays, and then pip is not needed any more."""
    said: list[str] = []
    path = models.fetched("three", said.append)
    assert path.read_bytes() == WHOLE
    assert _left(tmp_path) == ["three.gguf"]
    assert [line.partition(":")[0] for line in said[1:]] == [f"part {i} of 3" for i in (1, 2, 3)]
    monkeypatch.setattr(fetch.sys, "executable", "/no/python")
    assert models.fetched("three") == path


def test_an_interrupted_fetch_goes_on(file: ModelFile, tmp_path: Path) -> None:
    """An interrupted fetch continues with the first missing part: whole parts are not fetched again, a half part is."""
    third, kept = tmp_path / "index" / "three_part3-1.0-py3-none-any.whl", tmp_path / "kept.whl"
    third.rename(kept)
    with pytest.raises(HubError, match=r"three-part3==1\.0.*does not have this package"):
        models.fetched("three")
    (partial,) = (tmp_path / "cache").rglob("*.fetching")
    assert partial.read_bytes() == PIECES[0] + PIECES[1]
    kept.rename(third)
    partial.write_bytes(PIECES[0] + PIECES[1][:70])
    (tmp_path / "index" / "three_part1-1.0-py3-none-any.whl").unlink()
    said: list[str] = []
    assert models.fetched("three", said.append).read_bytes() == WHOLE
    assert [line[:11] for line in said[1:]] == ["part 2 of 3", "part 3 of 3"]
    assert _left(tmp_path) == ["three.gguf"]


def test_a_damaged_part_is_fetched_again(file: ModelFile, tmp_path: Path) -> None:
    """An earlier run's file is checked before it is used."""
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / ".three.gguf.fetching").write_bytes(PIECES[0] + b"x" + PIECES[1][1:] + PIECES[2])
    assert models.fetched("three").read_bytes() == WHOLE


@pytest.mark.parametrize("what", ["part", "whole", "member", "archive"])
def test_another_file(file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A file that differs from the checked one is never used."""
    second = file.parts[1]
    if what == "archive":
        (tmp_path / "index" / "three_part2-1.0-py3-none-any.whl").write_bytes(b"no archive")
        changed = file
    elif what == "whole":
        changed = dataclasses.replace(file, sha256="0" * 64)
    else:
        other = dataclasses.replace(second, **({"sha256": "0" * 64} if what == "part" else {"member": "none"}))
        changed = dataclasses.replace(file, parts=(file.parts[0], other, file.parts[2]))
    use_index(monkeypatch, tmp_path, changed)
    # pip opens an archive itself
    name = {"whole": "'three.gguf' is another file", "archive": "three-part2==1.0"}.get(
        what, "of three-part2==1.0 is an"
    )
    with pytest.raises(HubError, match=name):
        models.fetched("three")
    assert not (tmp_path / "cache" / "models" / "three.gguf").exists()
    (partial,) = (tmp_path / "cache").rglob("*.fetching")
    assert partial.read_bytes() == (b"" if what == "whole" else PIECES[0])


def test_no_room(file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free disk space is checked before anything is fetched: for the missing parts, and the wheel of one."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10**6, 0, 8999))
    monkeypatch.setattr(fetch.subprocess, "run", lambda *args, **more: pytest.fail("something was fetched"))
    with pytest.raises(HubError, match=r"needs 0 MB and its disk has 0 MB free.*LLAMA_CPP_EAGLE3_CACHE"):
        models.fetched("three")
    monkeypatch.undo()
    use_index(monkeypatch, tmp_path, file)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10**6, 0, 9000))
    assert models.fetched("three").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("WARNING: Retrying after connection broken by X\nERROR: No matching distribution found for y", "no network"),
        ("ERROR: Could not find a version\nERROR: No matching distribution found for y", "the index that pip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: something else", "ERROR: something else"),
    ],
)
def test_why(file: ModelFile, monkeypatch: pytest.MonkeyPatch, said: str, meant: str) -> None:
    """The error has pip's last line and its meaning."""

    def run(*args: Any, **more: Any) -> Any:
        return subprocess.CompletedProcess((), 1, None, said.encode())

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(HubError, match=f"three-part1==1.0.*{meant}") as e:
        models.fetched("three")
    assert said.rpartition("\n")[2] in str(e.value)


def test_the_hub_comes_first(file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The makers' file is used where it lies, if it is the same file; else pip fetches, and the log says why."""
    use_index(monkeypatch, tmp_path, dataclasses.replace(file, hub="maker/three"))
    of_hub = tmp_path / "of-hub.gguf"
    monkeypatch.setattr(hub, "fetch_pair", lambda *args, **more: SimpleNamespace(target=of_hub, head=None))
    of_hub.write_bytes(WHOLE)
    assert models.fetched("three") == of_hub
    of_hub.write_bytes(b"x" + WHOLE[1:])
    said: list[str] = []
    assert models.fetched("three", said.append) != of_hub
    assert "maker/three is not used: its three.gguf is another file" in said[0]
    shutil.rmtree(tmp_path / "cache")

    def refuse(*args: Any, **more: Any) -> None:
        raise HubError("it does not answer")

    monkeypatch.setattr(hub, "fetch_pair", refuse)
    said.clear()
    assert models.fetched("three", said.append).read_bytes() == WHOLE
    assert said[0] == "maker/three is not used: it does not answer"


def test_by_name_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """-m and -md take names of the table; a file of that name comes first."""
    pair: tuple[Any, ...] = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    files = [
        make_model_file(name, [Path(model.path).read_bytes()], tmp_path / "index", name)
        for name, model in zip(("one", "two"), pair, strict=True)
    ]
    use_index(monkeypatch, tmp_path, *files)
    command = ["speculative-simple", "-m", "one", "-md", "two", "-p", "Hello", "-n", "8", "-t", "1", "-c", "512"]
    assert main([*command, "--temp", "0"]) == 0
    assert {"one.gguf", "two.gguf"} <= set(_left(tmp_path))
    assert "fetching one (none) with pip" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").write_bytes(b"no model")
    assert main([*command, "--temp", "0"]) == 2
    assert "fetching" not in capsys.readouterr().err


def test_train_takes_a_name(file: ModelFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train -m NAME` fetches the file as the other commands do; this one is no GGUF."""
    pytest.importorskip("torch")
    assert main(["train", "-m", "three", "-o", str(tmp_path / "head.gguf"), "--tokens", "8"]) != 0
    assert re.search(r"three\.gguf': .*GGUF", capsys.readouterr().err)


def test_names_in_the_place_of_files(file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that name comes first; what looks like a name and is none lists those that there are."""
    found = models.resolve("three")
    assert Path(found).read_bytes() == WHOLE
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three").write_bytes(b"mine")
    assert models.resolve("three") == "three"
    for path in ("a/b", "a.gguf", "~/x", ""):
        assert models.resolve(path) == str(Path(path).expanduser()) if path else not models.resolve(path)
    for call in (models.resolve, Eagle3Llama, lambda name: Eagle3Llama("a.gguf", name)):
        with pytest.raises(ModelFileError, match=r"'qwen3': no such file, and no model that is known by name: three"):
            call("qwen3")
    with pytest.raises(ModelFileError, match=r"'file:///a.gguf' is an address: expected a path or a name"):
        models.resolve("file:///a.gguf")
    assert models.resolve("THREE") == found
    # what follows a dot is no ending of a file
    with pytest.raises(ModelFileError, match=r"'three2.5-1b': no such file.*known by name: three"):
        models.resolve("three2.5-1b")
    with pytest.raises(ModelFileError, match=r"Did you mean 'three'\?"):
        models.resolve("thre")


def test_inspect_takes_names(
    file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    known = {"target": target.path, "head": head.path}
    monkeypatch.setattr(models, "names", lambda: list(known))
    monkeypatch.setattr(models, "fetched", lambda name, log: known[name])
    assert main(["inspect", "head", "--target", "target"]) == 0
    out = capsys.readouterr().out
    assert re.search("fits target.gguf +yes", out)
    assert re.search("llama.cpp +(can|cannot) run it", out)
    assert main(["inspect", "heat", "--target", "target"]) == 2
    assert "no model that is known by name: target, head" in capsys.readouterr().err


@pytest.mark.parametrize("verbose", [True, False])
def test_a_fetch_is_told(file: ModelFile, caplog: pytest.LogCaptureFixture, verbose: bool) -> None:
    """It takes minutes, so it is shown without `verbose` too; a file that is there is not spoken of."""
    for told in (True, False):
        caplog.clear()
        with pytest.raises(ModelFileError):  # it is no GGUF
            Eagle3Llama("three", verbose=verbose)
        said = [record for record in caplog.records if record.message.startswith(("fetching", "part"))]
        assert len(said) == 4 * told
        assert {record.levelname for record in said} <= {"INFO" if verbose else "WARNING"}
