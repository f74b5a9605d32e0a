"""`llama-cpp-eagle3 cache`: what is kept is listed, and only that is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_cpp_eagle3.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with two models, one head of two files, costs, and what others put there."""
    path = tmp_path / "cache"
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(path))
    for name, n in (
        ("models/a.gguf", 2_000_000),
        ("models/b.gguf", 1_500_000),
        ("heads/user--repo/f16.gguf", 300_000),
        ("heads/user--repo/config.json", 100_000),
        ("costs/1.json", 10),
        ("other/notes.txt", 5),
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(bytes(n))
    return path


def test_a_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(str(folder))
    assert [line.split()[:3] for line in lines[1:]] == [
        ["2.0", "MB", "models/a.gguf"],
        ["1.5", "MB", "models/b.gguf"],
        ["0.4", "MB", "heads/user--repo"],
        ["0.0", "MB", "costs"],
        ["3.9", "MB", "in"],
    ]
    assert "used today" in lines[1]


def test_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "none"))
    assert main(["cache"]) == 0
    assert "0.0 MB in all" in capsys.readouterr().out
    assert main(["cache", "--remove", "all"]) == 0
    assert main(["cache", "--remove", "models"]) == 0
    assert "removed nothing" in capsys.readouterr().out


def test_one_file_goes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--remove", "models/a.gguf", "--remove", "heads"]) == 0
    assert capsys.readouterr().out == "removed models/a.gguf, heads/user--repo: 2.4 MB\n"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "costs/1.json",
        "models/b.gguf",
        "other/notes.txt",
    ]


def test_all_goes_but_what_others_put_there(folder: Path) -> None:
    assert main(["cache", "--remove", "all"]) == 0
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["other", "models/..", "../cache", "models/c.gguf", "", "/"])
def test_a_name_that_is_not_listed(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["cache", "--remove", "models/a.gguf", "--remove", name]) == 2
    assert f"found {name!r}" in capsys.readouterr().err
    assert (folder / "models/a.gguf").is_file()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """A link in the folder goes, what it points to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.gguf").write_bytes(b"kept")
    (folder / "models" / "link").symlink_to(outside)
    (folder / "drafters").symlink_to(outside)
    assert main(["cache", "--remove", "models", "--remove", "drafters"]) == 0
    assert (outside / "model.gguf").read_bytes() == b"kept"
    assert not (folder / "drafters").exists()
