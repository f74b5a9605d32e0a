"""docs/api.md names all public names, and agrees with signatures."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import llama_cpp

import llama_cpp_eagle3
import options
from llama_cpp_eagle3 import Eagle3Llama, Stats, errors

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", TEXT))))
# attributes that Llama keeps in its objects under these names
OF_LLAMA = {"context_params", "input_ids", "model_params", "n_batch", "n_tokens", "scores", "verbose"}


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_all_names() -> None:
    ours = [cls for cls in Eagle3Llama.__mro__ if cls.__module__.startswith("llama_cpp_eagle3.")]
    own = set().union(*map(public, ours)) - set(dir(llama_cpp.Llama)) - OF_LLAMA
    assert {"engine", "policy", "calibrate"} <= own
    assert own - NAMES == set()
    hidden = {name for name in public(Stats) if name.endswith("_ns")}
    assert public(Stats) - NAMES - hidden - {"begin_draft", "judge"} == set()
    assert {name for name, value in vars(errors).items() if inspect.isclass(value)} - NAMES == set()
    assert set(llama_cpp_eagle3.__all__) - NAMES == {"LLAMA_CPP_PYTHON_VERSION", "__version__"}


def test_arguments_of_methods() -> None:
    for method in ("generate_batch", "from_pretrained"):
        own = set(inspect.signature(getattr(Eagle3Llama, method)).parameters)
        assert own - set(inspect.signature(getattr(llama_cpp.Llama, method, Eagle3Llama.eval)).parameters)


def test_arguments_are_current() -> None:
    assert options.document(TEXT) == TEXT, "run python tools/options.py"
    rows = options.table().splitlines()[2:-1]
    ours = set(inspect.signature(Eagle3Llama.__init__).parameters) - {"self", "llama_options"}
    assert ours <= {row.split("`")[1] for row in rows}
    assert all(len(row.replace("\\|", "").split("|")) == 5 for row in rows)
