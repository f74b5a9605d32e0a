"""Encoders whose graphs read uninitialized memory."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from llama_cpp import mtmd_cpp as mtmd
from llama_cpp.llama_chat_format import MTMDChatHandler

from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama
from llama_cpp_eagle3.media import projector
from vlm_pairs import load_vlm, png

PIXTRAL = load_vlm("pixtral")


def load(**more):
    return Eagle3Llama(PIXTRAL.path, n_ctx=512, n_threads=1, verbose=False, **more)


def rows_of(llm, *files):
    prompt = llm.projector.prompt(llm.projector.marker * len(files), files)
    for media in prompt.media:
        media.encode()
    return [media._rows for media in prompt.media]


def test_memory_that_nobody_wrote_is_zeros(memory_full_of_nan, monkeypatch):
    """[IMG_BREAK] of Pixtral is memory times 0 plus its embedding (llama.cpp's tools/mtmd/models/pixtral.cpp)."""
    wide = png(np.ascontiguousarray(np.tile(PIXTRAL.media, (1, 2, 1))))
    with load(mmproj_path=PIXTRAL.mmproj) as llm:
        rows = rows_of(llm, PIXTRAL.file, wide, PIXTRAL.file)  # images of other sizes move its memory
        np.testing.assert_array_equal(rows[0], rows[2])
        breaks = rows[0][5::6]
        np.testing.assert_array_equal(breaks, np.broadcast_to(breaks[0], breaks.shape))
    if not memory_full_of_nan:
        return
    monkeypatch.setattr(projector, "context_params", mtmd.mtmd_context_params_default)
    with load(mmproj_path=PIXTRAL.mmproj) as llm, pytest.raises(Eagle3Error, match="values that are no numbers"):
        rows_of(llm, PIXTRAL.file)


def test_handlers_of_llama_cpp_too():
    handler = MTMDChatHandler(clip_model_path=PIXTRAL.mmproj, verbose=False)
    url = f"data:image/png;base64,{base64.b64encode(PIXTRAL.file).decode()}"
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with load(chat_handler=handler) as llm:
        answer = llm.create_chat_completion(asked, temperature=0, max_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4
