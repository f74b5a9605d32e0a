"""docs/api.md names everything that is public, and says what signatures say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import llama_cpp_eagle3
from llama_cpp_eagle3 import Eagle3Llama, Stats, errors

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", TEXT))))
# what Llama keeps in its objects under these names
OF_LLAMA = {"context_params", "input_ids", "model_params", "n_batch", "n_tokens", "scores", "verbose"}
DEFAULTS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))


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


def test_all_arguments() -> None:
    arguments = set(inspect.signature(Eagle3Llama.__init__).parameters) - {"self", "llama_options"}
    assert arguments - NAMES == set()
    table = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`draft[^|]*) \|", TEXT, re.MULTILINE))))
    assert {name for name in table if name.startswith("draft_t")} - arguments == set()
    for method in ("generate_batch", "from_pretrained"):
        own = set(inspect.signature(getattr(Eagle3Llama, method)).parameters)
        assert own - set(inspect.signature(getattr(llama_cpp.Llama, method, Eagle3Llama.eval)).parameters)


PARAMETERS = [
    (name, p.default)
    for name, p in inspect.signature(Eagle3Llama.__init__).parameters.items()
    if name in DEFAULTS and p.default is not inspect.Parameter.empty
]


@pytest.mark.parametrize(("name", "default"), PARAMETERS)
def test_defaults(name: str, default: Any) -> None:
    said = DEFAULTS[name].strip().strip("`")
    # None stands for what the text says
    assert said == str(default) or default is None


def test_most_defaults_are_compared() -> None:
    assert len(PARAMETERS) >= 14
