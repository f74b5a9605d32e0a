"""A trained head as a Hugging Face checkpoint is the same head in both forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from llama_cpp_eagle3._core import read_head
from llama_cpp_eagle3_heads.convert import convert
from tiny import Target, write_target

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train.build import fresh_head, head_from_gguf, target_config  # noqa: E402
from llama_cpp_eagle3_heads.train.checkpoint import FORMS, export  # noqa: E402
from llama_cpp_eagle3_heads.train.eagle import Head  # noqa: E402

LAYERS = [(2, 3, 4), (1, 3, 6), (3, 5, 7)]
"""The usual boundaries, and others that readers of EAGLE's form may misread."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("export") / "target.gguf", n_layer=7)


def make_head(target: Target, layers: tuple[int, ...], eagle31: bool) -> Head:
    """Return a head with random weights everywhere."""
    torch.manual_seed(1)
    cfg = target_config(Path(target.path), 128, layers, eagle31=eagle31)
    head = fresh_head(Path(target.path), cfg, torch.arange(0, target.n_vocab, 5), 4)
    for weight in head.parameters():
        torch.nn.init.normal_(weight)
    return head


@pytest.mark.parametrize("layers", LAYERS, ids=str)
@pytest.mark.parametrize("eagle31", [False, True], ids=("eagle3", "eagle3.1"))
@pytest.mark.parametrize("form", FORMS)
def test_converted_it_is_the_same_head(
    target: Target, tmp_path: Path, form: str, eagle31: bool, layers: tuple[int, ...]
) -> None:
    """The converted head is the same bit for bit, from the checkpoint alone."""
    head = make_head(target, layers, eagle31)
    export(head, tmp_path / "hf", form, "target")
    path = convert(tmp_path / "hf", target.path, tmp_path / "head.gguf", outtype="f32").path
    assert tuple(read_head(str(path)).boundaries) == layers
    again = head_from_gguf(Path(path), Path(target.path), 128, 4)
    assert again.cfg == head.cfg
    expected, found = head.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert torch.equal(values, found[name]), name


def test_what_speculators_says(target: Target, tmp_path: Path) -> None:
    """The config is as vLLM's speculators reads it, with every switch, and tensors' names lack `midlayer`."""
    export(make_head(target, (2, 3, 4), False), tmp_path, "speculators", "me/model")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["architectures"] == ["Eagle3Speculator"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["draft_vocab_size"] == target.n_vocab // 5
    said = config["speculators_config"]
    assert said["proposal_methods"][0]["proposal_type"] == said["default_proposal_method"] == "greedy"
    assert said["verifier"]["name_or_path"] == "me/model"
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["vocab_size"], layer["hidden_size"]) == ("llama", target.n_vocab, target.n_embd)
    assert not any(config[name] for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"))
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"layers.0.self_attn.q_proj.weight", "layers.0.hidden_norm.weight", "fc.weight", "d2t", "t2d"} <= names
    assert not any(name.startswith("midlayer") for name in names)
