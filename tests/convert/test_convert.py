"""Checkpoints of every family, converted, against the reference fed with the checkpoint's own weights."""

import json
import tracemalloc

import gguf
import numpy as np
import pytest

from checkpoints import FAMILIES, N_LAYER_TGT, Family, layer_config, write_family, write_safetensors
from drafting import compare, make_drafter
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3_heads.convert import convert, inspect
from reference import ReferenceHead
from tiny import Head, write_head, write_target

TOLERANCE = 1e-4


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("convert") / "target.gguf", n_layer=N_LAYER_TGT, rope_theta=500000.0)


def write(folder, family: Family, target) -> Head:
    """Write a checkpoint of the family; return the head that it means."""
    head = write_head(folder.parent / "unused.gguf", target, **family.variant)
    write_family(folder, family, head)
    return head


def drafts_like(head: Head, path, model_tgt) -> bool:
    """Whether the file drafts as the reference does with the head's weights and semantics."""
    made = Head(str(path), head.arch, head.variant, head.target, head.weights, head.d2t)
    return compare(make_drafter(made, model_tgt), ReferenceHead(made), accepted=(3, 0, 6)).agrees(TOLERANCE)


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, tmp_path, target, model_address):
    family = FAMILIES[name]
    head = write(tmp_path / name, family, target)
    result = convert(tmp_path / name, target.path, tmp_path / "out.gguf", outtype="f32")

    made = _core.read_head(str(result.path))
    assert made.arch == head.arch  # eagle3 exactly if llama.cpp can run it
    assert made.boundaries == (list(head.variant.boundaries) if head.variant.use_aux_hidden_state else [])
    assert made.has_d2t == (head.d2t is not None)
    assert result.spec.family == family.name
    assert len(result.spec.doubts) == family.doubts
    assert drafts_like(head, result.path, model_address(target.path))
    # the folder and the file give the same
    assert inspect(tmp_path / name, target.path).misfit is None
    assert inspect(result.path, target.path).misfit is None
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_reading_would_be_seen(name, tmp_path, target, model_address):
    """The comparison above can fail: it does with one change in the reference."""
    family = FAMILIES[name]
    head = write(tmp_path / name, family, target)
    path = convert(tmp_path / name, target.path, tmp_path / "out.gguf", outtype="f32").path
    made = Head(str(path), head.arch, head.variant, head.target, head.weights, head.d2t)
    for change in (
        {"norm_output": not head.variant.norm_output},
        {"norm_before_residual": not head.variant.norm_before_residual},
        {"rope_theta": head.variant.rope_theta * 10.0},
    ):
        worst = compare(make_drafter(made, model_address(target.path)), ReferenceHead(made, **change), accepted=(3,))
        assert not worst.agrees(10 * TOLERANCE), change


def test_auto_keeps_what_the_checkpoint_has(tmp_path, target):
    for name, kind in (("angelslim", "BF16"), ("safeailab", "F16"), ("transformers_5", "F16")):
        write(tmp_path / name, FAMILIES[name], target)
        result = convert(tmp_path / name, target.path, tmp_path / f"{name}.gguf")
        types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(result.path).tensors}
        assert result.outtype == kind.lower()
        assert types["fc.weight"] == types["output.weight"] == kind
        assert types["output_norm.weight"] == types["blk.0.attn_norm_2.weight"] == "F32"
        assert types["d2t"] == "I64"


def test_memory_is_bounded_by_the_largest_tensor(tmp_path, target):
    variant = {"boundaries": (2, 4, 5), "n_layer": 8, "n_ff": 4096}
    family = Family(lambda h: layer_config(h, architectures=["LlamaForCausalLM"]), variant)
    write(tmp_path / "head", family, target)
    largest = 4 * 64 * 4096
    tracemalloc.start()
    convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="f16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "out.gguf").stat().st_size > 12 * largest
    assert peak < 5 * largest


def test_default_name_of_the_output(tmp_path, target, monkeypatch):
    write(tmp_path / "my-head", FAMILIES["angelslim"], target)
    monkeypatch.chdir(tmp_path)
    assert convert("my-head", target.path).path.name == "my-head-bf16.gguf"
    assert (tmp_path / "my-head-bf16.gguf").is_file()


def test_target_as_a_hugging_face_folder(tmp_path, target, model_address):
    head = write(tmp_path / "head", FAMILIES["specforge"], target)
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "x_vl", "text_config": target.hf_config}))
    result = convert(tmp_path / "head", folder, tmp_path / "out.gguf", outtype="f32")
    assert drafts_like(head, result.path, model_address(target.path))
    # without tokenizer.json the file has only the size of the vocabulary
    fields = gguf.GGUFReader(result.path).fields
    assert fields["tokenizer.ggml.model"].contents() == "none"

    tokens = [f"t{i}" for i in range(target.n_vocab - 2)]
    state = {
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [["t", "1"], "t 2"]},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": target.n_vocab - 2, "content": "<bos>", "special": True}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(state))
    result = convert(tmp_path / "head", folder, tmp_path / "out.gguf", outtype="f32")
    fields = gguf.GGUFReader(result.path).fields
    assert fields["tokenizer.ggml.tokens"].contents() == [*tokens, "<bos>", f"[PAD{target.n_vocab - 1}]"]
    assert _core.read_head(str(result.path)).n_vocab == target.n_vocab

    for spoilt in ({"added_tokens": ["<bos>"]}, {"model": state["model"] | {"vocab": [["a", -1.0]]}}, {"model": "BPE"}):
        (folder / "tokenizer.json").write_text(json.dumps(state | spoilt))
        with pytest.raises(ModelFileError, match=r"tokenizer\.json': not as the library 'tokenizers' writes it"):
            convert(tmp_path / "head", folder, tmp_path / "out.gguf", outtype="f32")


def test_tokenizer_of_a_gguf_target_is_copied(tmp_path, target):
    write(tmp_path / "head", FAMILIES["angelslim"], target)
    convert(tmp_path / "head", target.path, tmp_path / "out.gguf")
    theirs, ours = (gguf.GGUFReader(path).fields for path in (target.path, tmp_path / "out.gguf"))
    names = [name for name in theirs if name.startswith("tokenizer.")]
    assert len(names) > 5
    for name in names:
        assert ours[name].contents() == theirs[name].contents()
        assert ours[name].types == theirs[name].types


def test_a_copy_of_the_targets_embedding_is_left_out(tmp_path, target, model_address):
    family = FAMILIES["angelslim"]
    head = write_head(tmp_path / "unused.gguf", target, own_embd=True, **family.variant)
    copy = target.weights["model.embed_tokens.weight"]
    write_family(tmp_path / "copy", family, head, {"embed_tokens.weight": copy})
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **target.hf_config}))
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": copy}, "bf16")
    result = convert(tmp_path / "copy", folder, tmp_path / "out.gguf")
    assert not _core.read_head(str(result.path)).has_tok_embd
    result = convert(tmp_path / "copy", target.path, tmp_path / "out.gguf", outtype="f32")
    assert not _core.read_head(str(result.path)).has_tok_embd
    assert any("shared" in note for note in result.spec.notes)

    head = write_head(tmp_path / "unused.gguf", target, own_embd=True, **family.variant)
    write_family(tmp_path / "own", family, head)
    result = convert(tmp_path / "own", target.path, tmp_path / "out.gguf", outtype="f32")
    assert _core.read_head(str(result.path)).has_tok_embd
    assert drafts_like(head, result.path, model_address(target.path))


def test_tied_lm_head_of_a_head_with_its_own_embedding(tmp_path, target, model_address):
    family = Family(
        lambda h: layer_config(
            h, architectures=["LlamaForCausalLMEagle3"], tie_word_embeddings=True, target_hidden_size=h.target.n_embd
        ),
        {"boundaries": (2, 4, 5), "n_embd": 96, "own_embd": True, "own_output": False, "n_vocab_dft": None},
    )
    head = write(tmp_path / "head", family, target)
    path = convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="f32").path
    head.weights["lm_head.weight"] = head.weights["embed_tokens.weight"]
    assert drafts_like(head, path, model_address(target.path))


def test_padded_rows_are_cut_off(tmp_path, target, model_address):
    family = FAMILIES["specforge_full_vocabulary"]
    head = write_head(tmp_path / "unused.gguf", target, **family.variant)
    true_rows = head.weights["lm_head.weight"]
    padding = np.full((24, true_rows.shape[1]), 9.0)
    padded = Family(lambda h: layer_config(h, vocab_size=target.n_vocab + 24), family.variant)
    write_family(tmp_path / "head", padded, head, {"lm_head.weight": np.concatenate([true_rows, padding])})
    result = convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="f32")
    head.weights["lm_head.weight"] = head.weights["lm_head.weight"][: target.n_vocab]
    assert drafts_like(head, result.path, model_address(target.path))
    assert any("padding" in note for note in result.spec.notes)
