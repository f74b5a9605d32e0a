"""A tree of drafted tokens in NumPy: the head is evaluated anew on every path, and paths are chosen as in EAGLE-2."""

from __future__ import annotations

import numpy as np

from llama_cpp_eagle3.engine.draft import Draft
from reference import Array, ReferenceHead, softmax

Path = tuple[int, ...]  # tokens after id_last


class Paths:
    """The head's probabilities after any drafted path."""

    def __init__(self, reference: ReferenceHead, id_last: int):
        self.reference = reference
        self.d2t = reference.head.d2t
        self._states = {(): reference.catch_up(id_last)}

    def _state(self, path: Path) -> tuple[Array, list[list[Array]]]:
        if path not in self._states:
            state, caches = self._state(path[:-1])
            caches = [list(cache) for cache in caches]
            feedback = self.reference.outputs(state)[1]
            pos = self.reference.n_past + len(path) - 1
            self._states[path] = self.reference.step(path[-1], feedback, pos, caches), caches
        return self._states[path]

    def probs(self, path: Path) -> dict[int, float]:
        """Return the probability of each token of the draft vocabulary after `path`."""
        probs = softmax(self.reference.outputs(self._state(path)[0])[0][0])
        ids = range(len(probs)) if self.d2t is None else self.d2t
        return {int(token): float(p) for token, p in zip(ids, probs, strict=True)}

    def best(self, path: Path, k: int) -> list[int]:
        """Return the k most probable tokens after `path`, the best first."""
        probs = self.probs(path)
        return sorted(probs, key=lambda token: -probs[token])[:k]

    def score(self, path: Path) -> float:
        """Return the logarithm of the probability of all of `path`."""
        return sum(float(np.log(self.probs(path[:i])[path[i]])) for i in range(len(path)))


def eagle2(paths: Paths, depth: int, top_k: int, n_tokens: int) -> list[Path]:
    """Return a dynamic tree's nodes: top_k nodes of a level get top_k children, the best n_tokens of all are kept."""
    found: list[Path] = []
    frontier: list[Path] = [()]
    for _ in range(depth):
        level = [(*path, token) for path in frontier for token in paths.best(path, top_k)]
        found += level
        frontier = sorted(level, key=lambda path: -paths.score(path))[:top_k]
    return sorted(found, key=lambda path: -paths.score(path))[:n_tokens]


def paths_of(draft: Draft) -> list[Path]:
    """Return the path of each node, the node included."""
    found: list[Path] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        assert -1 <= parent < i
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found
