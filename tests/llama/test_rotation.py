"""Arguments for RoPE hold for the target and for drafters with its rotation, and the log reports it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assistants
from dflash import SHAPES, write_dflash
from drafting import draft_chain
from loading import load, take
from mtp import write_able
from tiny import write_head, write_target

OTHER: dict[str, Any] = {"rope_freq_base": 50.0}
CHAIN = {"draft": "chain", "draft_n_max": 4}


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_head_keeps_its_own(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = write_target(tmp_path / "target.gguf")
    if kind == "eagle3":
        draft = Path(write_head(tmp_path / "draft.gguf", target, boundaries=(1, 2, 3)).path)
    else:
        draft = write_dflash(tmp_path / "draft.gguf", SHAPES["plain"])
    texts, drafts = [], []
    for options in ({}, OTHER):
        with load(target.path, draft, **CHAIN, **options) as llm:
            texts.append(take(llm, [1, 2, 3], 24))
            llm.reset()
            drafter = llm.drafters[0]
            assert drafter is not None
            drafter.truncate(0)
            rows = np.random.default_rng(0).normal(size=(20, drafter.n_embd_feat)).astype(np.float32)
            drafter.process_rows(rows, list(range(20)), 0)
            drafts.append(draft_chain(drafter, 7, 4))
    assert texts[0] != texts[1]
    assert drafts[0] == drafts[1]
    title = "head" if kind == "eagle3" else "block drafter"
    assert caplog.text.count(f"rope_freq_base: for the target; the {title} rotates as its file says") == 1


def test_the_defaults_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither Llama's nor those of llama.h, which the command line has, are arguments of the user."""
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "draft.gguf", target, boundaries=(1, 2, 3))
    with load(target.path, head.path, yarn_attn_factor=-1.0, yarn_beta_fast=-1.0, yarn_beta_slow=-1.0):
        assert "for the target" not in caplog.text


def test_a_small_model_takes_the_targets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in llama.cpp, the same file as target and drafter drafts the target's tokens."""
    target = write_target(tmp_path / "target.gguf")
    with load(target.path, target.path, **CHAIN, **OTHER) as llm:
        take(llm, [1, 2, 3], 24)
        stats = llm.stats.of("simple")
        assert stats.accepted >= stats.drafted - 4
    assert caplog.text.count("rope_freq_base: for the target and the small model") == 1


def test_the_targets_own_block_and_an_assistant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with load(write_able(tmp_path, "mimo2-mtp"), yarn_orig_ctx=64, rope_scaling_type=2, **CHAIN) as llm:
        take(llm, [1, 2, 3], 8)
    assert "rope_scaling_type, yarn_orig_ctx: for the target and the block for multi-token prediction" in caplog.text
    with load(*assistants.write_able(tmp_path), **CHAIN, **OTHER) as llm:
        take(llm, [1, 2, 3], 8)
    assert "rope_freq_base: for the target and the Gemma 4 assistant" in caplog.text


def test_nothing_is_said_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "draft.gguf", target, boundaries=(1, 2, 3))
    load(target.path, head.path, rope_freq_base=0.0).close()
    load(target.path, **OTHER).close()
    assert "rope_" not in caplog.text
