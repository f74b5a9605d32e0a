"""Images that add rows to the residual stream between layers (deepstack): a boundary has them, as the next layer does.

The reference is the rest of the model: a model of the layers from a boundary on, which takes the rows that were read at
it in place of tokens, has to come to the same logits.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from arch_keys import N_EMBD, N_LAYER, arch_of, keys_of
from llama_cpp_eagle3.engine import Media, media_tokens
from lowlevel import LowLevel, load_model, parts_of
from random_arch import random_tensors, write_arch, write_random_arch

# the further rows of an image that are added to boundaries 1 and 2
ADDED = {"qwen3vl": (1, 2), "qwen3vlmoe": (1, 2), "granite-vision": (2, 1), "granite_swa": (2, 1)}
PIECES = [(0, 5), (5, 17), (17, 21)]


def write_rest(folder, row: str, b: int):
    """Write a model of the layers from b on, which adds the remaining rows."""
    keys: dict[str, Any] = {
        k: v[b:] if isinstance(v, list) and len(v) == N_LAYER else v for k, v in keys_of(row).items()
    }
    keys |= {"block_count": N_LAYER - b}
    keys.pop("embedding_scale", None)
    left = range(1, N_LAYER - b)  # further rows of an image, in the order of the layers that add them
    if "n_deepstack_layers" in keys:
        keys["n_deepstack_layers"] = len(left)
    else:
        keys["deepstack_mapping"] = [-1, *left]
    tensors = {}
    for name, data in random_tensors(write_random_arch(folder, row)).items():
        if name.startswith("blk."):
            _, il, rest = name.split(".", 2)
            if int(il) >= b:
                tensors[f"blk.{int(il) - b}.{rest}"] = data
        else:
            tensors[name] = data
    return write_arch(folder / f"{row}-from-{b}.gguf", arch_of(row), keys, tensors)


def open_model(path, boundaries: list[int]) -> LowLevel:
    return LowLevel(load_model(path, {}), boundaries, "callback", n_ubatch=8, n_seq_max=2, n_seq=2, kv_unified=False)


def take_rows(low: LowLevel, rows: np.ndarray, first: int, seq_id: int) -> np.ndarray:
    i = np.arange(first, first + len(rows), dtype=np.intc)
    positions = np.array([i, i, i, 0 * i])  # a text's positions
    media = Media(first, media_tokens(b"x", len(rows)), 7, lambda: rows, positions=lambda _: positions)
    low.target.decode_parts([media.piece(low.target, seq_id, first, len(rows), "last")])
    return low.tap.rows.copy()


@pytest.mark.parametrize("row", ADDED)
def test_a_boundary_is_the_input_of_the_next_layer(tmp_path, rng, row):
    further = {b: rng.normal(0, 1, (12, N_EMBD)).astype(np.float32) for b in (1, 2)}  # by boundary
    image = np.empty((12, 3 * N_EMBD), np.float32)
    image[:, :N_EMBD] = rng.normal(0, 1, (12, N_EMBD))
    for b, i in zip((1, 2), ADDED[row], strict=True):
        image[:, i * N_EMBD :][:, :N_EMBD] = further[b]
    tokens = rng.integers(0, 256, 21).tolist()
    with ExitStack() as stack:
        whole = stack.enter_context(open_model(write_random_arch(tmp_path, row), [0, 1, 2, 3]))
        for seq_id in (1, 0):  # the first one is text: another sequence's rows are no rows of the image
            states, logits = [], None
            for first, end in PIECES:
                if seq_id == 0 and first == 5:
                    states.append(take_rows(whole, image, first, seq_id))
                else:
                    whole.target.decode_parts(parts_of((seq_id, first, tokens[first:end])))
                    states.append(whole.tap.rows.copy())
            logits = whole.target.logits(PIECES[-1][1] - PIECES[-1][0] - 1)
            rows = np.concatenate(states)
            for b in (1, 2):
                low = stack.enter_context(open_model(write_rest(tmp_path, row, b), [0, N_LAYER - b]))
                got = []
                for first, end in PIECES:
                    given = np.zeros((end - first, (N_LAYER - b) * N_EMBD), np.float32)
                    given[:, :N_EMBD] = rows[first:end, b]
                    if seq_id == 0 and first == 5 and b == 1:
                        given[:, N_EMBD:] = further[2]
                    got.append(take_rows(low, given, first, seq_id))
                rest = np.concatenate(got)
                np.testing.assert_array_equal(rest[:, 0], rows[:, b])
                np.testing.assert_allclose(rest[:, 1], rows[:, N_LAYER], rtol=1e-3, atol=1e-4)
                np.testing.assert_allclose(
                    low.target.logits(PIECES[-1][1] - PIECES[-1][0] - 1), logits, rtol=1e-3, atol=1e-4
                )


@pytest.mark.parametrize(("row", "scale"), [("granite-scaled", 3.0), ("granite-vision", 1.0), ("qwen3vl", 1.0)])
def test_boundary_0_is_scaled_as_the_graph_does_it(tmp_path, rng, row, scale):
    """Granite scales embeddings of sounds, but not those of images with further rows."""
    n_embd_inp = N_EMBD * (1 if row == "granite-scaled" else 3)
    image = rng.normal(0, 1, (12, n_embd_inp)).astype(np.float32)
    with open_model(write_random_arch(tmp_path, row), [0, 1]) as low:
        rows = take_rows(low, image, 0, 1)
        np.testing.assert_allclose(rows[:, 0], scale * image[:, :N_EMBD], rtol=1e-6)
