"""Rows of embeddings in place of tokens: the target computes the same from a token and from its embedding."""

from __future__ import annotations

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Error, _core
from llama_cpp_eagle3.engine import Media, media_tokens
from lowlevel import LowLevel
from tiny import write_target

BOUNDARIES = [1, 2, 3]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("rows") / "target.gguf", n_layer=4)


def rows_of(target, tokens):
    return target.weights["model.embed_tokens.weight"][tokens].astype(np.float32)


def make_media(target, first, tokens, **more):
    return Media(first, media_tokens(b"x", len(tokens)), 7, lambda: rows_of(target, tokens), **more)


def read(low, media, n_past, n, logits="none"):
    low.target.decode_parts([media.piece(low.target, 0, n_past, n, logits)])
    return low.tap.rows.copy()


@pytest.mark.parametrize("kind", ["native", "callback"])
@pytest.mark.parametrize("n_piece", [4, 12])
def test_rows_are_their_tokens(target, rng, kind, n_piece):
    tokens = rng.integers(0, 300, 20).tolist()
    with LowLevel(target.path, BOUNDARIES, kind) as low:
        low.target.decode(tokens, 0)
        want, logits = low.tap.rows.copy(), low.target.logits(19)
        media = make_media(target, 4, tokens[4:16])
        low.target.decode(tokens[:4], 0)
        got = [low.tap.rows.copy()]
        got += [read(low, media, i, n_piece) for i in range(4, 16, n_piece)]
        assert low.target.n_past() == 16
        assert low.target.tokens.tolist() == [7] * n_piece
        low.target.decode(tokens[16:], 16)
        got.append(low.tap.rows.copy())
        np.testing.assert_allclose(np.concatenate(got), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(low.target.logits(3), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["native", "callback"])
def test_boundary_0_is_what_came(target, rng, kind):
    tokens = rng.integers(0, 300, 12).tolist()
    with LowLevel(target.path, [0, 1], kind, n_ubatch=8) as low:
        low.target.decode(tokens, 0)
        want = low.tap.rows.copy()
        low.target.truncate(0)
        np.testing.assert_allclose(read(low, make_media(target, 0, tokens), 0, 12), want, rtol=1e-4, atol=1e-5)


def test_a_sequence_does_not_end_inside_of_an_image(target, rng):
    tokens = rng.integers(0, 300, 20).tolist()
    with LowLevel(target.path, BOUNDARIES, n_seq_max=3, n_seq=3) as low:
        low.target.decode(tokens[:4], 0)
        read(low, make_media(target, 4, tokens[4:16]), 4, 12)
        low.target.decode(tokens[16:], 16)
        state = low.target.state_get(0)
        assert low.target.copy(0, 1, 10) == 4
        assert low.target.copy(0, 1, 18) == 18
        assert low.target.spans(1) == [(4, 12, 12)]
        low.target.state_set(2, state)
        assert low.target.spans(2) == low.target.spans(0) == [(4, 12, 12)]
        assert low.target.truncate(10, 2) == 4
        assert low.target.truncate(16, 1) == 16
        assert low.target.truncate(15, 1) == 4
        assert low.target.spans(1) == low.target.spans(2) == []


def test_what_is_refused(target, rng):
    tokens = rng.integers(0, 300, 12).tolist()
    with LowLevel(target.path, BOUNDARIES, n_batch=32, n_ubatch=8) as low:
        media = make_media(target, 0, tokens, causal=False)
        with pytest.raises(Eagle3Error, match="does not fit into n_ubatch = 8"):
            read(low, media, 0, 12)
        wrong = Media(0, media_tokens(b"x", 2), 7, lambda: np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match="belongs to another model"):
            read(low, wrong, 0, 2)
        parts = [_core.BatchPart(0, 0, [1]), _core.BatchPart.media(0, 0, [1], rows_of(target, [1]))]
        with pytest.raises(ValueError, match="two parts"):
            low.target.decode_parts(parts)
        with pytest.raises(ValueError, match="should be there"):
            low.target.decode_parts([_core.BatchPart.media(0, 4, [1], rows_of(target, [1]), offset=2)])
        assert low.target.n_past() == 0


def test_rows_that_see_each_other(target, rng):
    tokens = rng.integers(0, 300, 8).tolist()
    with LowLevel(target.path, BOUNDARIES) as low:
        causal = read(low, make_media(target, 0, tokens), 0, 8)
        low.target.truncate(0)
        both = read(low, make_media(target, 0, tokens, causal=False), 0, 8)
        np.testing.assert_allclose(both[-1, 0], causal[-1, 0], rtol=1e-4, atol=1e-5)  # the first layer attended to all
        assert np.abs(both[0] - causal[0]).max() > 1e-2
        low.target.truncate(0)
        again = read(low, make_media(target, 0, tokens), 0, 8)
        np.testing.assert_array_equal(again, causal)
