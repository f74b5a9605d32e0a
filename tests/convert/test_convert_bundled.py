"""A whole pair makes a round trip: its head, written back as a checkpoint and converted, is the same head."""

import json
from itertools import islice

import gguf
import numpy as np
import pytest

from checkpoints import write_safetensors
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair
from llama_cpp_eagle3_heads.convert import convert
from llama_cpp_eagle3_heads.convert.writer import _LAYER_NAMES, _TOP_NAMES
from tiny import write_head, write_target

_BACK = {v: k for k, v in (_LAYER_NAMES | _TOP_NAMES).items()}


def halves(array: np.ndarray, n_head: int) -> np.ndarray:
    """Reorder the rows of q or k from neighbouring pairs back to halves."""
    heads = array.reshape(n_head, -1, 2, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def write_back(path, folder) -> str:
    """Write a GGUF head as a checkpoint in the speculators format; return the type of its matrices."""
    reader = gguf.GGUFReader(path)
    key = {name: field.contents() for name, field in reader.fields.items() if name.startswith("eagle3.")}
    n_head, n_head_kv = key["eagle3.attention.head_count"], key["eagle3.attention.head_count_kv"]
    weights, types = {}, {}
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        types[tensor.name] = tensor.tensor_type.name.lower()
        if tensor.name == "d2t":
            weights["d2t"] = data - np.arange(len(data))
            continue
        stem, _, suffix = tensor.name.rpartition(".")
        if stem.startswith("blk."):
            _, il, rest = stem.split(".", 2)
            stem = f"layers.{il}.{_BACK[rest]}"
        else:
            stem = _BACK.get(stem, stem)
        if stem.endswith("q_proj"):
            data = halves(data, n_head)
        if stem.endswith("k_proj"):
            data = halves(data, n_head_kv)
        weights[f"{stem}.{suffix}"] = data.astype(np.float32)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", weights, "f32")
    layer = {
        "model_type": "llama",
        "hidden_size": key["eagle3.embedding_length"],
        "intermediate_size": key["eagle3.feed_forward_length"],
        "num_attention_heads": n_head,
        "num_key_value_heads": n_head_kv,
        "head_dim": key["eagle3.attention.key_length"],
        "rms_norm_eps": key["eagle3.attention.layer_norm_rms_epsilon"],
        "rope_theta": key["eagle3.rope.freq_base"],
        "num_hidden_layers": 1,
    }
    config = {
        "speculators_model_type": "eagle3",
        "eagle_aux_hidden_state_layer_ids": [int(b) for b in key["eagle3.target_layers"]],
        "norm_before_residual": bool(key.get("eagle3.norm_before_residual", False)),
        "norm_before_fc": bool(key.get("eagle3.norm_before_fc", False)),
        "transformer_layer_config": layer,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return types["fc.weight"]


def check_round_trip(target, head, tmp_path):
    outtype = write_back(head, tmp_path / "head")
    again = convert(tmp_path / "head", target, tmp_path / "out.gguf", outtype=outtype).path
    before, after = ({t.name: t for t in gguf.GGUFReader(path).tensors} for path in (head, again))
    assert before.keys() == after.keys()
    for name in before:
        assert np.array_equal(before[name].data, after[name].data), name

    found = []
    for path in (head, again):
        llm = Eagle3Llama(str(target), draft_model_path=str(path), n_ctx=256, draft_n_max=4, verbose=False)
        tokens = list(islice(llm.generate(llm.tokenize(b"def read(self, path):"), temp=0.0), 64))
        found.append((tokens, llm.last_stats.drafted, llm.last_stats.accepted))
        llm.close()
    assert found[0] == found[1]
    return found[0]


def test_bundled_head(tmp_path):
    try:
        target, head = bundled_pair()
    except FileNotFoundError as e:
        pytest.skip(str(e))
    _, _, accepted = check_round_trip(target, head, tmp_path)
    assert accepted > 0


def test_tiny_head(tmp_path):
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "tiny.gguf", target, norm_before_residual=True, ftype="f16")
    check_round_trip(target.path, head.path, tmp_path)
