"""Bad heads: each is refused with a clear exception that names the file, and the next good one loads."""

import gc
import os

import numpy as np
import pytest

from drafting import compare, draft_chain, make_drafter
from head_variants import YARN
from llama_cpp_eagle3 import _core, errors
from reference import ReferenceHead
from tiny import CORRUPTIONS, corrupt, patch_key, write_head


@pytest.mark.parametrize("name", [c.name for c in CORRUPTIONS])
def test_bad_head_is_refused(name, tiny_target, tiny_head, model_address, tmp_path):
    model = model_address(tiny_target.path)
    path = tmp_path / f"{name}.gguf"
    expected = corrupt(name, path, tiny_target)
    with pytest.raises(getattr(errors, expected.error or "Eagle3Error")) as info:
        _core.Eagle3Drafter(str(path), model, 256, n_gpu_layers=0)
    assert isinstance(info.value, ValueError)
    for word in (str(path), *expected.words):
        assert word in str(info.value)
    drafter = make_drafter(tiny_head, model)
    assert compare(drafter, ReferenceHead(tiny_head), (1,)).agrees(1e-4)


@pytest.mark.parametrize("name", ["missing", "zero_length", "not_gguf", "truncated_header", "wrong_arch"])
def test_read_head_refuses_too(name, tiny_target, tmp_path):
    path = tmp_path / f"{name}.gguf"
    corrupt(name, path, tiny_target)
    with pytest.raises(errors.ModelFileError, match=name):
        _core.read_head(str(path))


def test_a_directory_is_no_head(tiny_target, model_address, tmp_path):
    with pytest.raises(errors.ModelFileError):
        _core.Eagle3Drafter(str(tmp_path), model_address(tiny_target.path), 256)


def test_truncated_anywhere(tiny_target, tiny_head, model_address, tmp_path):
    model = model_address(tiny_target.path)
    with open(tiny_head.path, "rb") as file:
        data = file.read()
    path = tmp_path / "cut.gguf"
    for size in [*range(1, 200, 7), *range(200, len(data), 4801), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(errors.ModelFileError):
            _core.Eagle3Drafter(str(path), model, 256)


# llama-cpp-python's logger decodes the damaged names that llama.cpp logs, if an earlier test has let it print
@pytest.mark.filterwarnings(
    "ignore:Exception ignored on calling ctypes callback function. <function llama_log_callback"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_bytes_changed_anywhere_in_the_header(tiny_target, tiny_head, model_address, tmp_path, rng):
    """Damage either is found or does no harm: it never crashes."""
    model = model_address(tiny_target.path)
    with open(tiny_head.path, "rb") as file:
        data = bytearray(file.read())
    path = tmp_path / "damaged.gguf"
    n_found = 0
    # keys, then descriptions of tensors; the vocabulary lies between them
    places = [
        *range(4, data.find(b"tokenizer.ggml.model")),
        *range(data.find(b"fc.weight") - 8, data.find(b"d2t") + 30),
    ]
    for _ in range(300):
        damaged = bytearray(data)
        for place in rng.choice(places, rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            drafter = _core.Eagle3Drafter(str(path), model, 256)
            width = len(drafter.boundaries) * drafter.head.n_embd_tgt
            drafter.process_rows(np.ones((20, width), np.float32), list(range(20)), 0)
            draft_chain(drafter, 1, 3)
        except errors.Eagle3Error:
            n_found += 1
    assert n_found > 50


def test_nothing_leaks_from_bad_loads(tiny_target, model_address, tmp_path):
    model = model_address(tiny_target.path)
    path = tmp_path / "bad.gguf"
    corrupt("nan_matrix", path, tiny_target)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def load_badly(n: int) -> None:
        for _ in range(n):
            with pytest.raises(errors.ModelFileError):
                _core.Eagle3Drafter(str(path), model, 256)

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    load_badly(20)
    gc.collect()  # free the objects that other tests have left
    before, n_files = resident(), len(os.listdir("/proc/self/fd"))
    load_badly(200)
    assert resident() - before < 8 * 2**20
    assert len(os.listdir("/proc/self/fd")) == n_files


BAD_SIZES = {
    "block_count": [0, 2, 2**31, 2**32 - 1],
    "embedding_length": [0, 63, 2**31],
    "feed_forward_length": [0, 95, 2**32 - 1],
    "attention.head_count": [0, 3, 2**31],
    "attention.head_count_kv": [0, 3, 4, 8],
    "attention.key_length": [0, 15, 2**20],
    "attention.value_length": [8],
    "rope.dimension_count": [0, 7, 18, 2**31],
    "target_hidden_size": [0, 65],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD_SIZES.items() for v in values])
def test_bad_size_is_refused(key, value, tiny_target, model_address, tmp_path):
    path = tmp_path / "bad_size.gguf"
    write_head(path, tiny_target)
    patch_key(path, f"eagle3.{key}", value)
    with pytest.raises(errors.Eagle3Error, match=r"bad_size\.gguf"):
        _core.Eagle3Drafter(str(path), model_address(tiny_target.path), 256)


BAD_VALUES = {
    "negative_boundary": {"boundaries": (-1, 2, 3)},
    "unknown_activation": {"hidden_act": "relu_squared"},
    "unknown_rope_scaling": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "scaling_factor_0": {"rope_scaling": {"rope_type": "linear", "factor": 0.0}},
    "scaling_factor_nan": {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}},
    "yarn_without_a_context": {"rope_scaling": YARN | {"original_max_position_embeddings": 0}},
    "eps_negative": {"rms_eps": -1.0},
    "eps_nan": {"rms_eps": float("nan")},
    "theta_0": {"rope_theta": 0.0},
    "theta_nan": {"rope_theta": float("nan")},
    "logit_scale_infinite": {"logit_scale": float("inf")},
    "norms_exclude_each_other": {"fc_norm": True, "norm_before_fc": True},
    "d2t_with_shared_lm_head": {"own_output": False},
    "mask_token_outside": {"mask_token": 5000},
    "mask_token_outside_own_embedding": {"mask_token": 5000, "own_embd": True},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_value_is_refused(name, tiny_target, model_address, tmp_path):
    path = tmp_path / f"{name}.gguf"
    write_head(path, tiny_target, **BAD_VALUES[name])
    with pytest.raises(errors.Eagle3Error, match=name):
        _core.Eagle3Drafter(str(path), model_address(tiny_target.path), 256)


def test_a_message_may_quote_damaged_bytes(tiny_target, model_address, tmp_path):
    path = tmp_path / "damaged.gguf"
    write_head(path, tiny_target, hidden_act="gelu")
    path.write_bytes(path.read_bytes().replace(b"gelu", b"ge\xefu"))
    with pytest.raises(errors.ModelFileError, match="hidden_act"):
        _core.Eagle3Drafter(str(path), model_address(tiny_target.path), 256)
