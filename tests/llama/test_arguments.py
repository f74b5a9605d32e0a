"""Type checkers know the constructors' arguments: Llama's from its signature, ours from our options."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.config.eagle3_options import DEFAULTS, OPTIONS, ConstructorOptions, Eagle3LlamaOptions
from llama_cpp_eagle3.config.llama_options import LlamaOptions
from llama_cpp_eagle3.config.option import types_of
from llama_cpp_eagle3.draft.kinds import KINDS, WITHOUT_MODEL, DraftSource

WIDER = {
    "type_k": "a type's name too", "type_v": "a type's name too", "lora_path": "pathlib.Path too",
    "flash_attn": "None: where it is ours",
}  # fmt: skip
REPOSITORY = Path(__file__).parents[2]


def plain(hint: Any) -> Any:
    """Return a type in one spelling: Optional, Union and | as sets."""
    args = frozenset(map(plain, typing.get_args(hint)))
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return args
    return hint if origin is None else (origin, tuple(map(plain, typing.get_args(hint))))


def test_llamas_arguments() -> None:
    """Names and types are those of llama_cpp.Llama's signature."""
    init = typing.get_type_hints(llama_cpp.Llama.__init__)
    theirs = set(inspect.signature(llama_cpp.Llama.__init__).parameters) - {"self", "model_path", "kwargs"}
    ours = typing.get_type_hints(LlamaOptions)
    assert set(ours) == theirs
    for name, hint in ours.items():
        if name in WIDER:
            narrow = plain(init[name])
            assert (narrow if isinstance(narrow, frozenset) else {narrow}) < plain(hint), name
        else:
            assert plain(init[name]) == plain(hint), name


def test_our_arguments() -> None:
    """All have a type and a default, `help` shows them, and from_pretrained takes the constructor's arguments."""
    of_llama = LlamaOptions.__annotations__
    declared = {n: hint for n, hint in types_of(Eagle3LlamaOptions).items() if n not in of_llama}
    assert list(declared) == list(DEFAULTS)
    assert set(ConstructorOptions.__annotations__) == {"draft_model_path", *declared, *of_llama}
    parameters = inspect.signature(Eagle3Llama).parameters
    assert list(parameters) == ["model_path", "draft_model_path", *declared, "llama_options"]
    for name, hint in declared.items():
        assert parameters[name].annotation == hint, name
        assert parameters[name].default == DEFAULTS[name], name  # type: ignore[literal-required]


def test_all_arguments_are_documented() -> None:
    text = Eagle3LlamaOptions.__doc__ or ""
    assert set(re.findall(r"^        (\w+): \S", text, re.MULTILINE)) == set(DEFAULTS)
    assert "](" not in text  # links are only for the pages
    assert all(OPTIONS[name].doc for name in ("draft_model_path", *DEFAULTS))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("n_ctxx", "n_ctx"), ("draft_repo", "draft_repo_id"), ("draft_pmin", "draft_p_min"), ("ofline", "offline")],
)
def test_unknown_arguments_of_from_pretrained(name: str, meant: str) -> None:
    """Unknown arguments are found before files are requested."""
    with pytest.raises(TypeError, match=rf"from_pretrained\(\) got .* '{name}'. Did you mean '{meant}'\?"):
        Eagle3Llama.from_pretrained("nobody/nothing", offline=True, **{name: 1})


GOOD = """
Eagle3Llama("t.gguf", "h.gguf", n_ctx=5, type_k="q8_0", verbose=False)
Eagle3Llama.from_pretrained("u/r", draft_n_max=3, n_ctx=5)
"""
BAD = """
Eagle3Llama("t.gguf", n_ctxx=5)
Eagle3Llama("t.gguf", n_ctx="many")
Eagle3Llama.from_pretrained("u/r", n_ctxx=5)
Eagle3Llama.from_pretrained("u/r", draft_nmax=3)
"""


@pytest.mark.slow
def test_a_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the extra `dev`")
    script = tmp_path / "script.py"
    head = "from llama_cpp_eagle3 import Eagle3Llama\n"

    def check(text: str) -> list[str]:
        script.write_text(head + text)
        command = [sys.executable, "-m", "mypy", "--config-file", REPOSITORY / "pyproject.toml", script]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        return [line.partition(": error: ")[2] for line in done.stdout.splitlines() if ": error: " in line]

    assert check(GOOD) == []
    messages = check(BAD)
    for message, name in zip(messages, ("n_ctxx", "n_ctx", "n_ctxx", "draft_nmax"), strict=True):
        assert f'"{name}"' in message


def test_sources() -> None:
    """Type checkers know the names of the table of drafters, which has each once; llama.cpp's name may be of two."""
    sources = [kind.source for kind in KINDS]
    assert sorted(typing.get_args(DraftSource)) == sorted([*sources, *WITHOUT_MODEL])
    assert len(set(sources)) == len(sources)
