"""Target decodes, samples and takes back, and no argument ends the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import BusyError, ContextFullError, Eagle3Error, ModelFileError, _core
from lowlevel import LowLevel
from tiny import write_target
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_VOCAB = 320


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", n_vocab=N_VOCAB).path


@pytest.fixture
def low(path):
    with LowLevel(path, [1, 2]) as low:
        yield low


def test_logits_are_those_of_llama_cpp(low):
    low.target.decode([5, 6, 7], 0)
    logits = low.target.logits_all(3)
    for row in range(3):
        data = llama_cpp.llama_get_logits_ith(low.ctx, row)
        np.testing.assert_array_equal(logits[row], np.ctypeslib.as_array(data, (N_VOCAB,)))
        np.testing.assert_array_equal(logits[row], low.target.logits(row))
        assert low.target.argmax(row) == logits[row].argmax()
    assert low.target.n_vocab == N_VOCAB
    assert low.target.tokens.tolist() == [5, 6, 7]
    assert low.target.pos.tolist() == [0, 1, 2]
    assert low.target.t_decode_us > 0


def test_greedy_sampler_equals_argmax(low):
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    try:
        low.target.decode(list(range(40)), 0)
        address = ctypes.cast(chain, ctypes.c_void_p).value
        assert [low.target.sample(address, i) for i in range(40)] == [low.target.argmax(i) for i in range(40)]
    finally:
        llama_cpp.llama_sampler_free(chain)


def test_decode_takes_back(low):
    """Continuing after a rejected tail gives what a fresh context gives."""
    low.target.decode([1, 2, 3, 4, 5, 6], 0)
    low.target.decode([9, 8], 3)
    rows, logits = low.tap.rows, low.target.logits_all(2)
    low.target.truncate(0)
    low.target.decode([1, 2, 3], 0)
    low.target.truncate(3)
    low.target.decode([9, 8], 3)
    # if ggml multiplies three rows differently from six, as on ARM, the cells before differ by rounding
    np.testing.assert_allclose(low.tap.rows, rows, rtol=tolerance(1e-5), atol=tolerance(1e-5))
    np.testing.assert_allclose(low.target.logits_all(2), logits, rtol=tolerance(1e-5), atol=tolerance(1e-5))
    assert low.target.pos.tolist() == [3, 4]


def test_only_the_last_logits(low):
    low.target.decode([1, 2, 3], 0, logits_all=False)
    last = low.target.logits(2)
    with pytest.raises(ValueError, match="row 1 has no logits"):
        low.target.argmax(1)
    low.target.decode([1, 2, 3], 0)
    np.testing.assert_allclose(low.target.logits(2), last, rtol=tolerance(1e-5), atol=tolerance(1e-5))


@pytest.mark.parametrize(
    ("tokens", "n_past", "error", "message"),
    [
        ([], 0, ValueError, "no tokens"),
        ([1, -1], 0, ValueError, "token -1 is not in the target's vocabulary of 320"),
        ([N_VOCAB], 0, ValueError, "token 320 is not in"),
        ([1] * 65, 0, ValueError, "65 tokens do not fit into one batch of n_batch = 64"),
        ([1], -1, ValueError, "n_past must not be negative"),
        ([1] * 4, 253, ContextFullError, "4 tokens after 253 do not fit into the context of n_ctx = 256"),
        ([1], 2**31 - 1, ContextFullError, "do not fit"),
        ([1], 4, Eagle3Error, "position 4 would leave a gap: the target's memory ends at 3"),
    ],
)
def test_bad_decode(low, tokens, n_past, error, message):
    low.target.decode([1, 2, 3], 0)
    low.target.decode([3], 2)
    expected = low.target.logits(0)
    with pytest.raises(error, match=message):
        low.target.decode(tokens, n_past)
    low.target.decode([3], 2)  # the target can continue
    np.testing.assert_allclose(low.target.logits(0), expected, rtol=tolerance(1e-5), atol=tolerance(1e-5))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (([1], [0], [[0]], [True, True]), ValueError, "1 tokens, but 1 positions, 1 sequence lists and 2 logits flags"),
        (([1], [-1], [[0]], [True]), ValueError, "position -1 of token 0"),
        (([1], [1000], [[0]], [True]), ContextFullError, "position 1000 of token 0"),
        (([1], [0], [[]], [True]), ValueError, "token 0 needs one or more"),
        (([1], [0], [[0, 0]], [True]), ValueError, "token 0 needs one or more"),
        (([1], [0], [[1]], [True]), ValueError, "sequence id 1 is out of range: the context has n_seq_max = 1"),
        (([1], [5], [[0]], [True]), Eagle3Error, "invalid batch"),
    ],
)
def test_bad_batch(low, batch, error, message):
    low.target.decode([1, 2, 3], 0)
    with pytest.raises(error, match=message):
        low.target.decode_batch(*batch)
    low.target.decode([4], 3)
    assert low.tap.rows.shape[0] == 1


def test_bad_rows(low):
    with pytest.raises(Eagle3Error, match="nothing was decoded"):
        low.target.argmax(0)
    with pytest.raises(Eagle3Error, match="has no logits for row -1"):
        low.target.logits(-1)
    low.target.decode([1, 2, 3], 0)
    for row in (-2, 3, 1000):
        with pytest.raises(ValueError, match=f"row {row} is out of range"):
            low.target.logits(row)
    with pytest.raises(ValueError, match="sampler must not be null"):
        low.target.sample(0, 0)
    with pytest.raises(ValueError, match="4 rows were asked for, the last batch had 3"):
        low.target.logits_all(4)
    np.testing.assert_array_equal(low.target.logits(-1), low.target.logits(2))


def test_full_context(path):
    with LowLevel(path, n_ctx=256, n_batch=256) as low:
        low.target.decode([1] * 256, 0)
        with pytest.raises(ContextFullError):
            low.target.decode([1], 256)
        low.target.decode([1], 255)


def test_sliding_window_cannot_go_far_back(tmp_path):
    """A cache that keeps only the window lacks the cells that an earlier position needs."""
    model = write_target(tmp_path / "gemma3.gguf", "gemma3", n_layer=6)
    window = {"gemma3.attention.sliding_window": 64}
    with LowLevel(model.path, n_ctx=8192, n_batch=512, n_ubatch=512, swa_full=False, kv_overrides=window) as low:
        rng = np.random.default_rng(0)
        for n_past in range(0, 4096, 512):
            low.target.decode(rng.integers(0, 300, 512).tolist(), n_past, logits_all=False)
        assert low.target.truncate(4090) == 4090
        with pytest.raises(Eagle3Error, match=r"cannot go back from position 4090 to 100: it ends at 0 now.*swa_full"):
            low.target.decode([1], 100)
        assert low.target.n_past() == 0


def test_null_addresses(low):
    with pytest.raises(ValueError, match="must not be null"):
        _core.Target(0, low.model)
    with pytest.raises(ValueError, match="must not be null"):
        _core.Target(low.ctx, 0)
    with pytest.raises(ValueError, match="must not be null"):
        low.tap.attach(0)


def test_context_of_another_model(low, path):
    with LowLevel(path) as other, pytest.raises(ValueError, match="belongs to another model"):
        _core.Target(low.ctx, other.model)


def test_closed(low):
    low.target.close()
    for call in (lambda: low.target.decode([1], 0), lambda: low.target.truncate(0), lambda: low.target.argmax(0)):
        with pytest.raises(Eagle3Error, match="the target is closed"):
            call()


def test_two_threads(low):
    """The second thread gets an exception, the first one its result."""
    n_busy, n_done = 0, 0

    def work() -> None:
        nonlocal n_done
        while n_done < 50:
            with contextlib.suppress(BusyError):
                low.target.decode([1] * 64, 0)
                n_done += 1

    low.target.decode([1] * 64, 0)
    expected = low.target.argmax(5)
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        try:
            assert low.target.argmax(5) == expected
        except BusyError:
            n_busy += 1
    thread.join()
    assert n_done == 50
    assert n_busy > 0


def test_read_target(path):
    info = _core.read_target(path)
    assert (info.arch, info.n_layer, info.n_embd, info.n_vocab) == ("llama", 4, 64, N_VOCAB)
    assert "llama n_layer=4" in repr(info)


def damage(path, tmp_path, change) -> str:
    with open(path, "rb") as f:
        data = bytearray(f.read())
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(change(data))
    return str(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "empty"),
        (lambda data: b"\x00" * 100, "not a readable GGUF"),
        (lambda data: b"GGUF", "not a readable GGUF"),
        (lambda data: data[:100], "not a readable GGUF"),
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: data[:-1], "truncated"),
        (lambda data: data.replace(b"llama.block_count", b"llama.block_xxxxx"), "llama.block_count"),
        (lambda data: data.replace(b"general.architecture", b"general.xxxxxxxxxxxx"), "general.architecture"),
    ],
)
def test_damaged_files(path, tmp_path, change, message):
    with pytest.raises(ModelFileError, match=message):
        _core.read_target(damage(path, tmp_path, change))


def test_no_file(tmp_path):
    """The error says what the folder has instead."""
    with pytest.raises(ModelFileError, match=rf"no such file: the folder '{tmp_path}' has no GGUF files"):
        _core.read_target(str(tmp_path / "nothing.gguf"))
    with pytest.raises(ModelFileError, match=rf"no such file: the folder '{tmp_path}/none' does not exist"):
        _core.read_target(str(tmp_path / "none" / "a.gguf"))
    for i in range(7):
        (tmp_path / f"{i}.gguf").touch()
    with pytest.raises(ModelFileError, match=r"a folder, which has '0.gguf', '1.gguf', .*'4.gguf', \.\.\.: give"):
        _core.read_target(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        _core.read_target(str(tmp_path / "pipe"))


def test_damage_anywhere_in_the_header(path, tmp_path):
    """Any wrong byte gives a description or an exception, never the end of the process."""
    with open(path, "rb") as f:
        data = f.read()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.gguf"
    n_errors = 0
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, 4000, 3):
            damaged[at] = rng.integers(0, 256)
        broken.write_bytes(damaged)
        try:
            _core.read_target(str(broken))
        except ModelFileError:
            n_errors += 1
    assert n_errors > 0
