"""Small models whose weights are converted for drafting: the same bits as gguf-py's, once, within a folder's limit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from arch_keys import keys_of
from llama_cpp_eagle3 import ModelFileError
from llama_cpp_eagle3._core import read_weights
from llama_cpp_eagle3.draft import requantize
from llama_cpp_eagle3.draft.requantize import with_type
from llama_cpp_eagle3.ggml_types import WEIGHT_TYPES
from llama_cpp_eagle3_heads.convert.gguf_file import key_values
from loading import load, load_plain, prompts, take
from random_arch import random_tensors, write_arch, write_random_arch
from small import write_small_pair

CHAIN = {"draft": "chain", "draft_n_max": 4}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let tiny files be worth a copy; return the folder of copies."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(requantize, "_N_BYTES_MIN", 0)
    return tmp_path / "cache" / "drafters"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("requantize")


@pytest.fixture(scope="module")
def f32(folder: Path) -> str:
    return str(
        write_arch(folder / "f32.gguf", "llama", keys_of("llama"), random_tensors(write_random_arch(folder, "llama")))
    )


def convert(path: str | Path, asked: int | None = None, *, on_cpu: bool = True) -> tuple[str, list[str]]:
    log: list[str] = []
    return with_type(str(path), asked, on_cpu, 1, log.append), log


def matrices(path: str | Path) -> dict[str, Any]:
    return {t.name: t for t in gguf.GGUFReader(path).tensors if len(t.shape) > 1}


def test_the_bits_are_those_of_gguf_py(f32: str, cache: Path) -> None:
    copy, log = convert(f32)
    assert Path(copy).parent == cache
    assert "to Q4_0 for drafting, once" in log[0]
    assert 'draft_type="f32"' in log[0]
    before, after = matrices(f32), matrices(copy)
    assert before.keys() == after.keys()
    assert any(t.tensor_type == Type.Q4_0 for t in after.values())
    for name, tensor in after.items():
        if tensor.tensor_type == Type.Q4_0:
            expected = quantize(dequantize(before[name].data, before[name].tensor_type), Type.Q4_0)
            assert np.array_equal(tensor.data, expected), name


def test_a_copy_is_made_once(f32: str) -> None:
    """The copy keeps its times, or each start would read all of it for its digest; its header's file tells the use."""
    copy, log = convert(f32)
    assert log
    header = Path(copy).with_suffix(".header")
    before, modified = os.stat(copy), os.stat(header).st_mtime_ns
    os.utime(header, (0, 0))
    again, log = convert(f32)
    assert (again, log) == (copy, [])
    after = os.stat(copy)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert os.stat(header).st_mtime_ns >= modified


@pytest.mark.parametrize("n_bytes", [0, 100, -1])
def test_a_damaged_copy_is_made_again(f32: str, n_bytes: int) -> None:
    copy, _ = convert(f32)
    expected = Path(copy).read_bytes()
    os.truncate(copy, n_bytes if n_bytes >= 0 else len(expected) // 2)
    again, log = convert(f32)
    assert again == copy
    assert log[0] == f"'{copy}' is damaged: it is made again"
    assert Path(copy).read_bytes() == expected


def test_a_copy_with_a_damaged_key_is_made_again(f32: str) -> None:
    copy, _ = convert(f32)
    expected = Path(copy).read_bytes()
    at = expected.index(b"llama.context_length")
    Path(copy).write_bytes(expected[:at] + b"x" + expected[at + 1 :])
    again, log = convert(f32)
    assert (again, log[0]) == (copy, f"'{copy}' is damaged: it is made again")
    assert Path(copy).read_bytes() == expected
    assert convert(f32) == (copy, [])


def test_another_file_of_the_same_name_has_another_copy(f32: str, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    shutil.copy(f32, path)
    first, _ = convert(path)
    tensors = random_tensors(write_random_arch(tmp_path, "llama"))
    write_arch(path, "llama", keys_of("llama"), {name: 2.0 * values for name, values in tensors.items()})
    second, log = convert(path)
    assert first != second
    assert log


@pytest.mark.parametrize("name", [name for name in WEIGHT_TYPES if name not in ("f32", "q6_k", "q5_k", "q4_k")])
def test_a_type_that_is_asked_for(f32: str, name: str) -> None:
    copy, _ = convert(f32, WEIGHT_TYPES[name])
    assert {t.tensor_type for t in matrices(copy).values()} >= {Type[name.upper()]}


def test_what_stays_as_it_is(f32: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by F32, already narrow enough, or too small for its weights to matter."""
    assert convert(f32, WEIGHT_TYPES["f32"]) == (f32, [])
    copy, _ = convert(f32)
    assert convert(copy) == (copy, [])
    assert convert(copy, WEIGHT_TYPES["q8_0"]) == (copy, [])
    monkeypatch.setattr(requantize, "_N_BYTES_MIN", 16 << 20)
    assert convert(f32) == (f32, [])
    assert {path.stem for path in cache.iterdir()} == {Path(copy).stem}


def test_other_devices_read_types_at_their_bytes(f32: str) -> None:
    """Q5_0 has 5.5 bits, which a GPU gains from; Q4_1 has 5, for which a CPU's kernels alone are faster."""
    for name, gains in (("q5_0", True), ("q4_1", False)):
        path, _ = convert(f32, WEIGHT_TYPES[name])
        assert (convert(path, on_cpu=False)[0] != path) == gains
        assert convert(path)[0] != path


def test_narrower_weights_are_kept(f32: str, tmp_path: Path) -> None:
    """Of a file with several types those with fewer bits stay, bit for bit."""
    narrow = matrices(convert(f32)[0])
    mixed = write_mixed(f32, tmp_path / "mixed.gguf", {name: t for name, t in narrow.items() if ".ffn_up." in name})
    copy, _ = convert(mixed, WEIGHT_TYPES["q8_0"])
    after = matrices(copy)
    assert {t.tensor_type for name, t in after.items() if ".ffn_up." in name} == {Type.Q4_0}
    assert {t.tensor_type for name, t in after.items() if ".ffn_down." in name} == {Type.Q8_0}
    for name in (name for name in after if ".ffn_up." in name):
        assert np.array_equal(after[name].data, narrow[name].data)


def write_mixed(path: str, output: Path, others: dict[str, Any]) -> Path:
    """Write a file again with some tensors of another file."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(output, "llama")
    for key in key_values(path, reader):
        if key.key != "general.architecture":
            writer.add_key_value(key.key, key.value, key.kind, key.sub_kind)
    for tensor in reader.tensors:
        t = others.get(tensor.name, tensor)
        writer.add_tensor(tensor.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


def test_a_full_disk(f32: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    path, log = convert(f32)
    assert path == f32
    assert log == [f"the drafter's weights stay as they are in '{f32}': {needs(cache)}"]


def needs(cache: Path) -> str:
    return f"a copy needs 0 MiB, and the disk of '{cache}' has 0 MiB free"


def test_weights_that_are_no_numbers(f32: str, tmp_path: Path, cache: Path) -> None:
    """llama.cpp refuses to convert them: the file is used as it is, and no part of a copy is left."""
    tensors = random_tensors(write_random_arch(tmp_path, "llama"))
    tensors["output.weight"] = np.full_like(tensors["output.weight"], np.nan)
    path = str(write_arch(tmp_path / "nan.gguf", "llama", keys_of("llama"), tensors))
    found, log = convert(path)
    assert found == path
    assert "stay as they are" in log[-1]
    assert list(cache.iterdir()) == []


def test_the_least_recently_used_ones_go(f32: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [convert(f32, WEIGHT_TYPES[name])[0] for name in ("q8_0", "q5_0", "q4_1")]
    for i, copy in enumerate(copies):
        for path in (copy, Path(copy).with_suffix(".header")):
            os.utime(path, (i, i))
    sizes = [os.path.getsize(copy) for copy in copies]
    monkeypatch.setattr(requantize, "_N_BYTES_KEPT", sum(sizes[1:]) + 1)
    last, _ = convert(f32)
    kept = sorted(str(path) for path in cache.iterdir())
    headers = [str(Path(copy).with_suffix(".header")) for copy in (copies[2], last)]
    assert kept == sorted([copies[2], last, *headers])


def test_parts_of_a_killed_process_go(f32: str, cache: Path) -> None:
    cache.mkdir(parents=True)
    old, new = cache / ".a.gguf.0.part", cache / ".b.gguf.0.part"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    convert(f32)
    assert not old.exists()
    assert new.exists()


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    with pytest.raises(ModelFileError):
        convert(path)
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        read_weights(str(path))


@pytest.mark.parametrize("options", [{}, CHAIN], ids=["auto", "chain"])
def test_text_is_the_targets(folder: Path, options: dict[str, Any]) -> None:
    """draft_type says which type, and may leave the file as it is; costs are those of what is loaded."""
    target, small = write_small_pair(folder)
    prompt = prompts(1)[0]
    with closing(load_plain(target)) as llm:
        expected = take(llm, prompt, 40)
    loaded, keys = [], set()
    for more in ({}, {"draft_type": "f32"}, {"draft_type": "q8_0"}):
        with closing(load(target, small, **options, **more)) as llm:
            loaded.append(llm.loaded.description)
            assert take(llm, prompt, 40) == expected
            keys.add(llm.loaded.costs_key()["drafters"]["draft"])
    assert "-q4_0.gguf'" in loaded[0]
    assert "converted" not in loaded[1]
    assert "-q8_0.gguf'" in loaded[2]
    assert len(keys) == 3


def test_sequences_of_types() -> None:
    """Each type that can be asked for has a type of files and a number of bits."""
    names: Sequence[str] = list(WEIGHT_TYPES)
    assert list(requantize._FILE_TYPES) == names
    assert set(requantize._BITS) == set(names)
