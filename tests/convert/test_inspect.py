"""`inspect` answers that files fit if they load, and that they do not if they do not load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arch_keys import keys_of
from checkpoints import FAMILIES, write_family
from dflash import SHAPES, write_dflash
from dflash import random_tensors as block_tensors
from gguf_raw import U32, parse, serialize
from llama_cpp_eagle3 import IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3.files import model_file, trial
from llama_cpp_eagle3.model.pair import check_loadable
from llama_cpp_eagle3_heads.convert import convert, inspect
from loading import load
from random_arch import random_tensors, write_arch, write_random_arch
from tiny import write_head, write_target
from tiny.corrupt import CORRUPTIONS, corrupt


@pytest.fixture(autouse=True)
def with_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Turn on trials in child processes, which other tests switch off."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_file, "try_file", trial.try_file)


def says(path: Path, target: str) -> str:
    """Return yes, no, or an error."""
    try:
        report = inspect(path, target)
    except ModelFileError:
        return "error"
    return "yes" if report.misfit is None else "no"


def loads(path: Path, target: str) -> bool:
    try:
        load(target, path).close()
    except (ModelFileError, IncompatibleDraftError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", [c.name for c in CORRUPTIONS])
def test_corrupt_heads(name: str, tiny_target: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    corrupt(name, path, tiny_target)
    assert (says(path, tiny_target.path) == "yes") == loads(path, tiny_target.path)


@pytest.mark.parametrize("name", ["d2t", "blk.1.ffn_down.weight", "output_norm.weight", "fc.weight"])
def test_block_drafters_that_lack_something(name: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf")
    shape = SHAPES["draft-vocab"]
    tensors = block_tensors(shape)
    path = write_dflash(tmp_path / "block.gguf", shape, tensors)
    assert says(path, target.path) == "yes"
    del tensors[name]
    path = write_dflash(tmp_path / "less.gguf", shape, tensors)
    assert not loads(path, target.path)
    assert says(path, target.path) != "yes"


def test_a_small_model_that_llama_cpp_does_not_load(tmp_path: Path) -> None:
    target = write_random_arch(tmp_path, "llama")
    assert says(target, str(target)) == "yes"
    tensors = random_tensors(target)
    del tensors["output_norm.weight"]
    bad = write_arch(tmp_path / "bad.gguf", "llama", keys_of("llama"), tensors)
    assert not loads(bad, str(target))
    assert says(bad, str(target)) == "error"


def test_a_target_that_is_none(tmp_path: Path) -> None:
    """A head and an embedding model as the target are refused, with a GGUF and with a checkpoint."""
    target = write_target(tmp_path / "target.gguf", n_layer=8)
    family = FAMILIES["angelslim"]
    head = write_head(tmp_path / "own.gguf", target, **family.variant)
    write_family(tmp_path / "head", family, head)
    made = convert(tmp_path / "head", target.path, tmp_path / "head.gguf").path
    assert says(made, target.path) == says(tmp_path / "head", target.path) == "yes"
    raw = parse(Path(target.path).read_bytes())
    raw.set("llama.pooling_type", U32, 1)
    embeds = tmp_path / "embeds.gguf"
    embeds.write_bytes(serialize(raw))
    for path in (made, tmp_path / "head"):
        assert says(path, str(embeds)) == "no"
        assert says(path, head.path) != "yes"
    with pytest.raises(IncompatibleDraftError):
        check_loadable(str(embeds), [str(made)])


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"n_layer": 2}, "2 layers"),
        ({"attention_bias": True}, "biases"),
        ({"qk_norm": True}, "q/k norms"),
        ({"sliding_window": 8}, "sliding window"),
        ({"hidden_act": "gelu"}, "gelu activation"),
        ({"boundaries": (1, 2)}, "2 boundaries"),
    ],
)
def test_who_can_run_a_head(variant: dict[str, Any], words: str, tiny_target: Any, tmp_path: Path) -> None:
    """The report names what llama.cpp cannot run, also if the head has an architecture of llama.cpp."""
    path = tmp_path / "head.gguf"
    write_head(path, tiny_target, dialect="upstream", **variant)
    assert f"cannot run it: {words}" in str(inspect(path, tiny_target.path))


def test_llama_cpp_runs_a_head_with_targets_that_give_hidden_states(tmp_path: Path) -> None:
    """Without the target's file nothing is promised; with it the report says which it is."""
    said = []
    for arch in ("llama", "qwen2"):
        target = write_target(tmp_path / f"{arch}.gguf", arch=arch)
        head = write_head(tmp_path / f"{arch}-head.gguf", target, dialect="upstream")
        assert "can run it with a target whose graph gives hidden states" in str(inspect(head.path))
        said.append(str(inspect(head.path, target.path)))
    assert "can run it\n" in said[0]
    assert "cannot run it with this target: its graph of qwen2 does not give hidden states" in said[1]
