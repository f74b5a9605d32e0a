"""Bad input gives a clear error that names the expected and the found; exit code 2; nothing is written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoints import (
    FAMILIES,
    Family,
    top_config,
    write_family,
    write_safetensors,
    write_sharded,
    write_torch_file,
)
from llama_cpp_eagle3 import Eagle3Error, IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert, encoding, inspect, output
from llama_cpp_eagle3_heads.convert.checkpoint import read_checkpoint
from llama_cpp_eagle3_heads.convert.head import describe
from llama_cpp_eagle3_heads.convert.target import read_target_model
from tiny import write_head, write_target

PLAIN = FAMILIES["angelslim"]


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("errors") / "target.gguf", n_layer=8)


@pytest.fixture
def head(tmp_path, target):
    """Return a good checkpoint in tmp_path/head."""
    head = write_head(tmp_path / "unused.gguf", target, boundaries=(2, 4, 5))
    write_family(tmp_path / "head", PLAIN, head)
    return head


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def rewrite(folder, weights):
    write_safetensors(folder / "model.safetensors", weights, "bf16")


def without(weights, name):
    return {key: value for key, value in weights.items() if key != name}


def q_rows(folder, head):
    rewrite(folder, head.weights | {"layers.0.self_attn.q_proj.weight": np.zeros((60, 128))})


def whole_numbers(name, dtype):
    """Weights that a quantizer wrote, without a word of it in the config."""

    def make(folder, head):
        rewrite(folder, head.weights | {name: np.ones(head.weights[name].shape, dtype)})

    return make


def truncate(folder, head):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def truncate_header(folder, head):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:200])


def remove_shard(folder, head):
    (folder / "model.safetensors").unlink()
    write_sharded(folder, head.weights, "bf16", 3)
    (folder / "model-00002-of-00003.safetensors").unlink()


def traversal(name):
    def make(folder, head):
        (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
        index = {"weight_map": dict.fromkeys(head.weights, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return make


def shard_lies(folder, head):
    write_sharded(folder, head.weights, "bf16")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["extra.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def evil_pickle(folder, head):
    (folder / "model.safetensors").unlink()
    evil = b"cos\nsystem\n(X\x0c\x00\x00\x00touch /x/y/ztR0"
    write_torch_file(folder / "pytorch_model.bin", head.weights, "bf16", evil)


def truncated_pickle(folder, head):
    (folder / "model.safetensors").unlink()
    write_torch_file(folder / "pytorch_model.bin", head.weights, "bf16")
    data = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(data[: len(data) // 2])


def config_text(text):
    return lambda folder, head: (folder / "config.json").write_text(text)


def header_text(text):
    data = len(text).to_bytes(8, "little") + text.encode()
    return lambda folder, head: (folder / "model.safetensors").write_bytes(data)


def config_change(**changes):
    return lambda folder, head: edit_config(folder, **changes)


def tensors(change):
    return lambda folder, head: rewrite(folder, change(head.weights))


def add(name, shape=(4, 4)):
    return tensors(lambda w: w | {name: np.zeros(shape)})


def drop(name):
    return tensors(lambda w: without(w, name))


BAD = {
    "no_config": (lambda folder, head: (folder / "config.json").unlink(), "config.json': no such file"),
    "config_not_json": (config_text("{"), "not readable as JSON"),
    "rope_theta_0": (config_change(rope_theta=0), "key 'rope_theta': expected a positive number, found 0"),
    "partial_0": (
        config_change(partial_rotary_factor=0),
        "'partial_rotary_factor': expected a positive number, found 0",
    ),
    "rope_theta_list": (config_change(rope_theta=[]), r"key 'rope_theta': expected a positive number, found \[\]"),
    "config_deep": (config_text('{"a":' * 50_000), "config.json': not readable as JSON: maximum recursion"),
    "header_deep": (
        header_text('{"a":' * 50_000),
        "model.safetensors': not a safetensors file: its header is not JSON",
    ),
    "header_inf": (
        header_text('{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}'),
        "tensor 'a': its description in the header is broken",
    ),
    "config_not_a_table": (config_text("[1]"), "expected a table, found list"),
    "no_weights": (lambda folder, head: (folder / "model.safetensors").unlink(), "no weights found"),
    "missing_tensor": (drop("layers.0.mlp.up_proj.weight"), "'layers.0.mlp.up_proj.weight' is missing"),
    "missing_norm": (drop("norm.weight"), "'norm.weight' is missing"),
    "missing_bias": (config_change(attention_bias=True), "'layers.0.self_attn.q_proj.bias' is missing"),
    "missing_fc_norm": (config_change(fc_norm=True), "'fc_norm.0.weight' is missing"),
    "missing_input_norm": (config_change(norm_before_fc=True), "'input_norm.weight' is missing"),
    "shape": (add("layers.0.mlp.down_proj.weight"), r"down_proj.weight': expected \[64, 96\], found \[4, 4\]"),
    "heads": (q_rows, r"q_proj.weight': expected 4 heads of 16 = 64 rows as config.json has it, found 60"),
    "hidden_size": (config_change(hidden_size=128), "hidden_size 128, the tensors are 64 wide"),
    "draft_vocab": (config_change(draft_vocab_size=95), r"expected 95 rows \(draft_vocab_size\), found 96"),
    "bad_number": (config_change(num_attention_heads="four"), "'num_attention_heads': expected a positive number"),
    "large_window": (
        config_change(sliding_window=1 << 32, use_sliding_window=True),
        "key 'sliding_window': expected a positive number, found 4294967296",
    ),
    "large_original": (
        config_change(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1 << 32}),
        "key 'original_max_position_embeddings': expected a positive number, found 4294967296",
    ),
    "bad_flag": (config_change(norm_output="yes"), "'norm_output': expected true or false"),
    "bad_activation": (config_change(hidden_act="relu"), "expected silu or a gelu, found 'relu'"),
    "bad_ids": (config_change(eagle_aux_hidden_state_layer_ids="2"), "expected a list of layers"),
    "unknown_tensor": (add("layers.0.self_attn.sinks"), "'layers.0.self_attn.sinks' is no part of an EAGLE-3 head"),
    "same_twice": (
        tensors(lambda w: w | {"midlayer.hidden_norm.weight": w["layers.0.hidden_norm.weight"]}),
        "are the same thing twice",
    ),
    "truncated": (truncate, "truncated: tensor '.*' ends at byte"),
    "truncated_header": (truncate_header, "truncated: the header ends at byte"),
    "not_safetensors": (
        lambda folder, head: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"),
        "not a safetensors file",
    ),
    "lfs_pointer": (
        lambda folder, head: (folder / "model.safetensors").write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
        ),
        "a pointer of Git LFS and not the file itself",
    ),
    "nan": (
        tensors(
            lambda w: (
                w
                | {
                    "fc.weight": np.where(
                        np.arange(w["fc.weight"].size).reshape(w["fc.weight"].shape) < 2, np.nan, w["fc.weight"]
                    )
                }
            )
        ),
        r"model.safetensors': tensor 'fc.weight': 2 of \d+ numbers are NaN or infinite",
    ),
    "other_name": (
        tensors(lambda w: {name.replace("gate_proj", "gate"): values for name, values in w.items()}),
        "'layers.0.mlp.gate_proj.weight' is missing",
    ),
    "missing_shard": (remove_shard, r"shard 'model-00002-of-00003.safetensors' is missing \(1 of 3 are\)"),
    "traversal": (traversal("../secret.safetensors"), "refused: shard '../secret.safetensors'"),
    "traversal_absolute": (traversal("/secret.safetensors"), "refused: shard"),
    "traversal_windows": (traversal("..\\secret.safetensors"), "refused: shard"),
    "shard_lies": (shard_lies, "tensor 'extra.weight' is missing"),
    "evil_pickle": (evil_pickle, "refused: its pickle asks for 'os.system'"),
    "truncated_pickle": (truncated_pickle, "not a readable checkpoint"),
    "mla": (add("layers.0.self_attn.kv_a_proj_with_mqa.weight"), "an MLA head"),
    "p_eagle": (add("mask_hidden", (1, 192)), "a P-EAGLE head"),
    "p_eagle_config": (config_change(parallel_drafting=True), "a P-EAGLE head"),
    "parallel_heads": (config_change(eagle_config={"parallel_draft_step": 4}), "parallel draft heads"),
    "numbers": (whole_numbers("lm_head.weight", np.int64), "tensor 'lm_head.weight': expected floats, found i64"),
    "bools": (whole_numbers("fc.weight", np.bool_), "tensor 'fc.weight': expected floats, found bool"),
    "quantized": (config_change(quantization_config={"quant_method": "fp8"}), "the checkpoint is quantized"),
    "eagle_1": (
        tensors(
            lambda w: (
                without(w, "layers.0.hidden_norm.weight")
                | {"layers.0.self_attn.q_proj.weight": np.zeros((64, 64)), "fc.weight": np.zeros((64, 128))}
            )
        ),
        "not an EAGLE-3 head: its q_proj reads 64 values",
    ),
    "target_width": (config_change(target_hidden_size=128), "width 128, those of '.*' are 64 wide"),
    "fc_width": (add("fc.weight", (64, 200)), "was trained for another model"),
    "too_deep": (config_change(eagle_aux_hidden_state_layer_ids=[2, 4, 9]), "boundary 9, the target has layers 0..8"),
}
INCOMPATIBLE = {"target_width", "fc_width", "too_deep"}


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoint(name, tmp_path, target, head, capsys):
    spoil, words = BAD[name]
    spoil(tmp_path / "head", head)
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "out.gguf"
    with pytest.raises(IncompatibleDraftError if name in INCOMPATIBLE else ModelFileError, match=words) as e:
        convert(tmp_path / "head", target.path, path)
    assert "\n" not in str(e.value)
    assert main(["convert", str(tmp_path / "head"), "--target", target.path, "-o", str(path)]) == 2
    err = capsys.readouterr().err
    assert err == f"llama-cpp-eagle3: error: {e.value}\n"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_config_of_windows_with_keys_without_values(tmp_path, head, target):
    expected = convert(tmp_path / "head", target.path, tmp_path / "expected.gguf").path
    edit_config(tmp_path / "head", quantization_config=None, rope_scaling=None, eagle_config=None)
    config = tmp_path / "head" / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes().replace(b", ", b",\r\n"))
    found = convert(tmp_path / "head", target.path, tmp_path / "found.gguf").path
    assert found.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_no_such_draft(path, tmp_path, target):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelFileError, match=r"no such folder|not a folder"):
        convert(tmp_path / path, target.path, tmp_path / "out.gguf")


def test_bad_target(tmp_path, head, target):
    with pytest.raises(ModelFileError, match="no such file"):
        convert(tmp_path / "head", tmp_path / "nowhere.gguf", tmp_path / "out.gguf")
    with pytest.raises(ModelFileError):
        convert(tmp_path / "head", tmp_path / "head" / "config.json", tmp_path / "out.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"config.json': no such file"):
        convert(tmp_path / "head", tmp_path / "empty", tmp_path / "out.gguf")
    (tmp_path / "empty" / "config.json").write_text('{"hidden_size": 64}')
    with pytest.raises(ModelFileError, match="'num_hidden_layers': expected a positive size, found None"):
        convert(tmp_path / "head", tmp_path / "empty", tmp_path / "out.gguf")


def test_bad_output(tmp_path, head, target):
    with pytest.raises(ModelFileError, match="no such folder to write to"):
        convert(tmp_path / "head", target.path, tmp_path / "nowhere" / "out.gguf")
    with pytest.raises(ModelFileError, match="is a folder"):
        convert(tmp_path / "head", target.path, tmp_path / "head")
    with pytest.raises(ValueError, match="outtype"):
        convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="q2_k")


def test_output_is_no_input_and_no_device(tmp_path, head, target, capsys):
    """A file that would be lost stays as it was; nothing is left beside it."""
    os.mkfifo(tmp_path / "fifo")
    shutil.copy(target.path, tmp_path / "target.gguf")
    convert(tmp_path / "head", target.path, tmp_path / "head.gguf")
    (tmp_path / "text").write_text("some text")
    (tmp_path / "link").symlink_to("head.gguf")

    def contents():
        return {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    before = contents()
    folder, model, made, text = (str(tmp_path / name) for name in ("head", "target.gguf", "head.gguf", "text"))
    weights = next(str(file) for file in (tmp_path / "head").iterdir() if file.suffix == ".safetensors")
    for argv in (
        ["quantize", made, made, "q8_0"],
        ["quantize", str(tmp_path / "link"), made, "q8_0"],
        ["quantize", made, str(tmp_path / "link"), "q8_0"],
        ["quantize", made, text, "q8_0", "--draft-vocab", "12", "--target", model, "--vocab-text", text],
        ["convert", folder, "--target", model, "-o", model],
        ["convert", folder, "--target", model, "-o", weights],
        ["convert", folder, "--target", model, "-o", f"{folder}/config.json"],
        ["convert", folder, "--target", model, "-o", text, "--probe", text],
    ):
        assert main(argv) == 2, argv
        assert "it is the input" in capsys.readouterr().err, argv
    for name in ("/dev/null", str(tmp_path / "fifo")):
        for argv in (["quantize", made, name, "q8_0"], ["convert", folder, "--target", model, "-o", name]):
            assert main(argv) == 2, argv
            assert "no regular file" in capsys.readouterr().err, argv
    assert contents() == before
    # an earlier run's GGUF in the folder is no input
    for _ in range(2):
        assert main(["convert", folder, "--target", model, "-o", f"{folder}/head.gguf"]) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_run_leaves_nothing(tmp_path, head, target, monkeypatch, error):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "out.gguf").write_text("what was there before")
    calls = []

    def encode(values, kind):
        calls.append(kind)
        if len(calls) == 5:
            raise error
        return encoding.encode(values, kind)

    monkeypatch.setattr(output, "encode", encode)
    with pytest.raises(error):
        convert(tmp_path / "head", target.path, folder / "out.gguf")
    assert [path.name for path in folder.iterdir()] == ["out.gguf"]
    assert (folder / "out.gguf").read_text() == "what was there before"


def test_values_beyond_f16(tmp_path, target):
    head = write_head(tmp_path / "unused.gguf", target, boundaries=(2, 4, 5))
    big = head.weights["fc.weight"].copy()
    big[0, 0] = 1e5
    family = Family(lambda h: top_config(h, "Eagle3LlamaForCausalLM"), dtype="f32")
    write_family(tmp_path / "head", family, head, {"fc.weight": big})
    with pytest.raises(RuntimeError, match="beyond the range of f16"):
        convert(tmp_path / "head", target.path, tmp_path / "out.gguf")
    convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="bf16")


def test_inspect_and_exit_codes(tmp_path, head, target, capsys):
    other = write_target(tmp_path / "other.gguf", n_layer=8, n_embd=32)
    convert(tmp_path / "head", target.path, tmp_path / "out.gguf")
    for path in (str(tmp_path / "head"), str(tmp_path / "out.gguf")):
        assert main(["inspect", path]) == 0
        assert "vLLM/AngelSlim" in capsys.readouterr().out
        assert main(["inspect", path, "--target", target.path]) == 0
        assert "fits target.gguf" in capsys.readouterr().out
        assert main(["inspect", path, "--target", other.path]) == 2
        assert "no: " in capsys.readouterr().out
        assert isinstance(inspect(path, other.path).misfit, IncompatibleDraftError)
    assert main(["inspect", target.path]) == 0
    assert "a small model (llama)" in capsys.readouterr().out


def test_needs_no_torch(tmp_path, head, target):
    """Torch, transformers and safetensors are not imported, even for pytorch_model.bin."""
    (tmp_path / "head" / "model.safetensors").unlink()
    write_torch_file(tmp_path / "head" / "pytorch_model.bin", head.weights, "bf16")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['safetensors'] = sys.modules['transformers'] = None\n"
        "from llama_cpp_eagle3_heads.convert import convert\n"
        f"convert({str(tmp_path / 'head')!r}, {target.path!r}, {str(tmp_path / 'out.gguf')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "out.gguf").is_file()


def test_what_torch_saves(tmp_path, head, target):
    torch = pytest.importorskip("torch")
    state = {
        name: torch.from_numpy(array.astype(np.int64 if name == "d2t" else np.float32))
        for name, array in head.weights.items()
    }
    (tmp_path / "head" / "model.safetensors").unlink()
    torch.save(state, tmp_path / "head" / "pytorch_model.bin")
    a = convert(tmp_path / "head", target.path, tmp_path / "a.gguf", outtype="f32").path.read_bytes()
    (tmp_path / "head" / "pytorch_model.bin").unlink()
    write_safetensors(tmp_path / "head" / "model.safetensors", head.weights, "f32")
    assert convert(tmp_path / "head", target.path, tmp_path / "b.gguf", outtype="f32").path.read_bytes() == a


GARBAGE = [0, -1, "x", [], {}, True, float("inf"), float("nan"), 10**30, [1], [[]], {"a": 1}, [2.5, 3, 4]]


@pytest.mark.parametrize("name", ["specforge", "speculators_sliding_window", "modelopt_v3"])
def test_garbage_in_the_config(name, tmp_path, target):
    """Any value of a key is read as something or refused by a line of ours."""
    family = FAMILIES[name]
    head = write_head(tmp_path / "unused.gguf", target, **family.variant)
    write_family(tmp_path / "head", family, head)
    path = tmp_path / "head" / "config.json"
    good = json.loads(path.read_text())
    places = [(*outer, key) for outer, table in tables(good) for key in table]
    target_model = read_target_model(Path(target.path))
    refused = 0
    for *outer, key in [*places, ("logit_scale",), ("partial_rotary_factor",), ("layer_types",), ("architectures",)]:
        for value in GARBAGE:
            config = json.loads(json.dumps(good))
            table = config
            for name in outer:
                table = table[name]
            table[key] = value
            path.write_text(json.dumps(config))
            try:
                describe(read_checkpoint(tmp_path / "head"), target_model)
            except Eagle3Error:
                refused += 1
    assert refused > 100


def tables(config, outer=()):
    yield outer, config
    for key, value in config.items():
        if isinstance(value, dict):
            yield from tables(value, (*outer, key))
