"""The trained toy of examples/captions: the head drafts the picture's digits with its rows, and cannot without them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from vlm_pairs import png

FOLDER = Path(__file__).parents[2] / "examples" / "captions"
CAPTION = "0765728393333810"
CELL = 14


def pictures(rng):
    """Return pictures made of the cells of the existing one, with their captions."""
    data = (FOLDER / "digits.png").read_bytes()
    at = data.index(b"IDAT")
    size = struct.unpack(">I", data[at - 4 : at])[0]
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + size]), np.uint8).reshape(56, -1)[:, 1:]
    cells = rows.reshape(4, CELL, 4, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(16, CELL, CELL, 3)
    for _ in range(6):
        order = rng.permutation(16)
        shuffled = cells[order].reshape(4, 4, CELL, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(56, 56, 3)
        digits = "".join(CAPTION[i] for i in order)
        yield png(shuffled), "".join(digits[i : i + 4] + "\n" for i in range(0, 16, 4))


@pytest.fixture(scope="module")
def llm():
    with Eagle3Llama(
        FOLDER / "captions.gguf",
        FOLDER / "captions-eagle3.gguf",
        mmproj_path=FOLDER / "captions-mmproj.gguf",
        draft="chain",
        draft_n_max=5,
        n_ctx=128,
        n_threads=1,
        verbose=False,
    ) as llm:
        yield llm


@pytest.mark.parametrize("filled", [True, False])
def test_what_the_head_gains(llm, rng, filled):
    lengths = []
    for file, caption in pictures(rng):
        prompt = llm.projector.prompt(f"<s>{llm.projector.marker}Read:\n", [file])
        media = prompt.media[0]
        llm.reset()
        llm.eval(prompt.tokens[: media.first])
        llm.eval_media(media)
        if not filled:
            llm.drafters[0].restart(llm.n_tokens)
        text = b""
        for token in llm.generate(prompt.tokens, temp=0):
            if token in llm.engine.vocab.eog:
                break
            text += llm.detokenize([token])
        assert text.decode() == caption
        lengths.append(llm.last_stats.mean_acceptance_length)
    assert np.mean(lengths) > 4.5 if filled else np.mean(lengths) < 2
