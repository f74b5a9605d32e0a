"""Every mistake raises an exception that names the error, changes nothing, and leaves the object usable."""

from __future__ import annotations

import gc
import math
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest

from gguf_raw import STR, U32, RawFile, spoil
from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama, IncompatibleDraftError, ModelFileError, errors
from llama_cpp_eagle3.models import bundled_pair
from llama_cpp_eagle3_heads.convert.output import add_keys
from loading import OPTIONS, load, load_plain, path_of, take
from tiny import CORRUPTIONS, corrupt, with_template, write_head

EXPECTED: dict[str, list[int]] = {}


def check_good_call(target: Any, head: Any) -> None:
    """Check that a good pair loads and generates the right text."""
    if path_of(target) not in EXPECTED:
        with closing(load_plain(target)) as plain:
            EXPECTED[path_of(target)] = take(plain, [1, 2, 3], 12)
    with closing(load(target, head)) as llm:
        assert take(llm, [1, 2, 3], 12) == EXPECTED[path_of(target)]


# a file without a head is a model, which may draft by itself: see test_simple.py
@pytest.mark.parametrize("name", [c.name for c in CORRUPTIONS if c.name != "wrong_arch"])
def test_bad_head(name: str, tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    expected = corrupt(name, path, tiny_target)
    with pytest.raises(getattr(errors, expected.error or "Eagle3Error")) as info:
        load(tiny_target, path)
    assert isinstance(info.value, ValueError)
    for word in (str(path), *expected.words):
        assert word in str(info.value)
    if expected.error == "IncompatibleDraftError" and not name.startswith("d2t"):
        assert tiny_target.path in str(info.value)
    check_good_call(tiny_target, tiny_head)


def spoil_target(kind: str, path: Path, target: Any) -> None:
    data = Path(target.path).read_bytes()
    if kind == "zero_length":
        path.write_bytes(b"")
    elif kind == "not_gguf":
        path.write_bytes(b"PK\x03\x04" + bytes(4096))
    elif kind == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "truncated_header":
        path.write_bytes(data[:300])
    elif kind == "wrong_arch":
        write_head(path, target)
    elif kind == "unknown_arch":
        path.write_bytes(data.replace(b"llama", b"lamma"))


@pytest.mark.parametrize(
    "kind", ["missing", "zero_length", "not_gguf", "truncated", "truncated_header", "wrong_arch", "unknown_arch"]
)
@pytest.mark.parametrize("with_head", [True, False])
def test_bad_target(kind: str, with_head: bool, tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    spoil_target(kind, path, tiny_target)
    with pytest.raises(ValueError, match=kind) as info:
        load(path, tiny_head if with_head else None)
    if kind in ("missing", "zero_length", "not_gguf", "truncated_header", "wrong_arch"):
        assert isinstance(info.value, ModelFileError)
    check_good_call(tiny_target, tiny_head)


def test_other_tokenizer_of_the_same_size(tiny_target: Any, tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    write_head(path, tiny_target)
    data = path.read_bytes()
    for i in range(10):  # ten of 320 tokens have other texts
        data = data.replace(b"<|unused_%d|>" % i, b"<|number_%d|>" % i)
    path.write_bytes(data)
    with pytest.raises(IncompatibleDraftError, match=r"10 of 320 tokens differ, the first one: token .*number_0"):
        load(tiny_target, path)


def test_too_many_or_wrong_layers(tiny_target: Any, tiny_head: Any) -> None:
    with pytest.raises(IncompatibleDraftError, match="reads 3 hidden states, draft_target_layers names 2"):
        load(tiny_target, tiny_head, draft_target_layers=[1, 2])
    with pytest.raises(IncompatibleDraftError, match=r"after 17 layers.*has 4 layers"):
        load(tiny_target, tiny_head, draft_target_layers=[1, 2, 17])
    with pytest.raises(IncompatibleDraftError, match=r"9 layers.*0 to 4 can be read, and 5 is"):
        load(tiny_target, draft_target_layers=[9])
    check_good_call(tiny_target, tiny_head)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_contxt": 512}, TypeError, "unexpected keyword argument 'n_contxt'. Did you mean 'n_ctx'"),
        ({"draft_nmax": 2}, TypeError, "Did you mean 'draft_n_max'"),
        ({"n_gqa": 8}, TypeError, "n_gqa"),
        ({"draft_n_max": -1}, ValueError, "expected draft_n_max in 0..2147483647, found -1"),
        ({"draft_n_min": 4}, ValueError, "draft_n_min=4, draft_n_max=3"),
        ({"rope_freq_base": -1.0}, ValueError, "expected rope_freq_base in 0.0..1000000000.0"),
        ({"yarn_ext_factor": math.inf}, ValueError, "expected yarn_ext_factor in -1.0.."),
        ({"learn_dir": 5}, ValueError, "expected learn_dir to be a text or PathLike or None, found 5"),
        ({"lora": "a.gguf"}, ValueError, "expected lora to be a list"),
        ({"lora": [("a.gguf", 3e38)]}, ValueError, "lora: expected a number of at most 1e9 as the scale of 'a.gguf'"),
        ({"draft_p_min": 1.5}, ValueError, "expected draft_p_min in 0..1, found 1.5"),
        ({"draft_n_max": 512}, ValueError, "needs batches of 513 tokens, n_ctx=512"),
        ({"n_ctx": 3}, ValueError, "n_ctx=3 and n_batch=512 leave 3"),
        ({"n_ctx": -5}, ValueError, "n_ctx=-5"),
        ({"n_batch": 0}, ValueError, "n_batch=0"),
        ({"embedding": True}, ValueError, "embedding and draft_model_path exclude each other"),
        ({"vocab_only": True}, ValueError, "vocab_only and draft_model_path exclude each other"),
        ({"draft_model": lambda ids: ids}, ValueError, "draft_model and draft_model_path exclude each other"),
        ({"draft_type_k": 999}, ValueError, "999"),
        ({"draft_model": "head.gguf", "draft_model_path": None}, TypeError, "draft_model_path"),
        ({"draft_type": 999}, ValueError, "999"),
        ({"draft_type": 1}, ValueError, "draft_type: expected one of f32 (0), bf16 (30)"),
        ({"lora_path": "nowhere.gguf"}, ModelFileError, "nowhere.gguf' is missing: lora takes LoRA adapters in GGUF"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_bad_arguments(options: Any, error: type[Exception], message: str, tiny_target: Any, tiny_head: Any) -> None:
    with pytest.raises(error) as info:
        load(tiny_target, tiny_head, **options)
    assert message in str(info.value)
    check_good_call(tiny_target, tiny_head)


def test_prompts_that_have_no_room(tiny_target: Any, tiny_head: Any) -> None:
    """There is one kind of error, which is also the ValueError that Llama raises."""
    assert issubclass(errors.ContextFullError, ValueError)
    with closing(load(tiny_target, tiny_head, n_ctx=256, chat_format="chatml")) as llm:
        text = "a b " * 200
        calls = [
            lambda: llm(text),
            lambda: list(llm.create_completion(text, stream=True)),
            lambda: llm.create_completion([1] * 256),
            lambda: llm.create_chat_completion([{"role": "user", "content": text}]),
            lambda: llm.generate_batch([text]),
        ]
        for call in calls:
            with pytest.raises(errors.ContextFullError, match=r"Use a larger n_ctx"):
                call()
        with pytest.raises(ValueError, match="logprobs is not supported"):
            llm("a", logprobs=1)  # other errors stay the same
        assert llm("a", max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_texts_that_cannot_fit_are_not_tokenized(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds: no text has fewer tokens than that, and a longer one is refused before tokenizing."""
    with closing(load(tiny_target, n_ctx=256, chat_format="auto")) as llm:
        vocab, n_ctx = llm.engine.vocab, llm.engine.n_ctx
        pieces = [vocab.piece(t, special=True).decode("latin-1") for t in range(vocab.n_tokens)]
        longest = max(pieces, key=len)
        for text in (longest * 50, "return self" * 50, "\u00e9\u4e2d" * 50, " " * 50):
            least = vocab.n_tokens_least(text)
            assert 0 < least <= len(llm.tokenize(text.encode(), add_bos=False, special=True))
        assert llm.generate_batch([longest * (n_ctx - 4)], max_tokens=1)[0].prompt_tokens  # it fits, though it is long

        calls: list[bytes] = []
        monkeypatch.setattr(llm._model, "tokenize", lambda text, *_: calls.append(text) or [1] * len(text))
        text = "a" * (len(longest) * n_ctx * 4)
        for call in (
            lambda: llm(text),
            lambda: llm("a", suffix=text),
            lambda: llm.generate_batch([text]),
            lambda: llm.create_chat_completion([{"role": "user", "content": text}]),
        ):
            with pytest.raises(errors.ContextFullError, match=r"a text of at least \d+ tokens does not fit"):
                call()
        assert not [c for c in calls if len(c) > 1000]


def _strips(file: RawFile) -> None:
    """Let special tokens swallow the whitespace after them."""
    file.set("general.name", STR, b"phi-3")
    tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
    for i, name in enumerate((b"</s>", b"<unk>", b"<s>")):
        token = tokens.index(f"<|unused_{i}|>".encode())
        tokens[token], types[token] = name, gguf.TokenType.CONTROL


def _drops(file: RawFile) -> None:
    """Drop bytes that have no token."""
    tokens = file.get("tokenizer.ggml.tokens")
    for byte in (b"z", b"Q", "\u00c3".encode()):
        tokens[tokens.index(byte)] = b"<|none|>" + byte


def _is_of(name: bytes) -> Callable[[RawFile], None]:
    def change(file: RawFile) -> None:
        file.set("tokenizer.ggml.model", STR, name)
        file.set("tokenizer.ggml.unknown_token_id", U32, 0)

    return change


@pytest.mark.parametrize(("change", "dropped"), [(_strips, " \n"), (_drops, "zQ"), (_is_of(b"rwkv"), "")])
def test_other_vocabularies_have_a_bound_too(
    change: Callable[[RawFile], None], dropped: str, tiny_target: Any, tmp_path: Path
) -> None:
    path = tmp_path / "target.gguf"
    shutil.copy(path_of(tiny_target), path)
    with closing(load(spoil(path, change), n_ctx=256)) as llm:
        vocab, n_ctx = llm.engine.vocab, llm.engine.n_ctx
        some = "a" + (dropped or "b") * 9
        for text in (some * 30, "</s>" + " \n" * 200, "</s> a" * 30, "zQ" * 50, "return the self" * 9, "\u00e9 z" * 20):
            assert vocab.n_tokens_least(text) <= len(llm.tokenize(text.encode(), add_bos=False, special=True)), text
        if dropped:
            assert vocab.n_tokens_least(dropped * 1000) == 0  # it may fit
            assert len(llm.tokenize(("</s>" + dropped * 1000).encode(), add_bos=False, special=True)) < 10
        with pytest.raises(errors.ContextFullError, match=r"a text of at least \d+ tokens does not fit"):
            llm("a" * (n_ctx * 40), max_tokens=1)


def test_python_does_not_read_a_vocabulary_token_by_token(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 150,000 tokens that would take the first request of a server half a second."""
    with closing(load(tiny_target, n_ctx=256)) as llm:
        vocab = llm.engine.vocab
        eog = {t for t in range(vocab.n_tokens) if llama_cpp.llama_vocab_is_eog(vocab.pointer, t)}

        def never(*args: object) -> None:
            raise AssertionError("a call for one token")

        for name in ("llama_vocab_is_eog", "llama_vocab_get_attr", "llama_vocab_get_text"):
            monkeypatch.setattr(llama_cpp.llama_cpp, name, never)
        assert vocab.eog == eog != set()
        assert vocab.n_tokens_least("a" * 1000) > 0


@pytest.mark.parametrize("name", [b"bert", b"t5"])
def test_vocabularies_that_cannot_have_a_bound(name: bytes, tiny_target: Any, tmp_path: Path) -> None:
    """A text of any length may be one token."""
    path = tmp_path / "target.gguf"
    shutil.copy(path_of(tiny_target), path)
    with closing(load(spoil(path, _is_of(name)), n_ctx=64)) as llm:
        for n in (100, 10_000):
            text = "\u0416" * n
            assert llm.engine.vocab.n_tokens_least(text) == 0
            assert len(llm.tokenize(text.encode(), add_bos=False)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_one_text_is_no_list_of_prompts(stream: bool, tiny_target: Any) -> None:
    with closing(load(tiny_target)) as llm, pytest.raises(TypeError, match=r"takes a list of prompts, found one str"):
        llm.generate_batch("import os", stream=stream)  # type: ignore[call-overload]


def test_nothing_stays_behind(tiny_target: Any, tmp_path: Path) -> None:
    """Everything that a failed constructor had loaded is freed, while the exception is still held."""
    freed = []
    closed = llama_cpp._internals.LlamaModel.close

    def close(self: Any) -> None:
        freed.append(self.path_model)
        closed(self)

    path = tmp_path / "nan.gguf"
    corrupt("nan_matrix", path, tiny_target)
    gc.collect()  # so that no model of an earlier test is freed meanwhile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp._internals.LlamaModel, "close", close)
        with pytest.raises(ModelFileError) as info:  # unchecked, else the error is found before the target is loaded
            load(tiny_target, path, checked=False)
        assert freed == [tiny_target.path]
    assert info.value is not None


def test_a_processor_that_raises(tiny_target: Any, tiny_head: Any) -> None:
    """ctypes would print the error and continue."""

    class Stop(Exception):
        pass

    with closing(load(tiny_target, tiny_head)) as llm:
        for n in (1, 3, 6):
            calls = []

            def process(ids: np.ndarray, scores: np.ndarray, n: int = n, calls: Any = calls) -> np.ndarray:
                calls.append(len(ids))
                if len(calls) == n:
                    raise Stop
                return scores

            tokens = []
            processors = llama_cpp.LogitsProcessorList([process])
            with pytest.raises(Stop), closing(llm.generate([1, 2, 3], logits_processor=processors)) as stream:
                tokens.extend(stream)
            assert len(calls) == n
            assert llm.n_tokens == 3 + n - 1
        for bad in ([lambda ids, scores: scores[:5]], [lambda ids: ids], [lambda ids, scores: "x"]):
            with pytest.raises((ValueError, TypeError)):
                take(llm, [1, 2, 3], 2, logits_processor=llama_cpp.LogitsProcessorList(bad))
    check_good_call(tiny_target, tiny_head)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_criteria_that_raise(tiny_target: Any, tiny_head: Any, n: int) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        calls = []

        def stop(ids: np.ndarray, scores: np.ndarray) -> bool:
            calls.append(len(ids))
            return 1 // (n - len(calls)) < 0

        with pytest.raises(ZeroDivisionError):
            take(llm, [1, 2, 3], 20, stopping_criteria=llama_cpp.StoppingCriteriaList([stop]))
        assert llm.engine.stepper.opened is None
        assert llm.drafters[0].n_past() == llm.n_tokens == 3 + n - 1


def test_bad_tokens(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        for tokens in ([1, 2, 320], [-1], [2**40]):
            with pytest.raises((ValueError, TypeError, OverflowError)):
                take(llm, tokens, 1)
        with pytest.raises(ValueError, match="at least one token"):
            take(llm, [], 1)
        assert take(llm, np.array([1, 2, 3]), 2) == take(llm, [1, 2, 3], 2)  # type: ignore[arg-type]
        stream = llm.generate([1, 2, 3])
        next(stream)
        with pytest.raises(ValueError, match=r"expected tokens in 0..319, found 9999 to 9999"):
            stream.send([9999])
    check_good_call(tiny_target, tiny_head)


def test_closed(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head)
    stream = llm.generate([1, 2, 3])
    next(stream)
    llm.eval([4])
    rows = llm.features
    kept = np.array(rows)
    llm.close()
    llm.close()
    np.testing.assert_array_equal(rows, kept)  # the rows outlive the model
    for use in (lambda: next(stream), lambda: llm.eval([1]), llm.save_state, llm.reset, lambda: llm.features):
        with pytest.raises(Eagle3Error, match="closed"):
            use()


def test_freed_without_closing(tiny_target: Any, tiny_head: Any) -> None:
    """A smoke test: the process goes on."""
    for _ in range(3):
        llm = load(tiny_target, tiny_head)
        stream = llm.generate([1, 2, 3])
        next(stream)
        del llm
        next(stream)
        del stream
    gc.collect()


def test_wrong_vocabulary_names_both_numbers(tiny_target: Any, tmp_path: Path) -> None:
    head = write_head(tmp_path / "h.gguf", replace(tiny_target, n_vocab=352))
    with pytest.raises(IncompatibleDraftError, match=r"352.*320"):
        load(tiny_target, head)


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_that_takes_texts_alone(stream: bool, tiny_target: Any, tmp_path: Path) -> None:
    """An image, and a text in parts, are errors that say what would take them."""
    template = "{% for message in messages %}{{ 'a' + message['content'] }}{% endfor %}"
    target = with_template(tiny_target, tmp_path / "model.gguf", template)
    text, image = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}

    def ask(llm: Eagle3Llama, content: Any, **options: Any) -> Any:
        return llm.create_chat_completion(
            [{"role": "user", "content": content}], max_tokens=1, stream=stream, **options
        )

    with closing(load(target)) as llm:
        with pytest.raises(ValueError, match=r"no projector was loaded \(mmproj_path=, or"):
            ask(llm, [text, image])
        with pytest.raises(ValueError, match=r"takes no content in parts .*chat_format='auto'"):
            ask(llm, [text])
        with pytest.raises(TypeError, match="temperatur"):
            ask(llm, [text], temperatur=1)
        assert next(ask(llm, "a")) if stream else ask(llm, "a")["choices"]
    with closing(load(tiny_target)) as llm, pytest.raises(ValueError, match="image input is not supported"):
        ask(llm, [image])  # a template that would write Python's word for it
    with closing(load(target, chat_format="auto")) as llm:
        assert next(ask(llm, [text])) if stream else ask(llm, [text])["choices"]


def test_positional_arguments_and_paths(tiny_target: Any, tiny_head: Any) -> None:
    llm = Eagle3Llama(Path(tiny_target.path), draft_model_path=Path(tiny_head.path), **OPTIONS)
    assert llm.model_path == tiny_target.path
    llm.close()
    with pytest.raises(TypeError):
        Eagle3Llama(tiny_target.path, tiny_head.path, "chain")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arch", "keys", "words"),
    [
        ("clip", {"general.type": "mmproj"}, r"a projector .*mmproj_path takes it"),
        ("llama", {"general.type": "adapter"}, r"a LoRA adapter: .*--lora takes it"),
        ("", {"general.type": "imatrix"}, "an importance matrix"),
        ("controlvector", {}, "a control vector"),
        ("dflash", {"dflash.hyper_connection.count": 4}, "DeepSeek-V4's layers .* does not draft here yet"),
    ],
)
def test_files_of_other_kinds(arch: str, keys: dict[str, Any], words: str, tiny_target: Any, tmp_path: Path) -> None:
    """The error names the kind of file and its use, in every place where such a file is given."""
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, keys)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=words):
        load(tiny_target, path)
    with pytest.raises(ModelFileError, match="a block drafter, not a target" if arch == "dflash" else words):
        load(path)


def test_an_override_of_another_type_is_said(caplog: pytest.LogCaptureFixture) -> None:
    overrides = {"llama.context_length": "many", "llama.rope.freq_base": 1e4}
    Eagle3Llama(str(bundled_pair()[0]), n_ctx=64, kv_overrides=overrides, verbose=False).close()
    said = [record.getMessage() for record in caplog.records if "kv_overrides" in record.getMessage()]
    assert said == ["kv_overrides (--override-kv): not used for key 'llama.context_length', expected int but got str"]
