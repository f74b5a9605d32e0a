"""The planner with a real drafter: the steps' drafts, and that only the speed changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from time import thread_time_ns
from typing import Any

import pytest

from drafting import draft_chain, draft_tree, plan, plan_all
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import CostCurve, Policy
from loading import load, load_plain, prompts, take

# four rows cost as much as one, and drafting nearly nothing
CHEAP = CostCurve({1: 1.0}), CostCurve({1: 1.0})


def run_steps(llm: Eagle3Llama, planner: Policy, prompt: Sequence[int], n_tokens: int) -> tuple[list[int], list[int]]:
    """Generate greedily with chains that the planner chooses; return the tokens, and the numbers of drafted ones."""
    target, drafter, tap = llm.target, llm.drafters[0], llm.tap
    assert tap is not None
    llm.reset()
    llm.eval(prompt)
    planner.reset()
    tokens, drafted = [target.argmax(len(prompt) - 1)], []
    n_past = len(prompt)
    while len(tokens) < n_tokens:
        id_last = tokens[-1]
        draft = plan(planner, id_last, n_room=llm.n_ctx() - n_past - 1)
        rows = [id_last, *draft.tokens]

        start = thread_time_ns()  # a busy machine does not count: one thread computes
        target.decode(rows, n_past)
        t_verify_us = 1e-3 * (thread_time_ns() - start)

        said = []
        for row, guess in enumerate([*draft.tokens, -1]):
            said.append(target.argmax(row))
            if said[-1] != guess:
                break
        target.truncate(n_past + len(said))
        drafter.process(tap, rows[: len(said)], n_past)
        planner.observe([0], [said], n_rows=len(rows), t_verify_us=t_verify_us)
        tokens += said
        drafted.append(len(draft))
        n_past += len(said)
    return tokens[:n_tokens], drafted


def test_a_good_head_is_used(perfect_pair: tuple[Any, Any]) -> None:
    target, head = perfect_pair
    (prompt,) = prompts(1)
    with closing(load(target, head)) as llm, closing(load_plain(target)) as plain:
        prompt = [*prompt, *take(plain, prompt, 2 * len(prompt) + 20)]  # a text that the target could have written
        planner = Policy([llm.drafters[0]], [CostCurve({1: 1e5, 4: 1.001e5, 5: 9e5}), *CHEAP], n_max=8)
        tokens, drafted = run_steps(llm, planner, prompt, 100)
        assert tokens == take(plain, prompt, 100)
        assert max(drafted) >= 3
        assert sum(drafted) > 1.5 * len(drafted)
        stats = planner.stats()
        assert stats["steps"] == len(drafted)
        assert 0 < stats["draft_us"] < 1e6
        # the same tokens as without a planner
        draft = plan(planner, tokens[-1], 3)
        assert draft.tokens == draft_chain(llm.drafters[0], tokens[-1], 8)[: len(draft)]
        assert all(0 < p <= 1 for p in draft.probs)


def test_a_useless_head_is_left_alone(tiny_target: Any, tiny_head: Any) -> None:
    (prompt,) = prompts(1)
    with (
        closing(load(tiny_target, tiny_head, n_ctx=1024)) as llm,
        closing(load_plain(tiny_target, n_ctx=1024)) as plain,
    ):
        planner = Policy(
            [llm.drafters[0]],
            [CostCurve({1: 1000.0, 8: 2000.0}), CostCurve({1: 300.0}), CostCurve({1: 200.0})],
            n_max=8,
        )
        tokens, drafted = run_steps(llm, planner, prompt, 600)
        assert tokens == take(plain, prompt, 600)
        stats = planner.stats()
        assert stats["drafted"] < 0.25 * stats["steps"]  # on a real clock, against the given costs
        assert sum(drafted[200:]) < 0.05 * len(drafted[200:])


def test_trees_and_several_sequences(tiny_target: Any, tiny_head: Any) -> None:
    (prompt,) = prompts(1)
    with closing(load(tiny_target, tiny_head)) as llm:
        llm.eval(prompt)
        flat = CostCurve({1: 1e5, 32: 1.001e5})
        planner = Policy([llm.drafters[0]], [flat, *CHEAP], n_max=3, top_k=4, n_nodes_max=12, n_leaves_max=8)
        draft = plan(planner, 7, 100)
        # free rows are filled with the most probable nodes, which EAGLE-2's tree has too
        assert len(draft) >= 4
        tree = draft_tree(llm.drafters[0], 7, 3, 4, 60)
        paths = {_path(tree, i): p for i, p in enumerate(tree.probs)}
        for i, p in enumerate(draft.probs):
            assert paths[_path(draft, i)] == pytest.approx(p, rel=1e-4)
        (chain,) = plan_all(planner, [0], [7], [5])
        assert len(chain) <= 5


def _path(draft: Any, i: int) -> tuple[int, ...]:
    return () if i < 0 else (*_path(draft, draft.parents[i]), draft.tokens[i])
