"""Files that would end the process are refused by name; good files are accepted."""

from __future__ import annotations

import struct
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np
import pytest

from adapters import write_factors
from gguf_raw import ARRAY, BOOL, F32, I32, STR, U32, RawFile, Tensor, parse, serialize, set_key, spoil
from llama_cpp_eagle3 import Eagle3Error, ModelFileError, _core
from llama_cpp_eagle3.files import model_file
from llama_cpp_eagle3.files.model_file import file_errors
from loading import load, take
from random_arch import write_random_arch

U16 = 2


def remove_tensors(ending: bytes) -> Any:
    """Return a change that removes all tensors whose names end so."""

    def change(file: RawFile) -> None:
        file.tensors = [t for t in file.tensors if not t.name.endswith(ending)]

    return change


def tensor_of(file: RawFile, name: bytes) -> Tensor:
    return next(t for t in file.tensors if t.name == name)


def change_token(i: int, text: bytes) -> Any:
    def change(file: RawFile) -> None:
        file.get("tokenizer.ggml.tokens")[i] = text

    return change


def retype(name: bytes, kind: int) -> Any:
    """Return a change that gives a tensor another type."""

    def change(file: RawFile) -> None:
        tensor = tensor_of(file, name)
        tensor.type = kind
        tensor.resize()

    return change


@pytest.mark.parametrize(
    ("row", "change", "words"),
    [
        ("llama", set_key("block_count", 0), "block_count 0"),
        ("llama", set_key("block_count", 513), "1 to 512.*found.* 513"),
        ("llama", set_key("nextn_predict_layers", 4), "nextn_predict_layers 4"),
        ("llama", set_key("context_length", 1 << 31), "context_length.*found 2147483648"),
        ("llama", set_key("rope.freq_base", float("inf"), F32), "rope.freq_base.*a number above 0, found inf"),
        ("llama", set_key("rope.freq_base", 0.0, F32), "rope.freq_base.*a number above 0, found 0"),
        ("llama", set_key("rope.scaling.factor", -1.0, F32), "rope.scaling.factor.*at least 0, found -1"),
        ("llama", set_key("anything", float("nan"), F32), "key 'llama.anything': expected a number, found NaN"),
        ("llama", lambda f: f.set("x.y", ARRAY, [1.0, float("nan")], F32), "key 'x.y': expected a number, found NaN"),
        ("llama", lambda f: f.set("split.no", U16, 2), "expected the first file of a split model, found file 3 of"),
        ("llama", set_key("rope.scaling.type", b"ntk", STR), "rope.scaling.type.*longrope, found 'ntk'"),
        ("mixtral", set_key("expert_used_count", 5), "expert_used_count.*the 4 experts.*found 5"),
        ("mixtral", set_key("expert_used_count", 0), "expert_used_count.*expected 1 to the 4.*found 0"),
        ("llama", set_key("expert_used_count", 1), "expert_used_count.*the 0 experts.*found 1"),
        ("mixtral", set_key("expert_count", 1025), "expert_count.*0 to 1024, found 1025"),
        ("mixtral", set_key("expert_group_count", 4), "expert_group_count.*fewer groups.*found 4 and 4"),
        ("mixtral", set_key("expert_group_count", 3), "expert_group_count.*divisor of the 4 experts.*found 3"),
        ("mixtral", set_key("expert_group_count", 2), "expert_group_used_count.*fewer than the 2 groups.*found 0"),
        ("llama", set_key("expert_group_count", 2), "expert_group_count.*found 2 and 0"),
        ("qwen35", set_key("full_attention_interval", 0), "full_attention_interval.*1 or more, found 0"),
        ("mamba2", set_key("ssm.group_count", 0), "ssm.group_count.*1 or more, found 0"),
        ("rwkv7", set_key("wkv.head_size", 128), "wkv.head_size.*at most the embedding_length 64, found 128"),
        ("falcon-h1", remove_tensors(b"ssm_conv1d.bias"), "tensor 'blk.0.ssm_conv1d.bias' is missing"),
        ("llama", change_token(7, b"he"), "tokens 7 and 256 have the same text 'he'"),
        ("llama", set_key("rope.dimension_count", 30), "invalid n_rot: 30, expected 32"),
        ("qwen3", set_key("rope.dimension_count", 16), r"n_embd_head == n_rot.*failed.*must be rotated"),
        ("gemma3", set_key("attention.layer_norm_rms_epsilon", -1.0, F32), "epsilons of norms.* >= 0, found -1"),
        ("qwen3", set_key("attention.layer_norm_rms_epsilon", float("nan"), F32), "expected a number, found NaN"),
        ("qwen2vl", set_key("rope.dimension_sections", [0] * 4, ARRAY), "dimension_sections.*not all of them 0"),
        ("spark2_5", set_key("attention.sliding_window_pattern", [0] * 3, ARRAY), "is_swa_any.*sliding_window_pattern"),
        ("llama", retype(b"blk.1.attn_norm.weight", 24), "'blk.1.attn_norm.weight' has the type i8.*MUL"),
        ("llama", retype(b"blk.1.attn_q.weight", 27), "'blk.1.attn_q.weight' has the type i64.*MUL_MAT"),
        ("llama", retype(b"token_embd.weight", 28), "type f64"),
        ("mamba2", set_key("ssm.group_count", 3), "wrong shape"),
        ("llama", remove_tensors(b"output_norm.weight"), "'output_norm.weight' not found"),
    ],
)
def test_numbers_that_contradict_each_other(tmp_path: Path, row: str, change: Any, words: str) -> None:
    good = write_random_arch(tmp_path, row)
    bad = spoil(good, change)
    with pytest.raises(ModelFileError, match=words) as info:
        load(bad)
    assert str(bad) in str(info.value)
    with closing(load(good)) as llm:  # nothing stays behind
        assert len(take(llm, [1, 2, 3], 3)) == 3


def test_overrides_count(tmp_path: Path) -> None:
    """A value that kv_overrides correct is right, one that they spoil is wrong."""
    good = write_random_arch(tmp_path, "mixtral")
    key = "llama.expert_used_count"
    bad = spoil(good, set_key("expert_used_count", 9))
    with closing(load(bad, kv_overrides={key: 2})) as llm:
        assert len(take(llm, [1, 2, 3], 3)) == 3
    with pytest.raises(ModelFileError, match="found 9"):
        load(good, kv_overrides={key: 9})


def test_one_number_for_each_layer(tmp_path: Path) -> None:
    good = write_random_arch(tmp_path, "mixtral")
    load(spoil(good, set_key("expert_used_count", [2, 2, 2], ARRAY))).close()
    with pytest.raises(ModelFileError, match="found 5"):
        load(spoil(good, set_key("expert_used_count", [2, 5, 1], ARRAY)))


def add_experts(n: int, value: float) -> Any:
    """Return a change that adds experts, of which one is chosen by a weight of that value."""

    def change(file: RawFile) -> None:
        file.set("llama.expert_count", U32, n)
        for tensor in file.tensors:
            if (tensor.dims[-1] == 4 and b"exps" in tensor.name) or b"gate_inp" in tensor.name:
                tensor.dims[-1] = n
                tensor.resize()
        router = tensor_of(file, b"blk.1.ffn_gate_inp.weight")
        router.data = router.data[:-4] + struct.pack("<f", value)

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_routers_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    """std::sort leaves its range when more than 16 values are compared with NaN."""
    good = write_random_arch(tmp_path, "mixtral")
    load(spoil(good, add_experts(32, 1.0))).close()
    with pytest.raises(ModelFileError, match=r"'blk.1.ffn_gate_inp.weight', which chooses experts, holds NaN"):
        load(spoil(good, add_experts(32, value)))


def test_logits_that_are_no_numbers(tmp_path: Path) -> None:
    """Greedy decoding takes the best logit that is a number; samplers would sort NaN."""

    def change(file: RawFile) -> None:
        output = tensor_of(file, b"output.weight")
        output.data = (
            np.full(len(output.data) // 8, np.nan, np.float32).tobytes() + output.data[len(output.data) // 2 :]
        )

    path = spoil(write_random_arch(tmp_path, "llama"), change)
    with closing(load(path)) as llm:
        assert len(take(llm, [1, 2, 3], 3)) == 3
        assert len(take(llm, [1, 2, 3], 3, temp=0.8, top_k=40)) == 3
        for options in ({"top_k": 0}, {"mirostat_mode": 2}):
            with pytest.raises(Eagle3Error, match="no numbers"):
                take(llm, [1, 2, 3], 3, temp=0.8, **options)


def make_spm(file: RawFile) -> None:
    """Give the file a SentencePiece vocabulary that lacks most byte tokens."""
    tokens = file.get("tokenizer.ggml.tokens")
    tokens[:] = [
        b"<unk>",
        b"<s>",
        b"</s>",
        *(b"<0x%02X>" % i for i in range(64)),
        *(b"p%d" % i for i in range(len(tokens) - 67)),
    ]
    file.set("tokenizer.ggml.model", STR, b"llama")
    file.set("tokenizer.ggml.add_space_prefix", BOOL, 0)
    file.set("tokenizer.ggml.scores", ARRAY, [0.0] * len(tokens), F32)
    file.set("tokenizer.ggml.token_type", ARRAY, [2, 3, 3, *[6] * 64, *[1] * (len(tokens) - 67)], I32)


def test_vocabularies_that_lack_something(tmp_path: Path) -> None:
    good = write_random_arch(tmp_path, "llama")
    with closing(load(spoil(good, make_spm))) as llm:
        assert llm.tokenize(b"12", add_bos=False)
        with pytest.raises(ModelFileError, match=r"vocabulary lacks what llama.cpp needs to tokenize this text"):
            llm.tokenize(b"abc")
        assert len(take(llm, [1, 2, 3], 3)) == 3  # tokens work
    with closing(load(spoil(good, lambda f: f.set("tokenizer.ggml.model", STR, b"no_vocab")))) as llm:
        with pytest.raises(ModelFileError, match="Tokenizer not initialized"):
            llm.tokenize(b"abc")
        with pytest.raises(ModelFileError, match="turn token 3 into text"):
            llm.detokenize([3])
        with pytest.raises(ValueError, match="token 309: expected an id in 0 to 308"):
            llm.detokenize([309])
        assert len(take(llm, [1, 2, 3], 3)) == 3


def test_tokens_that_the_vocabulary_does_not_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = "tokenizer.ggml.bos_token_id"
    path = spoil(write_random_arch(tmp_path, "llama"), lambda f: f.set(key, U32, 4_000_000_000))
    load(path).close()
    (said,) = [r.getMessage() for r in caplog.records if key in r.getMessage()]
    assert said.startswith(f"'{path}': key '{key}': expected one of 309 tokens, found 4000000000: llama.cpp takes")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Nothing of a file moves the cursor of a terminal, and an error is not as long as a name."""

    def change(file: RawFile) -> None:
        file.set("general.name", STR, b"\xff")
        file.tensors[1].name = b"\x1b[31m\n\xff"

    path = spoil(write_random_arch(tmp_path, "llama"), change)
    assert _core.read_target(str(path)).name == "\ufffd"
    with pytest.raises(ModelFileError) as info:
        load(path)
    assert str(info.value).isprintable()
    path = spoil(path, lambda f: f.set("general.architecture", STR, b"\xff" + b"x" * 100_000))
    with pytest.raises(ModelFileError, match="block_count' is missing") as info:
        load(path)
    assert len(str(info.value)) < 5000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b"PK\3\4" + b[4:], r"invalid magic characters: 'PK\?\?', expected 'GGUF'.*fetch it again"),
        (lambda b: b[:4] + struct.pack(">I", 3) + b[8:], r"mismatch between the host and model endianness"),
        (lambda b: b[:4] + struct.pack("<I", 4) + b[8:], r"version 4 but this software only supports up to version 3"),
        (lambda b: b[:8] + struct.pack("<Q", 1 << 62) + b[16:], r"number of tensors is \d+ but must be in"),
        (lambda b: b[:1000], r"\(1000 bytes\): .*truncated"),
    ],
    ids=["magic", "endian", "version", "count", "cut"],
)
def test_files_that_are_no_gguf(tmp_path: Path, change: Any, words: str) -> None:
    path = write_random_arch(tmp_path, "llama")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ModelFileError, match=words) as info:
        load(path)
    assert str(path) in str(info.value)


def test_templates_and_texts_that_are_none(tmp_path: Path) -> None:
    good = write_random_arch(tmp_path, "llama")
    with pytest.raises(ModelFileError, match=r"tokenizer.chat_template' is no template"):
        load(spoil(good, lambda f: f.set("tokenizer.chat_template", STR, b"{% for %}")))
    with pytest.raises(ModelFileError, match="special token is no UTF-8"):
        load(spoil(good, change_token(308, b"\xff\xfe")))
    # llama.cpp's own writer leaves such keys out, and other writers may too
    load(spoil(good, lambda f: f.set("tokenizer.ggml.add_bos_token", BOOL, 0))).close()


def test_positions_beyond_a_table(tmp_path: Path) -> None:
    path = write_random_arch(tmp_path, "gpt2")
    load(path, n_ctx=512).close()
    with pytest.raises(Eagle3Error, match=r"n_ctx = 768, but.*'position_embd.weight'\) with 512 rows.*n_ctx = 512"):
        load(path, n_ctx=768)


def split(path: Path, n_bytes: int | None = None) -> Path:
    """Split a model into two files, the second of which may be cut short."""
    file = parse(path.read_bytes())
    n = len(file.tensors) // 2
    for i, tensors in enumerate((file.tensors[:n], file.tensors[n:])):
        part = RawFile(list(file.fields) if i == 0 else [], tensors)
        part.set("split.no", U16, i)
        part.set("split.count", U16, 2)
        part.set("split.tensors.count", I32, len(file.tensors))
        data = serialize(part)
        path.with_name(f"part-{i + 1:05d}-of-00002.gguf").write_bytes(data if i == 0 else data[:n_bytes])
    return path.with_name("part-00001-of-00002.gguf")


def test_models_in_several_files(tmp_path: Path) -> None:
    good = write_random_arch(tmp_path, "llama")
    path = split(good)
    with closing(load(path)) as llm, closing(load(good)) as whole:
        assert take(llm, [1, 2, 3], 3) == take(whole, [1, 2, 3], 3)
    second = tmp_path / "part-00002-of-00002.gguf"
    split(good, n_bytes=40000)
    with pytest.raises(ModelFileError, match=r"part-00002-of-00002.gguf': truncated"):
        load(path)
    file = RawFile()
    file.set("split.no", STR, b"1")
    second.write_bytes(serialize(file))
    with pytest.raises(ModelFileError, match=r"part-00002-of-00002.gguf': key 'split.no'"):
        load(path)
    second.unlink()
    with pytest.raises(ModelFileError, match=r"part-00002-of-00002.gguf': no such file"):
        load(path)


@pytest.mark.parametrize("name", ["model.gguf", "part-00001-of-00003.gguf", "part-00001-of-00002.gguf.1"])
def test_a_first_file_by_another_name(tmp_path: Path, name: str) -> None:
    path = split(write_random_arch(tmp_path, "llama")).rename(tmp_path / name)
    with pytest.raises(ModelFileError, match=f"{name}': this is the first of 2 files .*-00001-of-00002.gguf; rename"):
        load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.set("split.no", U16, 0), "'split.no': expected 1, of file 2"),
        (lambda file: file.set("split.count", U16, 3), "'split.count': expected 2, found 3"),
        (lambda file: file.set("split.tensors.count", I32, 3), "'split.tensors.count': found another number"),
        (lambda file: setattr(file, "tensors", file.tensors[1:]), "all files have 93 tensors, expected 94"),
        (lambda file: setattr(file.tensors[0], "name", b"token_embd.weight"), "tensor 'token_embd.weight' is in anoth"),
    ],
)
def test_a_later_file_of_another_model(tmp_path: Path, change: Any, words: str) -> None:
    path = split(write_random_arch(tmp_path, "llama"))
    spoil(tmp_path / "part-00002-of-00002.gguf", change).rename(tmp_path / "part-00002-of-00002.gguf")
    with pytest.raises(ModelFileError, match=f"part-00002-of-00002.gguf': .*{words}.* fetch all 2 files anew"):
        load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.set("split.count", I32, 2), "'split.count': expected a number of type u16, found i32"),
        (lambda file: file.set("split.no", I32, 0), "'split.no': expected a number of type u16, found i32"),
        (lambda file: file.remove("split.no"), "'split.no': expected a number of type u16, found none"),
        (lambda file: file.set("split.tensors.count", U16, 94), "'split.tensors.count': .* of type i32, found u16"),
        (lambda file: file.remove("split.tensors.count"), "'split.tensors.count': .* of type i32, found none"),
    ],
)
def test_a_first_file_whose_numbers_have_other_types(tmp_path: Path, change: Any, words: str) -> None:
    path = split(write_random_arch(tmp_path, "llama"))
    spoil(path, change).rename(path)
    with pytest.raises(ModelFileError, match=f"part-00001-of-00002.gguf': key {words}; split the model anew"):
        load(path)


@pytest.mark.parametrize(
    ("tensor", "a", "b", "words"),
    [
        ("blk.0.ffn_up_exps.weight", (4, 2, 64), (4, 48, 2), ""),
        ("blk.0.ffn_up_exps.weight", (2, 64), (48, 2), "up_exps.weight.lora_a': expected 4 matrices, .* found 1"),
        ("blk.0.ffn_up_exps.weight", (4, 2, 64), (3, 48, 2), "up_exps.weight.lora_b': expected 4 matrices, .* found 3"),
        ("blk.0.attn_q.weight", (4, 2, 64), (64, 2), "attn_q.weight.lora_a': expected 1 matrices, .* found 4"),
    ],
)
def test_adapters_of_mixtures(tmp_path: Path, tensor: str, a: Any, b: Any, words: str) -> None:
    """One matrix for all experts ended the process, and too many were an error of the model."""
    lora = write_factors(tmp_path / "lora.gguf", "qwen3moe", tensor, a, b)
    with pytest.raises(ModelFileError, match=f"lora.gguf': tensor .*{words}") if words else nullcontext():
        load(write_random_arch(tmp_path, "qwen3moe"), lora_path=lora).close()


def test_types_of_a_heads_matrices(tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    path.write_bytes(Path(tiny_head.path).read_bytes())
    with pytest.raises(ModelFileError, match=r"'blk.0.attn_q.weight': ggml multiplies no matrices of the type i64"):
        load(tiny_target, spoil(path, retype(b"blk.0.attn_q.weight", 27)))


@pytest.mark.parametrize(
    ("name", "dims", "words"),
    [
        (b"output.weight", [64, 96, 0], r"'output.weight': expected shape \[64, 96\], found \[64, 96, 0\]"),
        (b"d2t", [0], "'d2t': expected 320 draft tokens, found 0|'output.weight': expected shape"),
        (b"d2t", [96, 0], "'d2t': expected 96 draft tokens, found 0"),
    ],
)
def test_empty_tensors_of_heads(
    tiny_target: Any, tiny_head: Any, tmp_path: Path, name: bytes, dims: list[int], words: str
) -> None:
    def change(file: RawFile) -> None:
        tensor = tensor_of(file, name)
        tensor.dims = dims
        tensor.resize()

    path = tmp_path / "head.gguf"
    path.write_bytes(Path(tiny_head.path).read_bytes())
    with pytest.raises(ModelFileError, match=words):
        load(tiny_target, spoil(path, change))


def test_reasons_of_llama_cpp(tmp_path: Path) -> None:
    """A guard names the reason; after it all is as before."""
    path = spoil(write_random_arch(tmp_path, "qwen3"), set_key("expert_used_count", 3))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    with _core.LoadGuard() as guard:
        assert guard.reason == ""
        assert not llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert guard.asserted
    assert guard.reason.startswith("llama-model.cpp:")
    with _core.LoadGuard() as guard:
        assert not llama_cpp.llama_model_load_from_file(b"nowhere.gguf", params)
    assert "nowhere.gguf" in guard.reason
    assert not guard.asserted


def test_a_context_that_cannot_be_made_is_not_the_files_fault() -> None:
    def fail() -> None:
        llama_cpp.llama_model_load_from_file(b"nowhere.gguf", llama_cpp.llama_model_default_params())
        raise ValueError("Failed to create llama_context")

    with (
        pytest.raises(ValueError, match=r"Failed to create llama_context: .*nowhere\.gguf") as info,
        file_errors("x.gguf"),
    ):
        fail()
    assert not isinstance(info.value, ModelFileError)


_RUNS = ("a", "A", "!", " ", "\u4e2d")


@pytest.mark.parametrize(
    "pre", [b"gpt-4o", b"tekken", b"deepseek-v3", b"deepseek-llm", b"deepseek-coder", b"minimax-m2"]
)
def test_regular_expressions_do_not_overflow_the_stack(pre: bytes, tmp_path: Path) -> None:
    """Regular expressions recurse once per character of a run; on a large enough stack nothing else changes."""

    def change(file: RawFile) -> None:
        file.set("tokenizer.ggml.pre", STR, pre)

    path = spoil(write_random_arch(tmp_path, "llama"), change)
    with closing(load(path)) as llm:
        vocab = llm.engine.vocab
        for unit in _RUNS:
            text = unit * 40_000
            tokens = llm.tokenize(text.encode(), add_bos=False)
            assert b"".join(map(vocab.piece, tokens)) == text.encode()
        for unit in ("a", "!", " "):  # llama.cpp's own result, where its stack suffices
            text = (unit * 1500).encode()
            assert llm.tokenize(text, add_bos=False) == llama_tokens(llm, text)


def test_characters_in_a_row_are_bounded(tmp_path: Path) -> None:
    """A larger stack would be more memory than machines have."""
    with closing(load(write_random_arch(tmp_path, "llama"))) as llm:
        with pytest.raises(ValueError, match=r"at most 1048576 characters in a row .* found 1048577"):
            llm.tokenize(b"a" * (2**20 + 1))
        text = b"a b" * (2**20 // 3 + 1)  # not in one run
        assert llm.detokenize(llm.tokenize(text, add_bos=False)) == text


def test_work_on_a_stack_for_a_text() -> None:
    """The work runs on a thread of its own if the text needs that, and its errors arrive."""
    threads = []
    for n in (10, 10_000):
        _core.with_stack_for(b"a" * n, lambda: threads.append(threading.get_ident()))
        with pytest.raises(ZeroDivisionError):
            _core.with_stack_for(b"a" * n, lambda: 1 // 0)
    assert threads[0] == threading.get_ident() != threads[1]


def llama_tokens(llm: Any, text: bytes) -> list[int]:
    """Return the tokens of a text by llama.cpp alone."""
    ids = (llama_cpp.llama_token * len(text))()
    vocab = llama_cpp.llama_model_get_vocab(llm.model)
    n = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), False, False)
    return list(ids[:n])


@pytest.mark.parametrize(
    ("reason", "asserted", "error"),
    [
        ("ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed", True, r"no memory for it\)\. .*smaller n_ctx"),
        ("unable to allocate CPU buffer", False, r"unable to allocate CPU buffer\. .*smaller n_ctx"),
        ("x.cpp:1: GGML_ASSERT(alloc) failed", True, "cannot load it: .* The file is damaged"),
        ("wrong magic", False, "cannot load it: wrong magic. The file is damaged"),
    ],
)
def test_no_memory_is_no_fault_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str, asserted: bool, error: str
) -> None:
    guard = SimpleNamespace(reason=reason, asserted=asserted, tensors=[])
    monkeypatch.setattr(model_file, "LoadGuard", lambda: nullcontext(guard))
    with pytest.raises(ValueError, match=error), file_errors(str(tmp_path / "a.gguf")):
        raise ValueError("Failed to load model")
