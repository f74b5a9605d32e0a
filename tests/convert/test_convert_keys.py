"""Keys of a config.json: those that are read, those that are reported, and values that cannot be run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from block_checkpoints import N_LAYER_TGT, deepspec, speculators, weights_of, write_block, zlab
from checkpoints import FAMILIES, Family, modelopt_config, speculators_config, top_config, write_family
from dflash import SHAPES
from llama_cpp_eagle3 import ModelFileError
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert, inspect
from llama_cpp_eagle3_heads.convert.checkpoint import read_checkpoint
from llama_cpp_eagle3_heads.convert.head import describe
from llama_cpp_eagle3_heads.convert.target import read_target_model
from tiny import Target, write_head, write_target
from tiny.head import Head


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("keys") / "target.gguf", n_layer=8)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("keys") / "small.gguf", n_layer=N_LAYER_TGT)


def make(tmp_path: Path, target: Target, family: Family) -> Path:
    head = write_head(tmp_path / "own.gguf", target, **family.variant)
    write_family(tmp_path / "head", family, head)
    return tmp_path / "head"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_of_the_families_is_known(name: str, tmp_path: Path, target: Target) -> None:
    folder = make(tmp_path, target, FAMILIES[name])
    assert describe(read_checkpoint(folder), read_target_model(Path(target.path))).warnings == ()


def test_every_key_of_block_drafters_is_known(tmp_path: Path, small: Target) -> None:
    for i, (form, which) in enumerate(
        ((zlab, "plain"), (zlab, "window"), (zlab, "dflash2"), (deepspec, "dspark"), (speculators, "dspark-bonus"))
    ):
        folder = write_block(tmp_path / str(i), form(SHAPES[which]), weights_of(SHAPES[which]))
        assert convert(folder, small.path, tmp_path / "out.gguf").spec.warnings == ()


def test_unknown_keys_are_said(
    tmp_path: Path, target: Target, small: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown keys of the head's own tables are reported too, once, by `convert` and `inspect`."""
    family = Family(lambda h: modelopt_config(h, {"wobble": 2}, twist=True, draft_config={"a": 1}), dtype="f32")
    folder = make(tmp_path, target, replace(family, variant={"use_aux_hidden_state": False}))
    assert main(["convert", str(folder), "--target", str(target.path), "-o", str(tmp_path / "out.gguf")]) == 0
    err = capsys.readouterr().err
    assert err.count("warning: not known, so not read, of config.json: draft_config, eagle_config.wobble, twist") == 1
    assert "eagle_config.wobble" in str(inspect(folder, target.path))
    config = zlab(SHAPES["plain"])
    config["dflash_config"]["wobble"] = 2
    block = write_block(tmp_path / "block", config | {"twist": 1}, weights_of(SHAPES["plain"]))
    spec = convert(block, small.path, tmp_path / "block.gguf").spec
    assert "dflash_config.wobble, twist" in spec.warnings[0]
    assert "dflash_config.wobble" in str(inspect(block, small.path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("next_layer_regular", False),
        ("parallel_draft_step", 4),
        ("parallel_draft_heads_num_layers", 3),
        ("use_input_layernorm_in_first_layer", False),
        ("use_mtp_layernorm", True),
    ],
)
def test_values_of_heads_that_cannot_be_run(key: str, value: Any, tmp_path: Path, target: Target) -> None:
    family = Family(lambda h: modelopt_config(h, {key: value}), {"use_aux_hidden_state": False})
    with pytest.raises(ModelFileError, match=f"'eagle_config.{key}' is {value}"):
        convert(make(tmp_path, target, family), target.path, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"projector_type": "flow"}, "'dflash_config.projector_type' is 'flow'"),
        ({"projector_type": "domino"}, "Domino"),
        ({"attention_mode": "mla"}, "'dflash_config.attention_mode' is 'mla'"),
        ({"fc_layernorm": True}, "'dflash_config.fc_layernorm' is True"),
        ({"sample_from_anchor": True, "shift_label": False}, "sample_from_anchor true, shift_label false"),
        ({"shift_label": True}, "a first row that drafts"),
        ({"shift_label": "yes"}, "'shift_label': expected true or false"),
    ],
)
def test_values_of_block_drafters_that_cannot_be_run(
    changes: dict[str, Any], found: str, tmp_path: Path, small: Target
) -> None:
    config = zlab(SHAPES["plain"])
    config["dflash_config"] |= changes
    folder = write_block(tmp_path / "draft", config, weights_of(SHAPES["plain"]))
    with pytest.raises(ModelFileError, match=found):
        convert(folder, small.path, tmp_path / "out.gguf")


def test_tables_and_prefixes_of_block_drafters(tmp_path: Path, small: Target) -> None:
    """SGLang's forms are read: a table `dspark_config`, and keys with the prefix `dspark_`."""
    shape = SHAPES["dspark"]
    plain = deepspec(shape)
    names = ("mask_token_id", "target_layer_ids", "markov_rank", "block_size")
    rest = {key: value for key, value in plain.items() if key not in names}
    own = {key: plain[key] for key in names}
    prefixed = {f"dspark_{key}": value for key, value in own.items()}
    prefixed["dspark_noise_token_id"] = prefixed.pop("dspark_mask_token_id")
    made = []
    for config in (plain, rest | {"dspark_config": own}, rest | prefixed):
        folder = write_block(tmp_path / "draft", config, weights_of(shape))
        result = convert(folder, small.path, tmp_path / "out.gguf")
        assert result.spec.warnings == ()
        made.append(result.path.read_bytes())
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("ids", [[1, 2, 3, 5, 6], [3, 5, 6]])
def test_deepspecs_layer_ids_are_outputs(ids: list[int], tmp_path: Path, target: Target) -> None:
    want = tuple(i + 1 for i in ids)
    family = Family(lambda h: top_config(h, "Qwen3Eagle3Model", target_layer_ids=ids), {"boundaries": want}, t2d=True)
    spec = convert(make(tmp_path, target, family), target.path, tmp_path / "out.gguf").spec
    assert (spec.boundaries.values, spec.boundaries.doubtful) == (want, False)


@pytest.mark.parametrize("where", ["top", "eagle_config"])
def test_an_empty_list_of_layers_is_none(where: str, tmp_path: Path, target: Target) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    change = {key: []} if where == "top" else {"eagle_config": {key: []}}
    family = Family(lambda h: top_config(h, "LlamaForCausalLMEagle3", **change), {"boundaries": (2, 4, 5)})
    assert convert(make(tmp_path, target, family), target.path, tmp_path / "o.gguf").spec.boundaries.values == (2, 4, 5)


def test_number_of_hidden_states(tmp_path: Path, target: Target) -> None:
    family = Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3", num_aux_hidden_states=5), {"boundaries": (2, 4, 5)}
    )
    with pytest.raises(ModelFileError, match="num_aux_hidden_states 5, fc reads 3"):
        convert(make(tmp_path, target, family), target.path, tmp_path / "o.gguf")


def _keys(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if ".rope." in name}


@pytest.mark.parametrize(("kind", "window", "theta"), [("sliding_attention", 8, 5e5), ("full_attention", None, 2e6)])
def test_rotation_of_the_heads_own_layers(
    kind: str, window: int | None, theta: float, tmp_path: Path, target: Target
) -> None:
    """The set of rotation keys for the other layer type is not even checked."""
    sets = {
        "full_attention": {"rope_theta": 2e6, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 5e5, "rope_type": "default"},
    }
    other = next(name for name in sets if name != kind)
    sets[other] |= {"rope_type": "nonsense", "partial_rotary_factor": 7}
    layer = {"layer_types": [kind], "sliding_window": window, "rope_theta": None, "rope_parameters": sets}
    variant = {"boundaries": (2, 4, 5), "rope_theta": theta, "qk_norm": True}
    family = Family(lambda h: speculators_config(h, {"model_type": "qwen3", **layer}), variant)
    keys = _keys(convert(make(tmp_path, target, family), target.path, tmp_path / "out.gguf").path)
    assert keys["eagle3.rope.freq_base"] == theta
    assert keys["eagle3.rope.dimension_count"] == 16


def test_rotation_sets_without_the_heads_own(tmp_path: Path, target: Target) -> None:
    sets = {"chunked_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}
    family = Family(lambda h: top_config(h, "LlamaForCausalLMEagle3", rope_parameters=sets), {"boundaries": (2, 4, 5)})
    with pytest.raises(ModelFileError, match=r"a set for 'full_attention', .* found chunked_attention, sliding"):
        convert(make(tmp_path, target, family), target.path, tmp_path / "out.gguf")


def test_gemma_3s_local_rotation(tmp_path: Path, target: Target) -> None:
    def config(head: Head) -> dict[str, Any]:
        layer = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
        return top_config(head, "LlamaForCausalLMEagle3", rope_local_base_freq=1e4, rope_theta=1e6, **layer)

    family = Family(config, {"boundaries": (2, 4, 5), "sliding_window": 8})
    keys = _keys(convert(make(tmp_path, target, family), target.path, tmp_path / "out.gguf").path)
    assert keys["eagle3.rope.freq_base"] == 1e4


def test_a_heads_neighbouring_channels(tmp_path: Path, target: Target) -> None:
    """Rows of q and k that are pairs already in the checkpoint give the same file as halves."""
    family = Family(
        lambda h: top_config(h, "LlamaForCausalLMEagle3"), {"boundaries": (2, 4, 5), "qk_norm": True}, dtype="f32"
    )
    folder = make(tmp_path, target, family)
    halves = convert(folder, target.path, tmp_path / "halves.gguf", outtype="f32", name="x").path
    head = write_head(tmp_path / "own.gguf", target, **family.variant)

    def pairs(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, 2, 8, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

    parts = ("q_proj", "k_proj", "q_norm", "k_norm")
    turned = {name: pairs(w) for name, w in head.weights.items() if any(f"self_attn.{p}." in name for p in parts)}
    write_family(folder, family, head, turned)
    config = json.loads((folder / "config.json").read_text()) | {"rope_is_neox_style": False}
    (folder / "config.json").write_text(json.dumps(config))
    assert (
        convert(folder, target.path, tmp_path / "p.gguf", outtype="f32", name="x").path.read_bytes()
        == halves.read_bytes()
    )
