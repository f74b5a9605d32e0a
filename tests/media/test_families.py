"""Projectors of other models with the same width."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_cpp.llama_chat_format import MTMDChatHandler

from gguf_raw import spoil
from llama_cpp_eagle3 import Eagle3Llama, ModelFileError
from llama_cpp_eagle3.media import families
from vlm_pairs import load_vlm

NAMES = ["qwen25vl", "gemma3", "pixtral", "llama4", "qwen2audio"]
MADE_FOR = {
    "qwen25vl": ["qwen25vl"],
    "gemma3": ["gemma3"],
    "pixtral": ["gemma3", "pixtral", "llama4", "qwen2audio"],  # any text model
    "llama4": ["llama4"],
    "qwen2audio": ["qwen25vl", "qwen2audio"],
}


def load(name, **more):
    return Eagle3Llama(load_vlm(name).path, n_ctx=64, n_threads=1, verbose=False, **more)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("projector", NAMES)
def test_projectors_beside_models_of_their_width(name, projector):
    path = load_vlm(projector).mmproj
    if name in MADE_FOR[projector]:
        load(name, mmproj_path=path).close()
        return
    with pytest.raises(ModelFileError, match=r"-mmproj.gguf': expected a projector for .* architecture .* found one"):
        load(name, mmproj_path=path)


def test_handlers_too():
    path = load_vlm("gemma3").mmproj
    with pytest.raises(ModelFileError, match=r"'llama', found one of type 'gemma3', which is made for gemma3: give"):
        load("pixtral", chat_handler=MTMDChatHandler(clip_model_path=path, verbose=False))
    with load("pixtral") as llm, pytest.raises(ModelFileError, match="found one of type 'gemma3'"):
        llm.chat_handler = MTMDChatHandler(clip_model_path=path, verbose=False)


def test_norms_under_gemma_4s_names(tmp_path):
    """llama.cpp's converter writes these names for Llama 4 (tools/make_vlm.py writes the right ones)."""
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(Path(load_vlm("llama4").mmproj).read_bytes())

    def rename(raw):
        for t in raw.tensors:
            t.name = t.name.replace(b".ln2.", b".attn_post_norm.")

    with pytest.raises(ModelFileError, match=r"expected tensors v.blk.\*.ln2.\*, found them as .*attn_post_norm"):
        load("llama4", mmproj_path=str(spoil(file, rename)))


def test_unknown_types_pass():
    with load("gemma3") as llm, load("qwen25vl") as exclusive:
        families.check_family("mmproj.gguf", ("a-new-one", ""), llm.model_address)
        with pytest.raises(ModelFileError, match="which is made for others"):
            families.check_family("mmproj.gguf", ("", "a-new-one"), exclusive.model_address)
