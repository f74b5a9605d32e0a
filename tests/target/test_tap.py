"""The feature tap gives right rows in both ways of reading, for every form of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Error, _core
from lowlevel import LowLevel
from tiny import Target, write_target
from tolerance import of_target, tolerance

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_LAYER = 4
ALL = list(range(N_LAYER))
KINDS = ["native", "callback"]


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 300, n).tolist()


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory) -> Target:
    return write_target(tmp_path_factory.mktemp("tap") / "target.gguf", n_layer=N_LAYER)


@pytest.fixture(scope="module")
def path(tiny_llama) -> str:
    return tiny_llama.path


def decode(path, kind, n_tokens=40, boundaries=ALL, **params):
    with LowLevel(path, boundaries, kind, **params) as low:
        assert low.tap.kind == kind
        low.target.decode(random_tokens(n_tokens), 0)
        return low.tap.rows


@pytest.mark.parametrize("n_ubatch", [1, 7, 16, 64])
@pytest.mark.parametrize("boundaries", [[0], [2], [0, 1, 2, 3], [3, 1]], ids=str)
def test_native_equals_callback(path, n_ubatch, boundaries):
    native = decode(path, "native", boundaries=boundaries, n_ubatch=n_ubatch)
    callback = decode(path, "callback", boundaries=boundaries, n_ubatch=n_ubatch)
    assert native.shape == (40, len(boundaries), 64)
    assert native.dtype == np.float32
    np.testing.assert_array_equal(native, callback)


@pytest.mark.parametrize("kind", KINDS)
def test_boundaries_keep_their_order(path, kind):
    rows = decode(path, kind, boundaries=[0, 1, 2, 3])
    np.testing.assert_array_equal(decode(path, kind, boundaries=[3, 0, 2]), rows[:, [3, 0, 2]])


def test_embedding_is_boundary_zero(tiny_llama):
    embd = tiny_llama.weights["model.embed_tokens.weight"]
    np.testing.assert_array_equal(decode(tiny_llama.path, "callback", boundaries=[0])[:, 0], embd[random_tokens(40)])


def test_last_boundary_and_norm(tiny_llama):
    """b = n_layer is the stream before the final norm, n_layer + 1 after it, and the logits follow from that one."""
    with LowLevel(tiny_llama.path, [N_LAYER, N_LAYER + 1], n_ubatch=16) as low:
        assert low.tap.kind == "callback"
        assert low.tap.needs_all_outputs
        # all tokens get logits, since the last layer drops the others
        low.target.decode(random_tokens(40), 0, logits_all=False)
        before, after = low.tap.rows[:, 0].astype(np.float64), low.tap.rows[:, 1].astype(np.float64)
        logits = low.target.logits_all(40)
    scale = np.sqrt((before**2).mean(-1, keepdims=True) + tiny_llama.rms_eps)
    normed = before / scale * tiny_llama.weights["model.norm.weight"]
    np.testing.assert_allclose(after, normed, rtol=tolerance(1e-5), atol=tolerance(1e-6))
    expected = after @ tiny_llama.weights["lm_head.weight"].T
    np.testing.assert_allclose(logits, expected, rtol=tolerance(1e-4), atol=tolerance(1e-4))


def test_native_does_not_need_all_outputs(path):
    with LowLevel(path, ALL, "native") as low:
        assert not low.tap.needs_all_outputs
        low.target.decode(random_tokens(8), 0, logits_all=False)
        assert low.tap.rows.shape[0] == 8
        low.target.logits(7)
        with pytest.raises(ValueError, match="row 0 has no logits"):
            low.target.logits(0)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma3"])
def test_other_architectures(tmp_path, arch):
    """Rows do not depend on how a batch is divided; boundary 0 of gemma3 is the scaled embedding."""
    model = write_target(tmp_path / "target.gguf", arch)
    boundaries = [0, 1, 3, 4]
    whole = decode(model.path, "callback", boundaries=boundaries)
    pieces = decode(model.path, "callback", boundaries=boundaries, n_ubatch=7)
    np.testing.assert_allclose(whole, pieces, rtol=of_target(1e-4), atol=of_target(1e-5))
    embd = model.weights["model.embed_tokens.weight"][random_tokens(40)]
    scale = np.sqrt(model.n_embd) if arch == "gemma3" else 1.0
    np.testing.assert_allclose(whole[:, 0], embd * scale, rtol=1e-6)
    if arch == "qwen3":
        np.testing.assert_array_equal(decode(model.path, "native", boundaries=boundaries[:3]), whole[:, :3])


# Several sequences in one batch: (token, position, sequence). Without a unified cache llama.cpp evaluates equally many
# tokens of each sequence at a time, so that rows come in another order than the batch has.


def interleaved(lengths: list[int], seed: int) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    which = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    pos = [0] * len(lengths)
    batch = []
    for seq in which.tolist():
        batch.append((int(rng.integers(0, 4)), pos[seq], seq))  # few tokens: equal ones in several sequences
        pos[seq] += 1
    return batch


def decode_batch(path, kind, batches, **params):
    with LowLevel(path, [0, 2, 3], kind, **params) as low:
        rows = []
        for batch in batches:
            token, pos, seq = (list(column) for column in zip(*batch, strict=True))
            low.target.decode_batch(token, pos, [[s] for s in seq], [i % 3 == 0 for i in range(len(seq))])
            rows.append(low.tap.rows)
        return rows


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("n_ubatch", [2, 5, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_several_sequences(path, kv_unified, n_ubatch, seed):
    params = {"n_seq_max": 4, "kv_unified": kv_unified, "n_ubatch": n_ubatch}
    batches = [interleaved([9, 3, 14, 6], seed)]
    # a second batch that continues, with sequences in another order
    ends = [9, 3, 14, 6]
    batches.append([(t, p + ends[s], s) for t, p, s in interleaved([2, 8, 1, 5], seed + 100)])
    native = decode_batch(path, "native", batches, **params)
    callback = decode_batch(path, "callback", batches, **params)
    for n, c in zip(native, callback, strict=True):
        np.testing.assert_array_equal(n, c)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_equal_single_runs(path, kind, kv_unified):
    batch = interleaved([9, 3, 14, 6], 5)
    (rows,) = decode_batch(path, kind, [batch], n_seq_max=4, kv_unified=kv_unified, n_ubatch=8)
    for seq in range(4):
        mine = [i for i, (_, _, s) in enumerate(batch) if s == seq]
        (alone,) = decode_batch(path, kind, [[(batch[i][0], batch[i][1], 0) for i in mine]])
        np.testing.assert_allclose(rows[mine], alone, rtol=of_target(1e-4), atol=of_target(1e-5))


def test_shared_sequences_in_a_unified_cache(path):
    """A tree is stored as sequences: the root in all of them, branches in their own."""
    rows = {}
    for kind in KINDS:
        with LowLevel(path, [0, 2, 3], kind, n_seq_max=3) as low:
            low.target.decode_batch([5, 6, 7, 8], [0, 1, 1, 2], [[0, 1, 2], [1], [2], [1]], [True, True, False, True])
            rows[kind] = low.tap.rows
    np.testing.assert_array_equal(rows["native"], rows["callback"])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_last_decode(path, kind):
    with LowLevel(path, ALL, kind) as low:
        with pytest.raises(Eagle3Error, match="nothing was decoded yet"):
            _ = low.tap.rows
        low.target.decode([1, 2, 3], 0)
        first, n_first = low.tap.rows, low.tap.n_decode
        kept = first.copy()
        low.target.decode([4, 5, 6], 3)
        assert low.tap.n_decode == n_first + 1
        with pytest.raises(Eagle3Error, match="decode 1 were asked for, but the last one was 2"):
            low.tap.rows_of(n_first)
        np.testing.assert_array_equal(low.tap.rows_of(n_first + 1), low.tap.rows)
        # our arrays are neither overwritten nor writeable
        np.testing.assert_array_equal(first, kept)
        assert not np.array_equal(low.tap.rows, first)
        assert not first.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_after_a_failed_decode(path, kind):
    with LowLevel(path, ALL, kind, n_ctx=256) as low:
        low.target.decode([1, 2, 3], 0)
        with pytest.raises(Eagle3Error, match="invalid batch"):
            low.target.decode_batch([4, 5], [3, 7], [[0], [0]], [True, True])
        with pytest.raises(Eagle3Error, match="the last decode failed"):
            _ = low.tap.rows
        low.target.decode([4], 3)
        assert low.tap.rows.shape[0] == 1


def test_rows_outlive_everything(path):
    with LowLevel(path, ALL, "callback") as low:
        low.target.decode([1, 2, 3], 0)
        rows = low.tap.rows
        low.tap = None
    del low
    assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ([], "no boundaries"),
        ([-1], "boundary -1 is out of range: a target with 4 layers has 0 to 4"),
        ([1, 6], "boundary 6 is out of range"),
        ([1, 2, 1], "named twice"),
    ],
)
def test_bad_boundaries(boundaries, message):
    with pytest.raises(ValueError, match=message):
        _core.FeatureTap(boundaries, 4, 64, "llama")


def test_bad_kind():
    with pytest.raises(ValueError, match="kind must be"):
        _core.FeatureTap([1], 4, 64, "llama", "psychic")
    with pytest.raises(Eagle3Error, match="does not publish boundary 4 of architecture llama"):
        _core.FeatureTap([4], 4, 64, "llama", "native")
    with pytest.raises(Eagle3Error, match="does not publish boundary 1 of architecture gemma3"):
        _core.FeatureTap([1], 4, 64, "gemma3", "native")


@pytest.mark.parametrize(
    ("arch", "boundaries", "kind"),
    [
        ("llama", [0, 3], "native"),
        ("llama", [0, 4], "callback"),
        ("gpt-oss", [0, 4], "native"),
        ("gpt-oss", [5], "callback"),
        ("qwen35", [1, 5], "native"),
        ("qwen35", [1, 4], "callback"),
        ("gemma3", [1], "callback"),
        ("nobody-knows", [1], "callback"),
    ],
)
def test_auto_kind(arch, boundaries, kind):
    assert _core.FeatureTap(boundaries, 4, 64, arch).kind == kind


@pytest.mark.parametrize(
    ("n_layer", "n_embd", "arch", "message"),
    [(3, 64, "llama", "made for 3 layers"), (4, 32, "llama", "of width 32"), (4, 64, "qwen3", "made for architecture")],
)
def test_tap_of_another_model(path, n_layer, n_embd, arch, message):
    with LowLevel(path) as low, pytest.raises(ValueError, match=message):
        _core.Target(low.ctx, low.model, _core.FeatureTap([1], n_layer, n_embd, arch, "native"))


def test_missing_callback_is_noticed(path):
    """A callback tap whose callback is not in the context gets nothing, and raises."""
    with LowLevel(path) as low:
        target = _core.Target(low.ctx, low.model, _core.FeatureTap([1], 4, 64, "llama", "callback"))
        with pytest.raises(Eagle3Error, match="0 of 3 rows"):
            target.decode([1, 2, 3], 0)
        # the memory is as it was
        low.target.decode([1, 2, 3], 0)
