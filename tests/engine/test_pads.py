"""Passes get rows that nobody looks at where the planner knows that they are faster so."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from llama_cpp_eagle3._core import CostCurve, Planner
from llama_cpp_eagle3.engine import DraftSettings, Sampling
from loading import load, load_plain, prompts

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
BY_FOUR = {1: 90.0, 2: 180.0, 3: 270.0, 4: 127.0, 5: 218.0, 6: 310.0, 8: 205.0, 12: 290.0, 16: 370.0}
N = 24


class Counting:
    """A target that notes rows and pads of its passes."""

    def __init__(self, target: Any):
        self._target = target
        self.passes: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode_parts(self, parts: Any, n_pad: int) -> None:
        self._target.decode_parts(parts, n_pad)
        self.passes.append((len(self._target.tokens), n_pad))


class Steady:
    """A planner that learns nothing of what passes take here."""

    def __init__(self, planner: Planner):
        self._planner = planner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def observe_batch(self, seq_ids: Any, said: Any, n_rows: int, verify_us: float, other_us: float) -> None:
        self._planner.observe_batch(seq_ids, said, n_rows, 0.0, other_us)


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize(
    ("n_seqs", "n_parallel", "kv_unified"), [(2, 2, False), (3, 4, False), (3, 3, False), (3, 3, True), (5, 5, True)]
)
def test_passes(tiny_target: Any, tiny_head: Any, n_seqs: int, n_parallel: int, kv_unified: bool, drafts: bool) -> None:
    """As many rows as pay, the texts are those of plain decoding, and so is what the memory holds."""
    texts = prompts(n_seqs, 128)
    with (
        closing(load_plain(tiny_target)) as plain,
        closing(load(tiny_target, tiny_head, draft="auto", n_parallel=n_parallel, kv_unified=kv_unified)) as llm,
    ):
        engine = llm.engine
        free = {"draft_begin": CostCurve({1: 1.0}), "draft_step": CostCurve({1: 1.0})}
        options = {"n_seq_max": n_parallel, "uniform": not kv_unified, "n_nodes_max": 16, "pads": True}
        planner = Planner(engine.drafter, CostCurve(BY_FOUR), n_max=4, **options, **free)
        engine.planner = Steady(planner)  # type: ignore[assignment]
        counting = Counting(engine.target)
        engine.memory.target = counting  # type: ignore[assignment]
        settings = None if drafts else DraftSettings(mode="auto", sources=())
        sequences = [engine.add(text, GREEDY, max_tokens=N, draft=settings, exact=True) for text in texts]
        while engine.has_work:
            engine.step()
            for s in sequences:
                assert s.seq_id < 0 or engine.target.n_past(s.seq_id) >= s.n_past
        for s, text in zip(sequences, texts, strict=True):
            expected = [token for token, _ in zip(plain.generate(text, temp=0.0), range(N), strict=False)]
            assert s.generated == expected
        padded = [(n, more) for n, more in counting.passes if more]
        by_rows = dict(padded)
        if not kv_unified and n_parallel == 3:
            assert by_rows.get(3) is None  # 6 rows take longer than 3
            return
        assert len(padded) > N // 2 or drafts
        if not drafts:
            assert by_rows[n_seqs] == {2: 2, 3: 1, 5: 3}[n_seqs]
        assert all((n + more) % 4 == 0 for n, more in padded)
        assert not kv_unified or all((n + more) % 4 == 0 for n, more in counting.passes[1:] if 1 < n + more <= 8)
