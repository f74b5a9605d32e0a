"""Commands whose extra is not installed name it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from llama_cpp_eagle3 import __version__, extras
from llama_cpp_eagle3.extras import HEADS, MODELS, install_command

MODULES = ("starlette", "uvicorn", "pydantic", "httptools")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *(("serve", names) for names in (MODULES, *((name,) for name in MODULES[:3]))),
        *(("batch", names) for names in (MODULES, ("pydantic",))),  # batch needs no HTTP server
    ],
)
def test_serve(command: str, missing: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hello\n")
    more = ["in.txt", "-o", "out.jsonl"] if command == "batch" else []
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
        f"from llama_cpp_eagle3.cli import main\nsys.exit(main({[command, *more]}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert f"is missing: {install_command('serve')}\n" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'llama-cpp-eagle3[serve,hub]'"),
        ({"url": "{folder}", "dir_info": {}}, "pip install '{path}[serve,hub]'"),
        ({"url": "{folder}", "dir_info": {"editable": True}}, "pip install --editable '{path}[serve,hub]'"),
        ({"url": "file:///is/gone", "dir_info": {}}, "pip install 'llama-cpp-eagle3[serve,hub]'"),
        (
            {"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "12"}},
            "pip install 'llama-cpp-eagle3[serve,hub] @ git+https://host/a.git'",
        ),
        (
            {"url": "file:///a/b.whl", "archive_info": {}},
            "pip install 'llama-cpp-eagle3[serve,hub] @ file:///a/b.whl'",
        ),
    ],
    ids=["index", "clone", "editable", "gone", "git", "wheel"],
)
def test_the_command_installs_from_where_it_was_installed(
    request: pytest.FixtureRequest,
    origin: dict | None,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin).replace("{folder}", clone.as_uri())

    monkeypatch.setattr(extras, "distribution", lambda name: Installed())
    assert install_command("serve", "hub") == command.replace("{path}", str(clone))
    for folder in ("heads", "models"):
        (clone / folder).mkdir()
        (clone / folder / "pyproject.toml").touch()
    name = "llama-cpp-eagle3-heads"
    of_heads = {"git": f"'{name}[train] @ git+https://host/a.git#subdirectory=heads'"}.get(
        request.node.callspec.id,
        f"'{name}[train]'" if "{path}" not in command else f"'{clone}/heads[train]'",
    )
    start = "pip install --editable " if "--editable" in command else "pip install "
    assert install_command("train", of=HEADS) == start + of_heads
    of_models = of_heads.replace("heads", "models").replace("[train]", "")
    assert install_command(of=MODELS) == start + of_models


@pytest.mark.parametrize("command", ["convert", "inspect", "quantize", "train"])
def test_commands_that_make_heads(command: str) -> None:
    """Without the package that has these commands, their `--help` works too."""
    code = (
        "import sys\nsys.modules['llama_cpp_eagle3_heads'] = None\n"
        f"from llama_cpp_eagle3.cli import main\nsys.exit(main([{command!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    needs = f"`{command}` needs the package llama-cpp-eagle3-heads: {install_command(of=HEADS)}"
    assert line == f"llama-cpp-eagle3: error: {needs}"


def test_a_module_that_the_package_of_heads_needs() -> None:
    code = (
        "import sys\nsys.modules['gguf'] = None\n"
        "from llama_cpp_eagle3.cli import main\nsys.exit(main(['quantize', 'a', 'b', 'Q8_0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    needs = f"`quantize` needs gguf, which is missing: {install_command(of=HEADS)}"
    assert done.stderr == f"llama-cpp-eagle3: error: {needs}\n"


def test_all_packages_have_one_version() -> None:
    of_heads = distribution(HEADS)
    assert of_heads.version == distribution(MODELS).version == __version__
    assert f"llama-cpp-eagle3=={__version__}" in (of_heads.requires or [])


def test_the_command_of_a_folder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone without an installed copy, the command to install an extra names the folder."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert install_command("hub") == f"pip install '{Path(extras.__file__).parent.parent}[hub]'"
