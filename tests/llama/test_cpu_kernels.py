"""Targets whose weights our kernels multiply."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from inflate import quantize_target
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.models import bundled_pair
from random_model import Shape, write_target

TEXT = b"import os\n\n\ndef walk(path):\n    for name in os.listdir(path):\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Any) -> tuple[str, str]:
    target, head = bundled_pair()
    path = tmp_path_factory.mktemp("kernels") / "target-q4_0.gguf"
    quantize_target(target, path, "Q4_0", 2)
    return str(path), str(head)


def load(pair: tuple[str, str], cpu_kernels: str, **options: Any) -> Eagle3Llama:
    return Eagle3Llama(*pair, cpu_kernels=cpu_kernels, n_ctx=256, n_threads=2, verbose=False, **options)


needs_kernel = pytest.mark.skipif(not _core.cpu_kernel_names(), reason="no kernel for this processor")


@needs_kernel
def test_logits_are_those_of_ggml(pair: tuple[str, str]) -> None:
    # flash attention rounds neither queries nor weights of cells to F16
    options: dict[str, Any] = {"logits_all": True, "flash_attn": False}
    with closing(load(pair, "on", **options)) as ours, closing(load(pair, "off", **options)) as ggml:
        assert "matrices by q4_0x8/" in ours.loaded.where
        assert "matrices by" not in ggml.loaded.where
        tokens = ours.tokenize(TEXT)
        for n in (1, 2, 3, 4, 7, 16, len(tokens)):
            assert_same_logits(ours, ggml, tokens[:n])


def assert_same_logits(ours: Eagle3Llama, ggml: Eagle3Llama, tokens: list[int]) -> None:
    rows = []
    for llm in (ours, ggml):
        llm.reset()
        llm.eval(tokens)
        rows.append(np.array(llm.scores[: len(tokens)]))
    # ggml rounds activations in halves elsewhere: a last bit of one in 127
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=0.01 * np.abs(rows[1]).max())
    assert rows[0].std() > 0.1


@needs_kernel
def test_logits_of_experts_are_those_of_ggml(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    write_target(path, Shape(3, 256, 256, 4, 2, 512, 256, 256, arch="gpt-oss", n_embd_head=64, n_expert=8), "Q4_0")
    options: dict[str, Any] = {"logits_all": True, "n_ctx": 64, "n_threads": 2, "verbose": False, "flash_attn": False}
    with (
        closing(Eagle3Llama(path, cpu_kernels="on", **options)) as ours,
        closing(Eagle3Llama(path, cpu_kernels="off", **options)) as ggml,
    ):
        # q, k, v, o and three of the experts in each of three layers, and the output matrix
        n_matrices = 3 * (4 + 3)
        found = sum(int(part.split()[0]) for part in ours.loaded.where.split("; ") if "matrices by q4_0x8/" in part)
        assert found >= n_matrices
        for n in (1, 2, 5, 16):
            assert_same_logits(ours, ggml, list(range(20, 20 + n)))


@needs_kernel
def test_the_head_drafts_with_them(pair: tuple[str, str]) -> None:
    """Kernels compute the head's own matrices; it drafts as well, and can be loaded in another type again."""
    texts, lengths = [], []
    for cpu_kernels in ("on", "off"):
        with closing(load(pair, cpu_kernels, draft_n_max=4, draft_type="q4_0")) as llm:
            assert ("of the head by q4_0x8/" in llm.loaded.where) == (cpu_kernels == "on")
            texts.append(llm(TEXT.decode(), max_tokens=24, temperature=0)["choices"][0]["text"])
            lengths.append(llm.last_stats.mean_acceptance_length)
    assert texts[0] == texts[1]
    assert lengths[0] > 0.8 * lengths[1] > 0.8
    with closing(load(pair, "on", draft="auto")) as llm:
        llm.calibrate(seconds=0.2)
        assert llm(TEXT.decode(), max_tokens=24, temperature=0)["choices"][0]["text"] == texts[0]


@needs_kernel
def test_text_is_that_of_plain_llama(pair: tuple[str, str]) -> None:
    """A target with kernels and drafts of several rows gives the text; a plain Llama beside it computes as before."""
    with closing(load(pair, "on", draft_n_max=4)) as ours:
        plain = llama_cpp.Llama(pair[0], n_ctx=256, n_threads=2, verbose=False)
        tokens = ours.tokenize(TEXT)
        options: dict[str, Any] = {"max_tokens": 48, "temperature": 0.0}
        before = plain(tokens, **options)["choices"][0]["text"]
        assert ours(tokens, **options)["choices"][0]["text"] == before
        assert ours.last_stats.mean_acceptance_length > 1
        assert plain(tokens, **options)["choices"][0]["text"] == before


@needs_kernel
@pytest.mark.parametrize(
    ("cpu_kernels", "options", "expected"),
    [
        ("on", {}, "flash attention, by our kernels"),
        ("auto", {}, "flash attention, by our kernels"),
        ("on", {"flash_attn": False}, "no flash attention, by our kernels"),
        ("on", {"type_k": "q8_0", "type_v": "q8_0"}, "flash attention, by our kernels"),
        ("on", {"embedding": True}, "no flash attention, by our kernels"),
        ("on", {"type_k": "f32"}, "no flash attention, by our kernels"),
        ("off", {}, "no flash attention"),
        ("off", {"flash_attn": True}, "flash attention"),
        ("off", {"type_v": "q8_0"}, "flash attention"),
    ],
)
def test_flash_attention_where_it_is_ours(
    pair: tuple[str, str], cpu_kernels: str, options: dict[str, Any], expected: str
) -> None:
    """Flash attention is on unless the user decides otherwise; the log reports it."""
    with closing(Eagle3Llama(pair[0], cpu_kernels=cpu_kernels, n_ctx=64, verbose=False, **options)) as llm:
        assert llm.loaded.attention == expected
        assert f"; {expected}; " in llm.loaded.where
        has_flash = llm.context_params.flash_attn_type == llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        assert has_flash == (not expected.startswith("no "))


def test_quantized_values_need_flash_attention(tiny_target: Any) -> None:
    with pytest.raises(ValueError, match="use flash_attn=True too"):
        Eagle3Llama(tiny_target.path, type_v="q8_0", flash_attn=False, verbose=False)


@needs_kernel
def test_closed_models_leave_nothing(pair: tuple[str, str]) -> None:
    """Objects come and go in the same process; the one that stays computes the same."""
    with closing(load(pair, "on")) as stays:
        expected = stays(TEXT.decode(), max_tokens=16, temperature=0)["choices"][0]["text"]
        for _ in range(3):
            with closing(load(pair, "on")) as other:
                assert other(TEXT.decode(), max_tokens=16, temperature=0)["choices"][0]["text"] == expected
            assert stays(TEXT.decode(), max_tokens=16, temperature=0)["choices"][0]["text"] == expected


def test_nothing_to_compute_is_said(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without a kernel is reported."""
    monkeypatch.setattr("llama_cpp_eagle3.model.cpu_kernels.cpu_kernel_names", list)
    with closing(Eagle3Llama(tiny_target.path, cpu_kernels="on", n_ctx=64, verbose=False)) as llm:
        assert "ggml's own kernels alone: no weight" in llm.loaded.where


def test_unknown_value(tiny_target: Any) -> None:
    with pytest.raises(ValueError, match="expected cpu_kernels to be one of auto, on, off, found 'maybe'"):
        Eagle3Llama(Path(tiny_target.path), cpu_kernels="maybe")


_ASKED = """
import re, sys
from pathlib import Path
from llama_cpp_eagle3 import Eagle3Llama

llm = Eagle3Llama(sys.argv[1], n_ctx=int(sys.argv[2]), n_batch=32, n_threads=1, type_k=1, type_v=1, verbose=False)
regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
asked = [region for region in regions if re.search(r"^VmFlags:.* hg", region, re.MULTILINE)]
print(sum(1024 * int(region.split("Size:", 1)[1].split()[0]) for region in asked))
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no such pages on this system")
def test_large_buffers_ask_for_huge_pages(tiny_target: Any) -> None:
    """Repacked weights and K/V are allocated by one function of ggml. In a process whose memory nothing used before."""
    n_ctx, n_bytes = 32768, 4 * 2 * 32 * 2  # of a position: layers, K and V, values, bytes
    command = [sys.executable, "-c", _ASKED, tiny_target.path, str(n_ctx)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= n_ctx * n_bytes - (4 << 20)  # its ends share pages with others
