"""LoRA adapters that llama.cpp would misread, or not survive, are refused by name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import write_lora
from gguf_raw import ARRAY, F32, STR, U32, RawFile, spoil
from llama_cpp_eagle3 import ModelFileError
from loading import load, take

A, NORM = b"blk.0.attn_output.weight.lora_a", b"blk.0.attn_norm.weight"


def change_tensor(**values: Any) -> Any:
    """Return a change of the first matrix."""

    def change(file: RawFile) -> None:
        tensor = next(t for t in file.tensors if t.name == A)
        for name, value in values.items():
            setattr(tensor, name, value)
        tensor.resize()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_tensor(type=27), "lora_a' has the type i64, of which ggml multiplies no matrices"),
        (change_tensor(type=26), "lora_a' has the type i32"),
        (change_tensor(data=np.full(128, np.nan, np.float32).tobytes()), "lora_a' holds NaN"),
        (change_tensor(dims=[64, 0]), r"lora_a' has the shape \[64, 0, 1, 1\]"),
        (change_tensor(dims=[64, 2, 1, 5]), r"lora_a' has the shape \[64, 2, 1, 5\]"),
        (change_tensor(dims=[64, 3]), "is no LoRA adapter for '.*': lora_a tensor is not transposed"),
        (change_tensor(name=b"blk.0.attn_output.weight.a"), r"expected names that end with .lora_a or .lora_b"),
        (change_tensor(name=b"blk.9.attn_output.weight.lora_a"), r"is no LoRA adapter for '.*': LoRA tensor"),
        (lambda f: f.tensors.clear(), "expected tensors of a LoRA adapter, found none"),
        (lambda f: f.set("general.type", STR, b"model"), "'general.type': expected 'adapter' .*, found 'model'"),
        (lambda f: f.set("adapter.type", STR, b"dora"), "'adapter.type': expected 'lora' .*, found 'dora'"),
        (lambda f: f.set("general.architecture", STR, b"qwen2"), "architecture': expected 'llama' .*, found 'qwen2'"),
        (lambda f: f.set("adapter.lora.alpha", F32, float("nan")), "'adapter.lora.alpha': expected a number"),
        (lambda f: f.set("adapter.lora.alpha", F32, float("inf")), "'adapter.lora.alpha': expected .*, found inf"),
        (lambda f: f.set("adapter.lora.alpha", STR, b"8"), "is no LoRA adapter for .*gguf.cpp"),
        (lambda f: f.set("adapter.alora.invocation_tokens", ARRAY, [1, 2], U32), r"\(aLoRA, .*\), which is not supp"),
    ],
)  # fmt: skip
def test_adapters_that_are_refused(tiny_target: Any, tmp_path: Path, change: Any, words: str) -> None:
    path = spoil(Path(write_lora(tmp_path / "lora.gguf", tiny_target)), change)
    with pytest.raises(ModelFileError, match=words) as info:
        load(tiny_target, lora=[str(path)])
    assert str(info.value).startswith(f"'{path}'")


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers(tiny_target: Any, tmp_path: Path, scale: float) -> None:
    path = write_lora(tmp_path / "lora.gguf", tiny_target)
    with pytest.raises(ValueError, match=r"expected lora to be a list|lora: expected a number of at most 1e9"):
        load(tiny_target, lora=[(path, scale)])


def test_what_is_left_out_is_said(tiny_target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(write_lora(tmp_path / "lora.gguf", tiny_target))
    with closing(load(tiny_target, lora=[str(path)])) as llm:
        expected = take(llm, [1, 2, 3], 20)

    def add(file: RawFile) -> None:
        tensor = file.tensors[0]
        file.tensors.append(type(tensor)(NORM, list(tensor.dims), tensor.type, tensor.data))

    bad = spoil(path, add)
    with closing(load(tiny_target, lora=[str(bad)])) as llm:
        assert take(llm, [1, 2, 3], 20) == expected
    assert f"'{bad}': llama.cpp leaves out 1 tensors: {NORM.decode()}" in caplog.text
