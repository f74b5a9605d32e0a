"""Block drafters of families whose layers are not quite Qwen3's, against float64 with the checkpoint's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_checkpoints import N_LAYER_TGT, deepspec, gemma, neighbours, speculators, weights_of, write_block, zlab
from checkpoints import write_safetensors, write_torch_file
from dflash import SHAPES, Pair, Shape, random_tensors, shape_of
from dflash_reference import Block
from drafting import draft_chain
from gguf_raw import parse
from llama_cpp_eagle3 import ModelFileError
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert
from tiny import Target, write_target

TOLERANCE, TOLERANCE_GELU = 1e-4, 5e-3  # ggml takes gelu from a table in F16
Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("block") / "target.gguf", n_layer=N_LAYER_TGT)


def tables_of(target: Target) -> Tensors:
    return {
        "token_embd.weight": target.weights["model.embed_tokens.weight"],
        "output.weight": target.weights["lm_head.weight"],
    }


def check(path: Path, shape: Shape, target: Target, **other: np.ndarray) -> None:
    """Check that a file's logits are those of float64; other: tensors beside those of the shape."""
    tables = tables_of(target)
    tensors = random_tensors(shape) | {name.replace("__", "."): data for name, data in other.items()}
    block = Block(shape, tensors, tables["token_embd.weight"], tables["output.weight"])
    text = np.random.default_rng(0).integers(0, 256, 40).tolist()
    n = shape.block_size - shape.n_first
    with Pair(target, path) as pair:
        rows = pair.evaluate(text[:-1])
        pair.drafter.process_rows(rows, text[:-1], 0)
        want = block.logits(rows, text[-1], shape.n_first + n)
        assert draft_chain(pair.drafter, text[-1], n) == want[shape.n_first :].argmax(-1).tolist()
        tolerance = TOLERANCE if shape.act == "silu" else TOLERANCE_GELU
        np.testing.assert_allclose(pair.drafter.block_logits, want, atol=tolerance)


def converted(tmp_path: Path, target: Target, config: dict[str, Any], weights: Tensors, **options: Any) -> Path:
    folder = write_block(tmp_path / "draft", config, weights)
    return convert(folder, target.path, tmp_path / "out.gguf", outtype="f32", **options).path


@pytest.mark.parametrize("name", ["attention_sink_bias", "sinks", "sinks.weight"])
def test_sinks(name: str, target: Target, tmp_path: Path) -> None:
    shape = shape_of("plain", has_sinks=True)
    weights = {n.replace("attention_sink_bias", name): w for n, w in weights_of(shape).items()}
    config = zlab(shape)
    config["dflash_config"]["attention_sink_bias"] = True
    check(converted(tmp_path, target, config, weights), shape, target)


@pytest.mark.parametrize("n_rot", [16, 8])
@pytest.mark.parametrize("key", ["rope_is_neox_style", "is_neox_style"])
def test_neighbouring_channels(key: str, n_rot: int, target: Target, tmp_path: Path) -> None:
    shape = shape_of("plain", keys={"rope.dimension_count": n_rot})
    weights = neighbours(shape, weights_of(shape), n_rot)
    config = zlab(shape) | {key: False, "partial_rotary_factor": n_rot / 16}
    check(converted(tmp_path, target, config, weights), shape, target)


def test_part_of_the_channels(target: Target, tmp_path: Path) -> None:
    shape = shape_of("plain", keys={"rope.dimension_count": 8})
    config = zlab(shape) | {
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    }
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)


def test_a_copy_of_the_targets_config(target: Target, tmp_path: Path) -> None:
    """DeepSpec copies the config for its own class, which rotates all channels as Qwen3 does and has no sections."""
    shape = SHAPES["dspark"]
    copied = {
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    config = deepspec(shape) | {"attn_output_gate": True, "partial_rotary_factor": 0.25, "rope_parameters": copied}
    folder = write_block(tmp_path / "draft", config, weights_of(shape))
    result = convert(folder, target.path, tmp_path / "out.gguf", outtype="f32")
    assert any("a copy of the target's" in note for note in result.spec.notes)
    check(result.path, shape, target)


@pytest.mark.parametrize("act", ["gelu_pytorch_tanh", "silu"])
def test_gemmas_layers(act: str, target: Target, tmp_path: Path) -> None:
    """Layers have sandwich norms, values that are keys, a scale of each layer, and channels without rotation."""
    keys = {"embedding_scale": 8.0, "attention.scale": 1.0}
    shape = Shape(
        shares_kv=True, has_post_norms=True, n_head_kv=1, markov_rank=8, from_anchor=True, act=act, keys=keys
    )  # fmt: skip
    path = converted(tmp_path, target, gemma(shape) | {"hidden_activation": act}, weights_of(shape))
    check(path, shape, target, rope_freqs__weight=np.array([1.0] * 2 + [1e30] * 6))


@pytest.mark.parametrize("arch", ["Lfm2DSparkDraftModel", "LingDSparkModel"])
def test_families_with_qwen3s_layers(arch: str, target: Target, tmp_path: Path) -> None:
    """Layers like Qwen3's also run under LFM2's and Ling's names; the rest of the config may be their targets'."""
    shape = SHAPES["dspark"]
    other = {"kv_lora_rank": 32, "architectures": [arch], "model_type": "lfm2"}
    names = {
        "Lfm2DSparkDraftModel": {
            "input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "q_norm": "q_layernorm",
            "k_norm": "k_layernorm", "o_proj": "out_proj", "mlp.gate_proj": "feed_forward.w1",
            "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
        },
        "LingDSparkModel": {
            "self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
        },
    }[arch]  # fmt: skip
    weights = {}
    for name, data in weights_of(shape).items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name] = data
    check(converted(tmp_path, target, deepspec(shape) | other, weights), shape, target)


@pytest.mark.parametrize("form", ["number", "tensor", "safetensors"])
@pytest.mark.parametrize("source", ["gguf", "folder"])
def test_a_row_of_the_mask_token(form: str, source: str, target: Target, tmp_path: Path) -> None:
    """A mask token's row lies beside the weights: the file gets the target's tables, the embedding with that row."""
    shape = SHAPES["plain"]
    folder = write_block(tmp_path / "draft", zlab(shape), weights_of(shape))
    row = np.linspace(-2, 2, shape.n_embd).astype(np.float32)
    if form == "number":
        write_torch_file(folder / "mask_embedding.pt", {"embedding": row}, "f32", numbers={"mask_token_id": 300})
    elif form == "tensor":
        token = np.array([300], np.int64)
        write_torch_file(folder / "mask_embedding.pt", {"embedding": row[None], "mask_token_id": token}, "f32")
    else:
        token = np.array([300], np.int64)
        write_safetensors(folder / "mask_embedding.safetensors", {"embedding": row, "mask_token_id": token}, "f32")
    tables = tables_of(target)
    embd = tables["token_embd.weight"].copy()
    embd[300] = row
    path = convert(folder, target.path, tmp_path / "out.gguf", outtype="f32").path
    check(path, shape, target, token_embd__weight=embd)


def test_the_tables_keep_the_targets_types(tmp_path: Path) -> None:
    """In a quantized target's tables, only the mask token's row is quantized anew."""
    target = write_target(tmp_path / "target.gguf", n_layer=N_LAYER_TGT, ftype="q8_0")
    shape = SHAPES["plain"]
    folder = write_block(tmp_path / "draft", zlab(shape), weights_of(shape))
    row = {"embedding": np.ones(shape.n_embd, np.float32)}
    write_torch_file(folder / "mask_embedding.pt", row, "f32", numbers={"mask_token_id": 300})
    made = parse(convert(folder, target.path, tmp_path / "out.gguf").path.read_bytes())
    theirs = parse(Path(target.path).read_bytes())
    for name in (b"token_embd.weight", b"output.weight"):
        ours, own = (next(t for t in raw.tensors if t.name == name) for raw in (made, theirs))
        assert ours.type == own.type
        n = len(own.data) // shape.n_vocab
        rows = [(ours.data[i * n : (i + 1) * n], own.data[i * n : (i + 1) * n]) for i in range(shape.n_vocab)]
        assert [i for i, (a, b) in enumerate(rows) if a != b] == ([300] if name == b"token_embd.weight" else [])


def test_a_row_of_another_token(target: Target, tmp_path: Path) -> None:
    shape = SHAPES["plain"]
    folder = write_block(tmp_path / "draft", zlab(shape), weights_of(shape))
    for row, token, found in (
        (64, 299, "the row of token 299"),
        (32, 300, "has 32 values"),
        (64, 5000, "row of token"),
    ):
        row = {"embedding": np.ones(row, np.float32)}
        write_torch_file(folder / "mask_embedding.pt", row, "f32", numbers={"mask_token_id": token})
        with pytest.raises(ModelFileError, match=found):
            convert(folder, target.path, tmp_path / "out.gguf")
    write_torch_file(folder / "mask_embedding.pt", {"row": np.ones(64, np.float32)}, "f32")
    with pytest.raises(ModelFileError, match="expected a table with 'mask_token_id'"):
        convert(folder, target.path, tmp_path / "out.gguf")


def test_a_table_with_one_row_of_its_own(target: Target, tmp_path: Path) -> None:
    """A copy of the target's table except for the mask token is no copy; a trained output is none either."""
    shape, tables = SHAPES["plain"], tables_of(target)
    embd, output = tables["token_embd.weight"].copy(), tables["output.weight"] + 0.5
    embd[300] = np.linspace(-2, 2, shape.n_embd)
    copies = {"embed_tokens.weight": embd, "lm_head.weight": tables["output.weight"]}
    check(converted(tmp_path, target, zlab(shape), weights_of(shape) | copies), shape, target, token_embd__weight=embd)
    trained = {"embed_tokens.weight": tables["token_embd.weight"], "lm_head.weight": output}
    check(converted(tmp_path, target, zlab(shape), weights_of(shape) | trained), shape, target, output__weight=output)


def test_an_embedding_of_its_own_without_an_output(target: Target, tmp_path: Path) -> None:
    """llama.cpp would use such an embedding as the output too, so the file has the target's output."""
    shape = SHAPES["plain"]
    embd = np.random.default_rng(5).normal(size=(shape.n_vocab, shape.n_embd)).astype(np.float32)
    weights = weights_of(shape) | {"embed_tokens.weight": embd}
    check(converted(tmp_path, target, zlab(shape), weights), shape, target, token_embd__weight=embd)
    tied = zlab(shape) | {"tie_word_embeddings": True}
    check(converted(tmp_path, target, tied, weights), shape, target, token_embd__weight=embd, output__weight=embd)


def test_mask_token(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mask token is given by its option, its text, or DeepSeek's name for it."""
    shape = SHAPES["plain"]
    config = zlab(shape)
    del config["dflash_config"]["mask_token_id"]
    folder = write_block(tmp_path / "draft", config, weights_of(shape))
    argv = ["convert", str(folder), "--target", str(target.path), "-o", str(tmp_path / "out.gguf"), "--outtype", "f32"]
    assert main(argv) == 2
    assert "give it with --mask-token" in capsys.readouterr().err
    assert main([*argv, "--mask-token", "300"]) == 0
    check(tmp_path / "out.gguf", shape, target)
    assert main([*argv, "--mask-token", "320"]) == 2
    assert "expected a token, 0 to 319, found 320" in capsys.readouterr().err
    text = bytes(parse(Path(target.path).read_bytes()).get("tokenizer.ggml.tokens")[300]).decode()
    for other in ({"mask_token": text}, {"dspark_noise_token_id": 300}):
        check(converted(tmp_path, target, config | other, weights_of(shape)), shape, target)


def test_layers_by_default(target: Target, tmp_path: Path) -> None:
    """An empty list of layers counts as none, as in vLLM; --layer-boundaries has precedence."""
    shape = shape_of("plain", boundaries=(3,), n_layer=1)
    config = zlab(shape)
    config["dflash_config"]["target_layer_ids"] = []
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)
    config["dflash_config"]["target_layer_ids"] = [1]
    check(converted(tmp_path, target, config, weights_of(shape), boundaries=[3]), shape, target)


@pytest.mark.parametrize(
    ("said", "from_anchor"),
    [
        ({"dflash_config": {"shift_label": True}}, True),
        ({"dflash_config": {"shift_label": False}}, False),
        ({"query_zero_predicts_next": False}, False),
        ({"sample_from_anchor": False}, False),
        ({}, True),
    ],
)
def test_which_rows_draft(said: dict[str, Any], from_anchor: bool, target: Target, tmp_path: Path) -> None:
    """Three keys mean the same; without any, DeepSpec's default holds."""
    shape = shape_of("dspark", from_anchor=from_anchor, has_confidence=False)
    config = deepspec(shape) | {"architectures": ["DSparkDraftModel"]} | said
    path = converted(tmp_path, target, config, weights_of(shape))
    check(path, shape, target)


@pytest.mark.parametrize(("n_tokens", "from_anchor"), [(8, True), (7, False), (None, False)])
def test_which_rows_draft_of_speculators(
    n_tokens: int | None, from_anchor: bool, target: Target, tmp_path: Path
) -> None:
    shape = shape_of("dspark", from_anchor=from_anchor, has_confidence=False)
    config = speculators(shape)
    del config["sample_from_anchor"]
    if n_tokens:
        config["speculators_config"] = {"proposal_methods": [{"speculative_tokens": n_tokens}]}
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)


def test_windows_that_end_at_each_row(target: Target, tmp_path: Path) -> None:
    """If windows end at each row, all layers are alike: the block has an order."""
    shape = shape_of("causal", n_layer=1, sliding_window=12)
    config = speculators(shape)
    window = {"use_sliding_window": True, "sliding_window": 12, "layer_types": ["sliding_attention"]}
    config["transformer_layer_config"] |= window
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)


def test_rotation_by_layer_type(target: Target, tmp_path: Path) -> None:
    """The drafter's own layer type selects the set of rotation keys; two different ones are refused."""
    shape = shape_of("window", n_layer=1)
    sets = {"full_attention": {"rope_type": "nonsense"}, "sliding_attention": {"rope_theta": 10000.0}}
    config = zlab(shape) | {"rope_theta": None, "rope_parameters": sets}
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)
    shape = SHAPES["window"]
    sets = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 10000.0}}
    with pytest.raises(ModelFileError, match="another rotation in layers with a window"):
        converted(tmp_path, target, zlab(shape) | {"rope_parameters": sets}, weights_of(shape))
    sets["full_attention"]["rope_theta"] = 10000.0
    check(converted(tmp_path, target, zlab(shape) | {"rope_parameters": sets}, weights_of(shape)), shape, target)


def test_kimi_k3_counts_the_layers_that_it_reads(target: Target, tmp_path: Path) -> None:
    shape = SHAPES["dspark"]
    config = deepspec(shape) | {"num_target_layers": 2, "target_num_hidden_layers": N_LAYER_TGT}
    check(converted(tmp_path, target, config, weights_of(shape)), shape, target)
