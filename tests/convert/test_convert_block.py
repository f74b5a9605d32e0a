"""Checkpoints of block drafters in each published form, converted, against float64 with the checkpoint's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_checkpoints import N_LAYER_TGT, deepspec, layers_config, speculators, weights_of, write_block, zlab
from dflash import SHAPES, Pair, Shape, random_tensors, shape_of
from dflash_reference import Block
from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Llama, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert, inspect
from tiny import Target, write_target

TOLERANCE = 1e-4
FORMS = {
    "zlab": (zlab, "plain"),
    "zlab-window": (zlab, "window"),
    "zlab-long": (zlab, "long-block"),
    "dflash2": (zlab, "dflash2"),
    "deepspec": (deepspec, "dspark"),
    "speculators": (speculators, "draft-vocab"),
    "speculators-dspark": (speculators, "dspark-bonus"),
    "own-tables": (speculators, "own-tables"),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("block") / "target.gguf", n_layer=N_LAYER_TGT)


def tables_of(target: Target) -> dict[str, np.ndarray]:
    return {
        "embed_tokens.weight": target.weights["model.embed_tokens.weight"],
        "lm_head.weight": target.weights["lm_head.weight"],
    }


def check(path: Path, shape: Shape, target: Target) -> None:
    """Check that a file's logits are those of float64, with the weights of the checkpoint."""
    tables = tables_of(target)
    block = Block(shape, random_tensors(shape), tables["embed_tokens.weight"], tables["lm_head.weight"])
    text = np.random.default_rng(0).integers(0, 256, 40).tolist()
    n = shape.block_size - shape.n_first
    with Pair(target, path) as pair:
        assert pair.file.boundaries == list(shape.boundaries)
        rows = pair.evaluate(text[:-1])
        pair.drafter.process_rows(rows, text[:-1], 0)
        want = block.logits(rows, text[-1], shape.n_first + n)
        drafted = draft_chain(pair.drafter, text[-1], n)
        if shape.selector:
            assert drafted == block.drafted(n)
            return
        assert drafted == want[shape.n_first :].argmax(-1).tolist()
        known = np.isfinite(want)
        np.testing.assert_allclose(pair.drafter.block_logits[known], want[known], atol=TOLERANCE)
        if shape.has_confidence:
            pair.drafter.begin([0], [text[-1]], 1, n)
            assert pair.drafter.nodes[0][2] == pytest.approx(block.confidence[shape.n_first], rel=2e-3)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_logits_are_those_of_float64(name: str, target: Target, tmp_path: Path) -> None:
    form, which = FORMS[name]
    shape = SHAPES[which]
    weights = weights_of(shape)
    if form is not zlab and not shape.own_tables:  # copies of the target's tables, as training leaves them
        weights = tables_of(target) | weights
    prefix = "model." if name == "deepspec" else ""
    folder = write_block(tmp_path / name, form(shape), {prefix + n: w for n, w in weights.items()})
    result = convert(folder, target.path, tmp_path / "out.gguf", outtype="f32")
    check(result.path, shape, target)
    names = str(inspect(result.path, target.path))
    assert "fits target.gguf" in names
    assert inspect(result.path, target.path).misfit is None
    assert ("nothing" in names) == shape.own_tables
    assert str(inspect(folder, target.path)).count("boundaries") == 1
    with Eagle3Llama(target.path, result.path, verbose=False, n_ctx=256, n_threads=1, draft="chain") as llm:
        llm.create_completion([1, 2, 3], max_tokens=8, temperature=0.0)
        assert llm.last_stats.drafted > 0


def test_a_confidence_that_reads_no_markov_head(target: Target, tmp_path: Path) -> None:
    """llama.cpp's graph also gives it the Markov head's part, which is multiplied by zeros."""
    shape = SHAPES["dspark"]
    weights = weights_of(shape)
    weights["confidence_head.proj.weight"] = weights["confidence_head.proj.weight"][:, : shape.n_embd]
    folder = write_block(tmp_path / "x", deepspec(shape) | {"confidence_head_with_markov": False}, weights)
    path = convert(folder, target.path, tmp_path / "out.gguf", outtype="f32").path
    tensors = random_tensors(shape)
    tensors["conf_proj.weight"][:, shape.n_embd :] = 0.0
    tables = tables_of(target)
    block = Block(shape, tensors, tables["embed_tokens.weight"], tables["lm_head.weight"])
    with Pair(target, path) as pair:
        rows = pair.evaluate([5, 6, 7])
        pair.drafter.process_rows(rows, [5, 6, 7], 0)
        block.logits(rows, 8, 3)
        pair.drafter.begin([0], [8], 1, 3)
        assert pair.drafter.nodes[0][2] == pytest.approx(block.confidence[0], rel=2e-3)


def test_layers_that_are_not_named(target: Target, tmp_path: Path) -> None:
    """z-lab's default layers go evenly from the second layer to the third from the end."""
    shape = shape_of("plain", boundaries=(3,), n_layer=1)
    config = zlab(shape)
    del config["dflash_config"]["target_layer_ids"]
    folder = write_block(tmp_path / "x", config, weights_of(shape))
    check(convert(folder, target.path, tmp_path / "out.gguf", outtype="f32").path, shape, target)


def test_types_and_commands(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The type bf16 stays; `convert` and `inspect` work as commands."""
    shape = SHAPES["plain"]
    folder = write_block(tmp_path / "draft", zlab(shape), weights_of(shape), dtype="bf16")
    out = tmp_path / "out.gguf"
    assert main(["convert", str(folder), "--target", str(target.path), "-o", str(out)]) == 0
    assert "block drafter" in capsys.readouterr().out
    with Eagle3Llama(target.path, out, verbose=False, n_ctx=256, n_threads=1) as llm:
        assert llm.draft_sources == ("dflash", "ngram", "grammar")
    assert main(["convert", str(folder), "--target", str(target.path), "-o", str(out), "--norm-output", "on"]) != 0
    assert "no norm_output" in capsys.readouterr().err
    assert main(["inspect", str(folder)]) != 0
    assert "give it with --target" in capsys.readouterr().err


def change(config: dict[str, Any], **values: Any) -> dict[str, Any]:
    own = {name: value for name, value in values.items() if name in config.get("dflash_config", {})}
    return config | values | {"dflash_config": config.get("dflash_config", {}) | own}


def test_errors_name_what_is_wrong(target: Target, tmp_path: Path) -> None:
    """Errors about another target, or about parts that llama.cpp's graph lacks, come before anything is written."""
    plain, spark = SHAPES["plain"], SHAPES["dspark"]
    weights, config = weights_of(plain), zlab(plain)
    more = weights | {"layers.0.self_attn.q_proj.bias": np.zeros(plain.n_head * plain.head_dim, np.float32)}
    without = {name: w for name, w in weights.items() if name != "norm.weight"}
    other = {"layers.0.pre_feedforward_layernorm.weight": np.ones(64, np.float32)}  # a name of Gemma's
    layers = {name: w for name, w in weights.items() if not name.startswith("layers.1.")}
    spoken = speculators(plain)
    window = {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    spoken["transformer_layer_config"] = layers_config(plain) | window
    for changed, tensors, kind, found in (
        (change(config, hidden_size=128), weights, IncompatibleDraftError, "4 layers, 128 wide; .* has 4, 64 wide"),
        (change(config, num_target_layers=36), weights, IncompatibleDraftError, "trained for a model of 36 layers"),
        (
            change(config, vocab_size=999),
            weights,
            IncompatibleDraftError,
            "vocabulary of 999 tokens, .* has 320",
        ),
        (change(config, target_layer_ids=[1, 7]), weights, IncompatibleDraftError, r"reads layers \[1, 7\]"),
        (change(config, target_layer_ids=[1, 1]), weights, ModelFileError, "expected different layers"),
        (change(config, target_layer_ids=["x"]), weights, ModelFileError, "expected a list of layers"),
        (
            change(config, target_layer_ids=[0, 1, 2]),
            weights,
            ModelFileError,
            r"expected the shape \[64, 192\]",
        ),
        (change(config, mask_token_id=320), weights, ModelFileError, "'mask_token_id': expected a token, 0 to 319"),
        (change(config, num_hidden_layers=3), weights, ModelFileError, "expected 3 layers as config.json has it"),
        (change(config, hidden_act="relu"), weights, ModelFileError, "'hidden_act': expected one of"),
        (change(config, sample_from_anchor=True), weights, ModelFileError, "a first row that drafts"),
        (config, more, ModelFileError, "'layers.0.self_attn.q_proj.bias'"),
        (config, without, ModelFileError, "'norm.weight': .* it is missing"),
        (config, layers, ModelFileError, r"expected 2 layers .* found \[0\]"),
        (spoken, weights, ModelFileError, "layers whose windows end at each row"),
        (
            deepspec(spark) | {"markov_head_type": "gated"},
            weights_of(spark),
            ModelFileError,
            "'markov_head_type' is 'gated'",
        ),
        (deepspec(spark), weights_of(spark) | other, ModelFileError, "values of their own"),
        (deepspec(spark) | {"final_logit_softcapping": 30.0}, weights_of(spark), ModelFileError, "without a cap"),
    ):
        folder = write_block(tmp_path / "x", changed, tensors)
        with pytest.raises(kind, match=found):
            convert(folder, target.path, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_target_without_tokens(target: Target, tmp_path: Path) -> None:
    """The file needs the target's tokens, so they must be at hand."""
    shape = SHAPES["plain"]
    folder = write_block(tmp_path / "draft", zlab(shape), weights_of(shape))
    hf = tmp_path / "target"
    hf.mkdir()
    (hf / "config.json").write_text(json.dumps(layers_config(shape) | {"num_hidden_layers": N_LAYER_TGT}))
    with pytest.raises(ModelFileError, match="give the target's GGUF instead"):
        convert(folder, hf, tmp_path / "out.gguf")
