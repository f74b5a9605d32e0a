"""An image whose rows attend to each other (Gemma 3) is one pass, or an error, in each way to give it."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from llama_cpp.llama_chat_format import MTMDChatHandler

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.cli import main
from vlm_pairs import load_vlm

GEMMA, QWEN = load_vlm("gemma3"), load_vlm("qwen25vl")
REASON = "an image of 16 rows that see each other has to fit into n_batch and n_ubatch, 8"
SMALL = [{"n_batch": 8, "n_ubatch": 8}, {"n_batch": 8}, {"n_ubatch": 8}]


def load(vlm, **more):
    return Eagle3Llama(vlm.path, n_ctx=512, n_threads=1, verbose=False, **more)


def asked(vlm):
    url = f"data:image/png;base64,{base64.b64encode(vlm.file).decode()}"
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


def read_by_hand(llm, vlm):
    """Return the logits after a prompt with an image."""
    prompt = llm.projector.prompt(f"It is {llm.projector.marker}", [vlm.file])
    (media,) = prompt.media
    llm.eval(prompt.tokens[: media.first])
    llm.eval_media(media)
    llm.eval(prompt.tokens[media.end :] or [5])
    return np.array(llm.target.logits(0))


@pytest.mark.parametrize("small", SMALL)
def test_by_hand(small):
    with load(GEMMA, mmproj_path=GEMMA.mmproj, **small) as llm:
        prompt = llm.projector.prompt(f"It is {llm.projector.marker}", [GEMMA.file])
        (media,) = prompt.media
        llm.eval(prompt.tokens[: media.first])
        before = llm.n_tokens, llm.target.n_batches
        with pytest.raises(ValueError, match=REASON):
            llm.eval_media(media)
        assert (llm.n_tokens, llm.target.n_batches) == before
        llm.eval([5])
        assert llm.n_tokens == before[0] + 1


@pytest.mark.parametrize("small", SMALL)
def test_by_a_handler_of_llama_cpp(small):
    handler = MTMDChatHandler(clip_model_path=GEMMA.mmproj, verbose=False)
    with load(GEMMA, chat_handler=handler, **small) as llm, pytest.raises(ValueError, match=REASON):
        llm.create_chat_completion(asked(GEMMA), max_tokens=2)


@pytest.mark.parametrize("small", SMALL)
def test_by_chat(small):
    with load(GEMMA, mmproj_path=GEMMA.mmproj, **small) as llm, pytest.raises(ValueError, match=REASON):
        llm.create_chat_completion(asked(GEMMA), max_tokens=2)


def test_by_the_command_line(tmp_path, capsys):
    (tmp_path / "image.png").write_bytes(GEMMA.file)
    arguments = [
        "speculative-simple",
        "-m",
        GEMMA.path,
        "--mmproj",
        GEMMA.mmproj,
        "-n",
        "2",
        "-c",
        "256",
        "-b",
        "8",
        "-p",
        "It is",
    ]
    assert main([*map(str, arguments), "--image", str(tmp_path / "image.png"), "-t", "1"]) != 0
    assert REASON in capsys.readouterr().err


@pytest.mark.parametrize(("vlm", "n"), [(GEMMA, 16), (QWEN, 8)], ids=["one pass of its size", "causal ones in pieces"])
def test_what_fits_gives_the_same(vlm, n):
    with load(vlm, mmproj_path=vlm.mmproj) as llm:
        want = read_by_hand(llm, vlm)
    with load(vlm, mmproj_path=vlm.mmproj, n_batch=n, n_ubatch=n) as llm:
        np.testing.assert_allclose(read_by_hand(llm, vlm), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
