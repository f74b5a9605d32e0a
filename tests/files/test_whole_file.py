"""Outputs are regular files or new ones; links are followed, the umask is kept, and an input is never overwritten."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_cpp_eagle3.files.whole_file import naming, output_path, whole_file


def put(path: Path, text: str, **options: int) -> None:
    with whole_file(path, **options) as part:
        part.write_text(text)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000], ids=oct)
def test_mode_is_that_of_a_file_that_python_opens(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        put(tmp_path / "ours", "x")
        (tmp_path / "pythons").write_text("x")
        put(tmp_path / "private", "x", mode=0o600)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "ours") == mode_of(tmp_path / "pythons")
    assert mode_of(tmp_path / "private") == 0o600


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    put(path, "new")
    assert (path.read_text(), mode_of(path)) == ("new", 0o640)
    put(path, "secret", mode=0o600)
    assert mode_of(path) == 0o600


@pytest.mark.parametrize("is_there", [True, False])
def test_links_are_followed(tmp_path: Path, is_there: bool) -> None:
    """Links to another folder, over two links, and to a file that does not exist yet are followed too."""
    (tmp_path / "store").mkdir()
    real = tmp_path / "store" / "real"
    if is_there:
        real.write_text("old")
    (tmp_path / "middle").symlink_to(real)
    (tmp_path / "link").symlink_to("middle")
    put(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "middle").is_symlink()
    assert real.read_text() == "new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["link", "middle", "real", "store"]


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path, match in (
        (tmp_path / "fifo", "no regular file"),
        (tmp_path / "link", "no regular file"),
        (Path("/dev/null"), "no regular file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "loop", "symbolic links"),
    ):
        with pytest.raises(OSError, match=match) as e:
            put(path, "x")
        assert str(path) in str(e.value)
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "link", "loop"]


def test_never_an_input(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("dear")
    (tmp_path / "link").symlink_to("in")
    os.link(source, tmp_path / "hard")
    for name in ("in", "link", "hard"):
        with pytest.raises(OSError, match="it is the input"), whole_file(tmp_path / name, tmp_path / "nothing", source):
            pytest.fail("must not begin")
        with pytest.raises(OSError, match="it is the input"):
            output_path(tmp_path / name, source)
    assert source.read_text() == "dear"
    assert output_path(tmp_path / "new", source) == (tmp_path / "new").resolve()


def test_long_names(tmp_path: Path) -> None:
    for name in ("x" * 255, "ä" * 127, "😀" * 63):
        put(tmp_path / name, "new")
        assert (tmp_path / name).read_text() == "new"


FULL = {
    "python": OSError(errno.ENOSPC, "No space left on device"),
    "numpy": OSError("1000 requested and 0 written"),
    "torch": RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
}


@pytest.mark.parametrize("library", FULL)
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """The error has the name that the file was to get, whoever writes it; nothing of it stays."""
    path = tmp_path / "out.gguf"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(OSError, match=rf"No space left on device: '.*{path.name}'") as e, whole_file(path):
        raise FULL[library]
    assert (e.value.errno, e.value.filename) == (errno.ENOSPC, str(path))
    assert list(tmp_path.iterdir()) == []


WRITERS = {
    "safetensors": "import safetensors.numpy as s; s.save_file({'a': np.zeros(100000, np.float32)}, part)",
    "torch": "import torch; torch.save({'a': torch.zeros(100000)}, part)",
    "NumPy": "np.zeros(100000).tofile(part)",
    "text": "part.write_text('x' * 300000)",
    "error": "part.write_text('x' * 200000); raise ValueError('it failed')",
}


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limits")
@pytest.mark.parametrize("library", WRITERS)
def test_a_limit_for_files_is_named(tmp_path: Path, library: str) -> None:
    """Whoever writes it: libraries have errors of their own, which do not name the file, and may not say why."""
    code = f"""
import resource, signal, sys
import numpy as np
from pathlib import Path
from llama_cpp_eagle3.files.whole_file import whole_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
try:
    with whole_file(Path(sys.argv[1])) as part:
        {WRITERS[library]}
except OSError as e:
    print(e.errno, e.filename)
"""
    path = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == f"{errno.EFBIG} {path}\n", done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError("library's"), RuntimeError("failed"), ConnectionResetError(104, "reset")])
def test_other_errors_stay_as_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as e, whole_file(tmp_path / "out"):
        raise error
    assert e.value is error
    assert getattr(e.value, "filename", None) is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_file_that_grows_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), naming("/dev/full"):
        Path("/dev/full").write_bytes(b"x")
