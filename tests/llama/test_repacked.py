"""Drafters in Q4_0, for which ggml has a layout of its own on many CPUs: no code reads that back."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

import dflash
import mtp
from inflate import quantize_target
from llama_cpp_eagle3 import IncompatibleDraftError
from loading import load, load_plain, prompts, take
from small import write_small_pair
from tiny import Target

N_TOKENS = 24


def quantized(path: Path | str) -> str:
    out = Path(path).with_suffix(".q4_0.gguf")
    quantize_target(path, out, "Q4_0", 1)
    return str(out)


@pytest.mark.parametrize("kind", ["simple", "mtp", "mtp-apart", "dflash"])
def test_text_and_states(kind: str, tiny_target: Target, tmp_path: Path) -> None:
    """The text is plain llama.cpp's, and a state continues in another object."""
    if kind == "simple":
        target, small = write_small_pair(tmp_path)
        files = [quantized(target), quantized(small)]
    elif kind == "mtp":
        files = [quantized(mtp.write_able(tmp_path, "mimo2-mtp"))]
    elif kind == "mtp-apart":
        whole = mtp.write_able(tmp_path, "mimo2-mtp")
        files = [quantized(path) for path in mtp.split_block(tmp_path, whole, "mimo2-mtp")]
    else:
        q4_0 = gguf.GGMLQuantizationType.Q4_0
        path = dflash.write_dflash(tmp_path / "d.gguf", dflash.shape_of("own-tables", block_size=6), matrices=q4_0)
        files = [tiny_target.path, str(path)]
    (prompt,) = prompts(1, length=(20, 21))
    options = {"draft": "chain", "draft_n_max": 3}
    plain = load_plain(files[0])
    with load(*files, **options) as llm, load(*files, **options) as other:
        text = take(llm, prompt, N_TOKENS)
        assert text == take(plain, prompt, N_TOKENS)
        assert llm.last_stats.drafted > 0
        state = llm.drafters[0].state_get(0)
        other.drafters[0].state_set(state, 0)
        assert other.drafters[0].n_past(0) == llm.drafters[0].n_past(0)
    plain.close()


def test_a_state_of_another_model(tmp_path: Path) -> None:
    """Another model's state is refused, although most weights cannot be compared."""
    target, small = (quantized(path) for path in write_small_pair(tmp_path))
    other = quantized(write_small_pair(tmp_path, row_small="qwen3")[1])
    with load(target, small, draft="chain") as llm, load(target, other, draft="chain") as second:
        take(llm, [1, 2, 3], 4)
        with pytest.raises(IncompatibleDraftError, match="belongs to another small model"):
            second.drafters[0].state_set(llm.drafters[0].state_get(0), 0)
