"""Files of a folder that belong to a checkpoint are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoints import FAMILIES, write_family, write_safetensors, write_sharded, write_torch_file
from gguf_raw import parse
from llama_cpp_eagle3_heads.convert import convert
from llama_cpp_eagle3_heads.convert.checkpoint_files import find_files
from tiny import Target, write_head, write_target

A, B = "draft-00001-of-00002.safetensors", "draft-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("names", "index", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin"], None, ["model.safetensors"]),
        (["model.safetensors", "model.safetensors.index.json"], "model.safetensors.index.json", []),
        (["pytorch_model.bin.index.json", "x.bin"], "pytorch_model.bin.index.json", []),
        (["draft.safetensors.index.json", "a.safetensors", "b.safetensors"], "draft.safetensors.index.json", []),
        ([A, B], None, [A, B]),
        (["pytorch_model-00001-of-00001.bin"], None, ["pytorch_model-00001-of-00001.bin"]),
        (["eagle.safetensors"], None, ["eagle.safetensors"]),
        (["eagle.bin", "training_args.bin", "optimizer.bin"], None, ["eagle.bin"]),
    ],
)
def test_weights_are_found(names: list[str], index: str | None, weights: list[str]) -> None:
    found = find_files(["config.json", "README.md", *names])
    assert found is not None
    assert (found.index, list(found.weights), found.strange) == (index, weights, ())


@pytest.mark.parametrize(
    "names", [[], [A], ["a.safetensors", "b.safetensors"], ["sub/model.safetensors"], ["x.bin", "y.bin"]]
)
def test_no_weights(names: list[str]) -> None:
    assert find_files(["config.json", *names]) is None


def test_what_lies_beside_the_weights() -> None:
    """A mask token's row belongs to the weights; unknown files are reported; files that training leaves are not."""
    names = ["model.safetensors", "mask_embedding.pt", "d2t.pt", "optimizer.pt", "rng_state_0.pth", "training_args.bin"]
    found = find_files(names)
    assert found is not None
    assert (found.mask_row, found.strange) == ("mask_embedding.pt", ("d2t.pt",))
    assert found.first == ("config.json", "mask_embedding.pt", "model.safetensors")
    assert "d2t.pt" in found.notes[0]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("files") / "target.gguf", n_layer=8)


def tensors_of(path: Path) -> dict[bytes, bytes]:
    return {tensor.name: tensor.data for tensor in parse(path.read_bytes()).tensors}


@pytest.mark.parametrize("form", ["index", "numbered", "bin"])
def test_shards_of_any_name(form: str, target: Target, tmp_path: Path) -> None:
    head = write_head(tmp_path / "own.gguf", target, boundaries=(2, 4, 5))
    folder = tmp_path / "head"
    write_family(folder, FAMILIES["angelslim"], head)
    want = tensors_of(convert(folder, target.path, tmp_path / "a.gguf").path)
    (folder / "model.safetensors").unlink()
    if form == "bin":
        names = list(head.weights)
        for i in range(2):
            part = {name: head.weights[name] for name in names[i::2]}
            write_torch_file(folder / f"pytorch_model-0000{i + 1}-of-00002.bin", part, "bf16")
    else:
        write_sharded(folder, head.weights, "bf16")
        index = folder / "model.safetensors.index.json"
        if form == "index":
            table = json.loads(index.read_text())
            for i, name in enumerate(sorted(set(table["weight_map"].values()))):
                (folder / name).rename(folder / f"part{i}.safetensors")
                table["weight_map"] = {
                    t: f"part{i}.safetensors" if n == name else n for t, n in table["weight_map"].items()
                }
            (folder / "eagle.safetensors.index.json").write_text(json.dumps(table))
        index.unlink()
    assert tensors_of(convert(folder, target.path, tmp_path / "b.gguf").path) == want


def test_strange_files_are_said(target: Target, tmp_path: Path) -> None:
    head = write_head(tmp_path / "own.gguf", target, boundaries=(2, 4, 5))
    write_family(tmp_path / "head", FAMILIES["angelslim"], head)
    write_safetensors(tmp_path / "head" / "norms.safetensors", {}, "f32")
    spec = convert(tmp_path / "head", target.path, tmp_path / "a.gguf").spec
    assert any("norms.safetensors" in warning for warning in spec.warnings)
