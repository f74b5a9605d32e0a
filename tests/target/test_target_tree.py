"""A tree in one batch computes what its paths compute one by one, and only the accepted path stays."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Error, _core
from lowlevel import LowLevel
from random_arch import N_VOCAB, load_random_arch
from tolerance import of_target

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_LEAVES = 6
ARCHS = ["llama", "gemma3", "llama4", "gpt-oss", "qwen3", "deepseek2"]


def context(folder: Path, arch: str, n_seq_max: int = N_LEAVES, **params) -> LowLevel:
    return LowLevel(load_random_arch(folder, arch), [0, 1], "callback", n_seq_max=n_seq_max, n_seq=1, **params)


def random_tree(rng: np.random.Generator) -> list[int]:
    """Return the parents of a random tree of at most N_LEAVES leaves, the root included."""
    while True:
        n = int(rng.integers(1, 12))
        parents = [-1, *(int(rng.integers(0, i)) for i in range(1, n))]
        if n - len(set(parents) - {-1}) <= N_LEAVES:
            return parents


def path_to(node: int, parents: list[int]) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_trees(tmp_path: Path, arch: str, swa_full: bool) -> None:
    rng = np.random.default_rng(5)
    atol = of_target(1e-3, has_experts=arch == "deepseek2")
    with context(tmp_path, arch, swa_full=swa_full) as low, context(tmp_path, arch, 1) as fresh:
        assert low.target.n_leaves_max == N_LEAVES
        text = rng.integers(0, N_VOCAB, 9).tolist()
        low.target.decode(text, 0)
        fresh.target.decode(text, 0)
        n_trees = 0
        for _ in range(25):
            parents = random_tree(rng)
            tokens = rng.integers(0, N_VOCAB, len(parents)).tolist()
            low.decode_tree(tokens, parents, len(text))
            rows, logits = low.tap.rows, low.target.logits_all(len(tokens))
            n_trees += max(parents, default=0) >= 0 and parents != list(range(-1, len(tokens) - 1))
            for node in range(len(tokens)):
                path = path_to(node, parents)
                fresh.target.decode([tokens[i] for i in path], len(text))
                np.testing.assert_allclose(logits[path], fresh.target.logits_all(len(path)), atol=atol)
                np.testing.assert_allclose(rows[path], fresh.tap.rows, atol=atol)
                assert low.target.pos[node] == len(text) + len(path) - 1
            path = path_to(int(rng.integers(0, len(tokens))), parents)
            if len(tokens) > 1:
                low.target.accept(0, path)
            text += [tokens[i] for i in path]
            assert low.target.n_past() == len(text)
            if rng.random() < 0.3:  # chains and going back in between
                n_past = len(text) - int(rng.integers(0, 4))
                assert low.target.truncate(n_past) == n_past
                text = [*text[:n_past], 7, 8]
                low.target.decode([7, 8], n_past)
            fresh.target.truncate(0)
            for i in range(0, len(text), 50):
                fresh.target.decode(text[i : i + 50], i)
        assert n_trees > 5
        low.target.settle()
        memory = llama_cpp.llama_get_memory(low.ctx)
        for s in range(1, N_LEAVES):
            assert llama_cpp.llama_memory_seq_pos_max(memory, s) == -1
        low.target.decode([3], len(text))
        fresh.target.decode([3], len(text))
        np.testing.assert_allclose(low.target.logits(0), fresh.target.logits(0), atol=of_target(1e-3))


def test_cells_of_rejected_nodes_are_free_again(tmp_path: Path) -> None:
    """Many trees in a small context: none may leave cells in use."""
    with context(tmp_path, "llama", n_ctx=256) as low:
        low.target.decode([1], 0)
        for i in range(200):
            low.decode_tree([2, 3, 4, 5, 6, 7], [-1, 0, 0, 0, 1, 2], 1 + i)
            low.target.accept(0, [0])
        assert low.target.n_past() == 201


def test_errors(tmp_path: Path) -> None:
    with context(tmp_path, "llama") as low:
        low.target.decode([1, 2], 0)
        for tokens, parents, message in (
            ([1, 2, 3], [-1, 0], "2 drafted tokens, but 1 parents"),
            ([1, 2], [-1, 1], "drafted token 0: expected a parent before it, found 0"),
            ([1, 2], [-1, -1], "drafted token 0: expected a parent before it, found -2"),
            ([1] * 8, [-1] + [0] * 7, "the tree has 7 leaves, the target's context allows 6: .*draft_tree_tokens"),
            ([999], [-1], "token 999 is not in the target's vocabulary"),
        ):
            with pytest.raises(ValueError, match=message):
                low.decode_tree(tokens, parents, 2)
        with pytest.raises(Eagle3Error, match="no draft to accept a path of"):
            low.target.accept(0, [0])
        low.decode_tree([1, 2, 3], [-1, 0, 0], 2)
        for rows in ([1], [0, 5], [0, 1, 2]):
            with pytest.raises(ValueError, match="does not go on from the path before it"):
                low.target.accept(0, rows)
        low.target.accept(0, [])
        assert low.target.n_past() == 2
        with pytest.raises(ValueError, match=r"sequence id 2 is out of range: .* for leaves of trees"):
            low.target.decode([5], 0, seq_id=2)
    with context(tmp_path, "llama", kv_unified=False) as low:
        assert low.target.n_leaves_max == 1
    with context(tmp_path, "qwen35") as low:
        assert low.target.n_leaves_max == 1
        assert low.target.rollback_kind == "checkpoint"


def test_ids_that_guard_windows_are_no_leaves(tmp_path: Path) -> None:
    """Two of the ids 2 to 4 guard the windows of the sequences 0 and 1: the trees of a batch share the other one."""
    low = LowLevel(load_random_arch(tmp_path, "gemma3"), n_seq_max=5, n_seq=2, n_guards=2)
    with low:
        assert low.target.n_leaves_max == 2
        for seq_id in range(2):
            low.target.decode([1, 2], 0, seq_id=seq_id)
        tree = [3], [4, 5], [-1, -1], "all"
        with pytest.raises(ValueError, match="need 2 sequence ids for their leaves, 1 are free"):
            low.target.decode_parts([_core.BatchPart(seq_id, 2, *tree) for seq_id in range(2)])
        low.target.decode_parts([_core.BatchPart(0, 2, *tree), _core.BatchPart(1, 2, [3], [4])])
        low.target.accept_batch([0, 1], [[0, 2], [0]])
        assert [low.target.n_past(0), low.target.n_past(1)] == [4, 3]


def test_behind_a_state_that_came_back(tmp_path: Path) -> None:
    """Leaves borrow cells, and a restored window has cells of its own."""
    rng = np.random.default_rng(6)
    text = rng.integers(0, N_VOCAB, 60).tolist()
    tokens, parents = [5, 6, 7], [-1, 0, 0]
    with context(tmp_path, "gemma3") as low, context(tmp_path, "gemma3", 1) as fresh:
        low.target.decode(text[:30], 0)
        saved = low.target.save(0)
        low.target.decode(text[30:], 30)
        state = low.target.state_get(0)
        low.target.truncate(0)
        low.target.state_set(0, state)  # only with the window's cells: no way back before the saved state
        low.target.attach([saved], 0)
        low.decode_tree(tokens, parents, 60)
        low.target.accept(0, [0])
        assert low.target.truncate(30) == 30
        low.decode_tree(tokens, parents, 30)
        logits = low.target.logits_all(3)
        fresh.target.decode(text[:30], 0)
        for path in ([0, 1], [0, 2]):
            fresh.target.decode([tokens[i] for i in path], 30)
            np.testing.assert_allclose(logits[path], fresh.target.logits_all(2), atol=of_target(1e-3))
