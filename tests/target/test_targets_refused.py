"""Models that cannot be targets, and boundaries that a target lacks: errors when loading, before any decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from arch_keys import OTHERS
from llama_cpp_eagle3 import IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3._core import read_target, why_no_target
from loading import load
from tiny import Target, write_head, write_target
from tiny.vocab import add_vocab


def write_header(path: Path, arch: str, target: Target, **keys: Any) -> Path:
    """Write the header of a model as large as the target, without tensors, which are not read."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(target.n_layer)
    writer.add_embedding_length(target.n_embd)
    writer.add_context_length(512)
    for key, value in keys.items():
        name = f"{arch}.{key.replace('__', '.')}"
        writer.add_bool(name, value) if isinstance(value, bool) else writer.add_uint32(name, value)
    add_vocab(writer, target.n_vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def refuse(
    tmp_path: Path,
    target: Target,
    head: Any,
    arch: str,
    match: str,
    error: type[Exception] = IncompatibleDraftError,
    **keys: Any,
) -> None:
    path = write_header(tmp_path / f"{arch}.gguf", arch, target, **keys)
    with pytest.raises(error, match=match) as caught:
        load(path, head)
    assert str(path) in str(caught.value)
    with pytest.raises(error, match=match):
        load(path, draft_target_layers=[1, 2])


@pytest.mark.parametrize("arch", sorted({*OTHERS} - {"eagle3", "dflash", "gemma4-assistant", "clip"}))
def test_architectures(tmp_path: Path, tiny_target: Target, tiny_head: Any, arch: str) -> None:
    """Encoders, embedding, diffusion and audio models, and several streams are refused; drafters by their file."""
    reason = why_no_target(arch)
    assert reason
    refuse(tmp_path, tiny_target, tiny_head, arch, rf"\({arch}\) cannot be the target of a draft: {reason}\. Load it")


def test_a_projector(tmp_path: Path, tiny_target: Target, tiny_head: Any) -> None:
    """A projector is no model at all, and the error names it."""
    assert why_no_target("clip")
    refuse(tmp_path, tiny_target, tiny_head, "clip", "is a projector of images and sounds", ModelFileError)


def test_why(tmp_path: Path) -> None:
    reasons = {arch: why_no_target(arch) for arch in ("bert", "gemma-embedding", "dream", "llada", "gemma3n", "llama")}
    assert reasons == {
        "bert": "it only encodes",
        "gemma-embedding": "it is an embedding model",
        "dream": "it is a diffusion model, which fills in masks and has no next token",
        "llada": "it is a diffusion model, which fills in masks and has no next token",
        "gemma3n": "its layers hand on several streams, none of which is the hidden state that a head reads",
        "llama": "",
    }


@pytest.mark.parametrize(
    ("arch", "keys", "match"),
    [
        ("qwen3", {"pooling_type": 3}, "asks for pooling: it is an embedding model"),
        ("qwen3", {"pooling_type": 4}, "asks for pooling: it is an embedding model"),
        ("llama", {"attention__causal": False}, "attend in both directions"),
    ],
)
def test_embedding_models_of_common_architectures(
    tmp_path: Path, tiny_target: Target, tiny_head: Any, arch: str, keys: Any, match: str
) -> None:
    refuse(tmp_path, tiny_target, tiny_head, arch, match, **keys)


@pytest.mark.parametrize("pooling", [0, 0xFFFFFFFF])
def test_no_pooling_is_no_embedding_model(tmp_path: Path, tiny_target: Target, pooling: int) -> None:
    """llama.cpp's own writer stores -1 for a missing value."""
    path = write_header(tmp_path / "x.gguf", "qwen3", tiny_target, pooling_type=pooling, attention__causal=True)
    assert read_target(str(path)).why_no_target == ""


@pytest.mark.parametrize(
    ("arch", "boundaries", "match"),
    [
        (
            "bloom",
            (0, 1, 2),
            r"after 0 layers.*\(bloom\) does not offer.*4 layers: 1 to 4 can be read, and 5 is the state",
        ),
        ("plamo3", (1, 2, 5), r"after 5 layers.*\(plamo3\) does not offer.*4 layers: 0 to 4 can be read\. "),
        ("llama", (1, 2, 6), r"after 6 layers.*\(llama\) does not offer.*4 layers: 0 to 4 can be read, and 5 is"),
        ("llama", (1, 2, -1), r"after -1 layers.*0 to 4 can be read"),
        ("llama", (1, 2, 1), r"after 1 layers twice: \[1, 2, 1\].*0 to 4 can be read"),
        ("llama", (1, 2), r"reads 3 hidden states, draft_target_layers names 2: \[1, 2\].*0 to 4 can be read"),
        ("llama", (), r"reads 3 hidden states, draft_target_layers names 0: \[\].*0 to 4 can be read"),
    ],
)
def test_boundaries(
    tmp_path: Path, tiny_target: Target, tiny_head: Any, arch: str, boundaries: tuple[int, ...], match: str
) -> None:
    path = write_header(tmp_path / "target.gguf", arch, tiny_target)
    with pytest.raises(IncompatibleDraftError, match=match):
        load(path, tiny_head, draft_target_layers=list(boundaries))


def test_boundaries_of_the_head_itself(tmp_path: Path, tiny_target: Target) -> None:
    head = write_head(tmp_path / "head.gguf", tiny_target, boundaries=(1, 2, 9))
    with pytest.raises(IncompatibleDraftError, match=r"head.gguf' reads the hidden state after 9 layers.*0 to 4 can"):
        load(tiny_target, head)


def test_layers_for_prediction_and_loops_count(tmp_path: Path, tiny_target: Target) -> None:
    """Layers for multi-token prediction do not count as the target's; layers that run twice count twice."""
    path = write_header(tmp_path / "a.gguf", "glm4moe", tiny_target, nextn_predict_layers=1)
    assert read_target(str(path)).boundaries == [0, 1, 2, 3, 4]
    path = write_header(tmp_path / "b.gguf", "nanbeige", tiny_target, num_loops=2)
    assert read_target(str(path)).n_layer == 8


def test_a_small_target_still_loads(tmp_path: Path) -> None:
    """A smoke test: the checks accept valid requests, all boundaries that exist, and n_layer."""
    target = write_target(tmp_path / "target.gguf", n_layer=2)
    head = write_head(tmp_path / "head.gguf", target, boundaries=(0, 1, 2))
    load(target, head).close()
