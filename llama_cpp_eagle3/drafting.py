"""What is drafted in a round: a chain or a tree as the settings say, or what the planner thinks pays best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._core import Planner
from .context import DraftedContext
from .draft import Draft
from .options import DraftOptions
from .planning import Costs, costs_key, costs_of, load_costs, make_planner
from .speculative import Round

_N_NODES_AUTO = 32
_TOPK_AUTO = 4
_N_MAX_UNMEASURED = 3

DRAFT_SETTINGS = (
    "draft", "draft_n_max", "draft_n_min", "draft_p_min", "draft_tree_depth", "draft_tree_topk", "draft_tree_tokens",
)  # fmt: skip
"""Attributes that may be changed between two generations."""


class Drafting(DraftedContext):
    """A context that can say what may come next."""

    def __init__(
        self, model_path: str, draft: DraftOptions, rpc_servers: str | Sequence[str] | None, options: dict[str, Any]
    ):
        self._planner: Planner | None = None
        self.n_parallel = draft.n_parallel
        self.draft = draft.mode
        self.draft_n_max, self.draft_n_min, self.draft_p_min = draft.n_max, draft.n_min, draft.p_min
        self.draft_tree_depth, self.draft_tree_topk = draft.tree_depth, draft.tree_topk
        self.draft_tree_tokens = draft.tree_tokens
        super().__init__(model_path, draft, rpc_servers, options)
        if self.draft == "auto" and self._drafter is not None:
            try:
                costs = load_costs(costs_key(self))
                if costs is not None:
                    self.convert_draft(costs.draft_type)
            except BaseException:
                self.close()
                raise

    @property
    def planner(self) -> Planner | None:
        """What decides in `draft="auto"`; its `stats()` say what it chose. None before it was needed."""
        return self._planner

    def calibrate(self) -> None:
        """Measure now what passes cost, unless that is known; else the first generation with `draft="auto"` does it.

        Raises:
            Eagle3Error: they must be measured, and the context is not empty.
        """
        with self._guard:
            if self._drafter is not None and self._planner is None:
                self._planner = self._make_planner(costs_of(self))

    def _draft(self, id_last: int, n_room: int) -> Draft:
        """What the draft thinks comes next: at most n_room tokens."""
        drafter = self._drafter
        if drafter is None:
            return self._guess(id_last, min(self.draft_n_max, n_room))
        if drafter.n_past() != self.n_tokens:
            return Draft()  # it has not seen the last tokens
        self._check_servers()
        if self.draft == "auto" and self._planner is not None:
            n_max = n_room if self._target.n_leaves_max > 1 else min(n_room, self.draft_n_max)
            return self._planner.propose(id_last, n_max, n_rows_extra=self._rollback.n_replay)
        if self.draft == "tree" and self._target.n_leaves_max > 1:
            n_tokens = min(self.draft_tree_tokens, self._target.n_leaves_max, n_room)
            depth = min(self.draft_tree_depth, n_tokens)
            return drafter.propose_tree(id_last, depth, self.draft_tree_topk, n_tokens) if n_tokens > 0 else Draft()
        n_max = {
            "tree": self.draft_tree_depth,
            "chain": self.draft_n_max,
            "auto": min(_N_MAX_UNMEASURED, self.draft_n_max),
        }[self.draft]
        n_max = min(n_max, n_room)
        if n_max <= 0 or n_max < self.draft_n_min:
            return Draft()
        tokens = drafter.propose(id_last, n_max, self.draft_p_min)
        return Draft.chain(tokens) if len(tokens) >= self.draft_n_min else Draft()

    def _observe(self, ended: Round, commit_ns: int) -> None:
        """Tell the planner how a round went."""
        if self._planner is not None and self.draft == "auto" and ended.said:
            other_us = 1e-3 * (ended.sample_ns + commit_ns)
            self._planner.observe(ended.said, ended.n_rows, 1e-3 * ended.verify_ns, other_us)

    def _begin_text(self) -> None:
        """Check what may have been changed since loading; have a planner, if one is wanted."""
        n_max, n_kept = (
            self.draft_tree_depth if self.draft == "tree" else self.draft_n_max,
            self.context_params.n_rs_seq,
        )
        if self._drafter is not None and self._rollback.kind == "snapshots" and n_max > n_kept:
            raise ValueError(
                f"a draft of {n_max} tokens is longer than the target's snapshots allow: it keeps {n_kept} per "
                "sequence. Draft less, or load the model with a larger draft_n_max or draft_tree_depth"
            )
        if self.draft != "auto" or self._drafter is None:
            return
        if self._planner is None:
            # on a context that is not empty nothing can be measured: later
            costs = costs_of(self) if self.n_tokens == 0 else load_costs(costs_key(self))
            if costs is not None and costs.draft_type == self._draft_type:
                self._planner = self._make_planner(costs)
        if self._planner is not None:
            self._planner.reset()

    def _make_planner(self, costs: Costs) -> Planner:
        n_leaves = self._target.n_leaves_max
        return make_planner(
            self,
            costs,
            n_max=self.draft_n_max,
            n_nodes_max=min(_N_NODES_AUTO, self.n_batch - 1),
            top_k=_TOPK_AUTO if n_leaves > 1 else 1,
            n_leaves_max=n_leaves,
            n_seq_max=self.n_parallel,
        )

    def _draft_batch(self, seq_ids: list[int], ids_last: list[int], n_rooms: list[int]) -> list[Draft]:
        """What the draft thinks comes next in several sequences: chains, each as long as its room allows."""
        assert self._drafter is not None
        if self.draft == "auto" and self._planner is not None:
            n_replay = sum(self._rollbacks[seq_id].n_replay for seq_id in seq_ids)
            return self._planner.propose_batch(seq_ids, ids_last, n_rooms, n_rows_extra=n_replay)
        chains = self._drafter.propose_batch(seq_ids, ids_last, n_rooms, self.draft_p_min)
        return [Draft.chain(tokens if len(tokens) >= self.draft_n_min else []) for tokens in chains]

    def _guess(self, id_last: int, n_max: int) -> Draft:
        """What a `draft_model` of llama_cpp thinks comes next."""
        if self.draft_model is None or n_max <= 0:
            return Draft()
        self.input_ids[self.n_tokens] = id_last
        guess = self.draft_model(self.input_ids[: self.n_tokens + 1])
        return Draft.chain([int(t) for t in guess[:n_max]])

    def close(self) -> None:
        """Free everything. Happens by itself when the object goes."""
        self._planner = None  # it drives the drafter
        super().close()
