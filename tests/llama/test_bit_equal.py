"""With our CPU kernels a row's logits are bit for bit the same, whatever else is in its pass."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bit_equal
from inflate import quantize_target
from llama_cpp_eagle3 import Eagle3Llama, _core
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts
from random_arch import write_random_arch

pytestmark = pytest.mark.skipif(not _core.cpu_kernel_names(), reason="no kernel for this processor")

Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: Any) -> dict[str, Path]:
    target, _ = bundled_pair()
    path = tmp_path_factory.mktemp("bits") / "target-q4_0.gguf"
    quantize_target(target, path, "Q4_0", 2)
    return {"F16": Path(target), "Q4_0": path}


def same(a: Logits, b: Logits) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("ftype", ["F16", "Q4_0"])
def test_chains(targets: dict[str, Path], ftype: str) -> None:
    assert bit_equal.differing_passes(targets[ftype]) == []


@pytest.mark.parametrize("cache_type", [1, 8, 2], ids=["F16", "Q8_0", "Q4_0"])
def test_flash_attention(targets: dict[str, Path], cache_type: int) -> None:
    assert bit_equal.differing_passes(targets["Q4_0"], flash_attn=True, cache_type=cache_type) == []


@pytest.mark.parametrize("cache_type", [1, 8], ids=["F16", "Q8_0"])
def test_long_prompts(targets: dict[str, Path], cache_type: int) -> None:
    """With flash attention rows of any number are those alone, however a prompt is divided into passes."""
    options: dict[str, Any] = {"n_threads": 2, "flash_attn": True, "cache_type": cache_type}
    with closing(bit_equal.Context(targets["Q4_0"], **options)) as context:
        tokens = np.random.default_rng(3).integers(300, 3000, 150).tolist()
        rows = [(t, i, [0]) for i, t in enumerate(tokens)]
        together = context.decode(*rows)
        for n in (1, 40, 70):
            context.clear()
            parts = [context.decode(*rows[i : i + n]) for i in range(0, len(rows), n)]
            assert same(np.concatenate(parts), together)


def test_ggml_alone_differs(targets: dict[str, Path]) -> None:
    """The compared texts can differ: without our kernels they do."""
    for flash_attn in (False, True):
        assert 16 in bit_equal.differing_passes(targets["F16"], cpu_kernels=False, flash_attn=flash_attn)


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("row", ["qwen3moe", "deepseek2", "gpt-oss", "qwen35"])
def test_architectures(tmp_path: Path, row: str, flash_attn: bool) -> None:
    """The architectures have routers in F32, latent attention, sinks, sliding windows, recurrent states."""
    path = tmp_path / "target.gguf"
    quantize_target(write_random_arch(tmp_path, row), path, "F16", 2)
    assert bit_equal.differing_passes(path, flash_attn=flash_attn) == []


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("kv_unified", [True, False])
def test_sequences(targets: dict[str, Path], kv_unified: bool, flash_attn: bool) -> None:
    """Other sequences are in the same pass, and in the cells between."""
    options: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 4, "kv_unified": kv_unified, "flash_attn": flash_attn}
    with closing(bit_equal.Context(targets["F16"], **options)) as context:
        texts = np.random.default_rng(1).integers(300, 3000, (4, 12)).tolist()
        alone = []
        for seq_id, text in enumerate(texts):
            context.clear()
            alone.append([context.decode((t, i, [seq_id]))[0] for i, t in enumerate(text)])
        context.clear()
        for i in range(12):
            logits = context.decode(*((text[i], i, [seq_id]) for seq_id, text in enumerate(texts)))
            assert all(same(logits[seq_id], alone[seq_id][i]) for seq_id in range(4))


@pytest.mark.parametrize("flash_attn", [False, True])
def test_cells_of_rejected_drafts(targets: dict[str, Path], flash_attn: bool) -> None:
    """A path of a tree lies in cells with gaps, which later tokens fill: cells are not in the order of positions."""
    with closing(bit_equal.Context(targets["F16"], n_seq_max=2, flash_attn=flash_attn)) as context:
        tokens = np.random.default_rng(2).integers(300, 3000, 24).tolist()
        alone = [context.decode((t, i, [0]))[0] for i, t in enumerate(tokens)]
        context.clear()
        context.decode(*((t, i, [0, 1]) for i, t in enumerate(tokens[:4])))
        # removed siblings lie before the remaining tokens
        rows = [(t, 4 + i, [seq_id]) for i, t in enumerate(tokens[4:8]) for seq_id in (1, 0)]
        tree = context.decode(*((t if s == 0 else t + 1, pos, [s]) for t, pos, [s] in rows))
        assert all(same(tree[2 * i + 1], alone[4 + i]) for i in range(4))
        assert context.keep(0, seq_id=1)
        for i in range(8, 24):
            assert same(context.decode((tokens[i], i, [0]))[0], alone[i])


@pytest.mark.parametrize("draft", [{"draft_n_max": 4}, {"draft": "tree"}])
@pytest.mark.parametrize("ftype", ["F16", "Q4_0"])
def test_text_with_drafts_is_that_without(targets: dict[str, Path], ftype: str, draft: dict[str, Any]) -> None:
    head = bundled_pair()[1]
    options: dict[str, Any] = {"cpu_kernels": "on", "n_ctx": 512, "n_threads": 1, "verbose": False}
    with (
        closing(Eagle3Llama(targets[ftype], head, **draft, **options)) as drafts,
        closing(Eagle3Llama(targets[ftype], **options)) as plain,
    ):
        for prompt in heldout_prompts()[:1]:
            texts = [llm(prompt[:200], max_tokens=48, temperature=0)["choices"][0]["text"] for llm in (drafts, plain)]
            assert texts[0] == texts[1]
        assert drafts.last_stats.mean_acceptance_length > 1
