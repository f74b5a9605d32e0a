"""Simulate a target and a head in time, to test the planner's choices.

The target's token is always TRUTH. Whether the head drafts it is drawn when a node is drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from drafting import is_chain, plan, plan_all
from llama_cpp_eagle3._core import CostCurve, Policy
from llama_cpp_eagle3.engine.drafting import N_REPLAY_MAX

TRUTH = 0
Node = tuple[int, int, float, int, int]
"""parent, token, p, depth, seq_id"""

# Measured at the 1B shape with 2 threads: milliseconds of one pass over n rows, of a draft step of n nodes, of the
# draft's first graph over n rows
TARGETS = {
    "Q4_0": {1: 14.6, 2: 24.4, 3: 34.4, 4: 23.5, 5: 38.2, 6: 49.5, 8: 46.6, 12: 66.3, 16: 68.2, 32: 132.0},
    "Q8_0": {1: 23.5, 2: 51.9, 3: 59.2, 4: 65.0, 5: 88.8, 6: 96.1, 8: 84.1, 12: 106.0, 16: 136.0, 32: 251.0},
    "F16": {1: 41.7, 2: 62.4, 3: 63.0, 4: 67.5, 5: 71.5, 6: 92.3, 8: 98.0, 12: 111.0, 16: 123.0, 32: 209.0},
}
STEP = {1: 1.9, 2: 5.1, 4: 6.9, 8: 8.1}
BEGIN = {1: 2.2, 4: 3.1, 16: 4.9}
KV_ONLY = 0.14  # per row
UNROLLED = 0.3  # for a step that needs no graph of its own


def us(ms: dict[int, float]) -> dict[int, float]:
    return {n: 1000.0 * t for n, t in ms.items()}


@dataclass
class Costs:
    """The real times, in microseconds, with noise (relative) and a slowdown by the time that has passed."""

    target: dict[int, float]
    begin: dict[int, float] = field(default_factory=lambda: us(BEGIN))
    step: dict[int, float] = field(default_factory=lambda: us(STEP))
    noise: float = 0.0

    def __post_init__(self) -> None:
        # interpolate as the planner does: the simulated machine's costs are known
        self.curves = {name: CostCurve(getattr(self, name)) for name in ("target", "begin", "step")}
        self.rng = np.random.default_rng(0)

    def of(self, name: str, n: int) -> float:
        t = self.curves[name].at(n)
        return t * float(np.exp(self.noise * self.rng.standard_normal())) if self.noise else t


@dataclass
class Head:
    """p(rng, depth, n_tokens): its best candidate's probability; hit(p, depth, n_tokens): how often that is right."""

    p: Callable[[np.random.Generator, int, int], float]
    hit: Callable[[float, int, int], float]
    siblings: float = 0.4
    """Acceptance of the next candidate, as a part of the probability that earlier candidates leave."""
    rates: Sequence[float] | None = None
    """The acceptance of the best candidate by depth, where it depends on nothing else."""
    flat: bool = False
    """Whether all candidates have the same probability: only their order counts."""

    @classmethod
    def constant(cls, *rates: float, says: float | None = None) -> Head:
        """Return a head of one acceptance, or one per depth: the last one stays. Best nodes have one probability."""
        said = rates[0] if says is None else says
        siblings = 0.4 if rates[0] else 0.0
        at = [*rates, *[rates[-1]] * 64]
        return cls(lambda *_: said, lambda _, depth, __: at[depth - 1], siblings, at)

    def expected(self, n: int) -> float:
        """Return the expected tokens of a step with a chain of n."""
        assert self.rates is not None
        return 1.0 + float(np.cumprod(self.rates[:n]).sum())

    @classmethod
    def varied(cls, mean: float, spread: float = 3.0, trust: float = 1.0) -> Head:
        """Return a head with a real one's confidence, U-shaped for a small spread; `trust` is the true part of it."""
        return cls(
            lambda rng, *_: float(rng.beta(mean * spread, (1 - mean) * spread)), lambda p, *_: trust * p, 0.4 * trust
        )


class Machine:
    """Draws drafts and advances the clock. It is also a drafter for the planner.

    beside: another machine, whose clock and texts it shares, and which verifies for both.
    """

    is_parallel = False
    n_expand = 128
    n_wait_max = 128
    """Number of waiting rows at most; with more, the drafter reads them without being asked."""
    read_us = 1000.0 * KV_ONLY
    """Microseconds of a waiting row."""

    def __init__(
        self,
        costs: Costs,
        head: Head,
        seed: int = 0,
        n_seqs: int = 1,
        n_unroll: int = 1,
        n_snapshots: int | None = None,
        beside: Machine | None = None,
    ):
        self.costs, self.head, self.n_unroll, self.n_snapshots = costs, head, n_unroll, n_snapshots
        self.rng = np.random.default_rng(seed)
        self._clock: list[float] = [0.0] if beside is None else beside._clock
        self.nodes: list[Node] = []
        self.waiting = [1] * n_seqs
        self.n_tokens: list[int] = [0] * n_seqs if beside is None else beside.n_tokens
        self.others: list[Machine] = []
        if beside is not None:
            beside.others.append(self)
        self.n_steps = 0
        self.n_replay = [0] * n_seqs
        """Accepted tokens that the next pass evaluates again, if the state can only go back to before a draft."""

    @property
    def t(self) -> float:
        return self._clock[0]

    @t.setter
    def t(self, t: float) -> None:
        self._clock[0] = t

    @property
    def t_draft_us(self) -> float:
        return self.t

    def n_waiting(self, seq_id: int) -> int:
        return self.waiting[seq_id]

    def begin(self, seq_ids: Sequence[int], _: Sequence[int], top_k: int, n_steps: int = 1) -> list[Node]:
        self.nodes = []
        for s in seq_ids:
            if self.waiting[s] > 16:  # the drafting graph does not read these rows
                self.t += self.read_us * (self.waiting[s] - 1)
                self.waiting[s] = 1
        self.t += self.costs.of("begin", sum(self.waiting[s] for s in seq_ids))
        for s in seq_ids:
            self.waiting[s] = 0
            self._children(-1, s, top_k)
        level = list(range(len(self.nodes)))
        for _ in range(n_steps - 1):  # chains in one graph
            assert top_k == 1
            self.t += UNROLLED * self.costs.of("step", len(level))
            first = len(self.nodes)
            for i in level:
                self._children(i, self.nodes[i][4], top_k)
            level = list(range(first, len(self.nodes)))
        return self.nodes

    def expand(self, nodes: Sequence[int], top_k: int) -> list[Node]:
        n = len(self.nodes)
        self.t += self.costs.of("step", len(nodes))
        for i in nodes:
            self._children(i, self.nodes[i][4], top_k)
        return self.nodes[n:]

    def _children(self, parent: int, seq_id: int, top_k: int) -> None:
        depth = 1 if parent < 0 else self.nodes[parent][3] + 1
        n_tokens = self.n_tokens[seq_id] + depth
        left, missed, u = 1.0, 1.0, self.rng.random()
        for j in range(top_k):
            p = self.head.p(self.rng, depth, n_tokens) if j == 0 or self.head.flat else 0.4 * left
            left -= p
            # tokens off the right path are never TRUTH, since only one node at a time can be right
            q = self.head.hit(p, depth, n_tokens) if j == 0 else self.head.siblings * missed
            missed = 1.0 - q if j == 0 else missed - q
            on_path = parent < 0 or self.nodes[parent][1] == TRUTH
            self.nodes.append((parent, TRUTH if on_path and 0 <= u < q else j + 1, p, depth, seq_id))
            u -= q

    def verify(self, trees: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[list[int], int, float, float]:
        """Return the tokens of each sequence, rows and microseconds of the pass, and of the rest."""
        n_rows = sum(1 + len(tokens) for tokens, _ in trees) + sum(self.n_replay)
        t_verify, t_other = self.costs.of("target", n_rows), 0.0
        emitted = []
        self.n_steps += 1
        for s, (tokens, parents) in enumerate(trees):
            node, n = -1, 1
            for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                if token == TRUTH and parent == node:
                    node, n = i, n + 1
            emitted.append(n)
            if self.n_snapshots is not None:
                n_rejected = 1 + len(tokens) - n
                self.n_replay[s] = 0 if n_rejected <= self.n_snapshots else self.n_replay[s] + n
            self.n_tokens[s] += n
            for drafter in (self, *self.others):
                drafter.waiting[s] += n
                if drafter.waiting[s] > drafter.n_wait_max:  # the drafter processes them without drafting
                    t_other += drafter.read_us * drafter.waiting[s]
                    drafter.waiting[s] = 1
        self.t += t_verify + t_other
        return emitted, n_rows, t_verify, t_other


class ParallelMachine(Machine):
    """A head that drafts all levels in its first graph. Costs of its steps are that graph's, with one row waiting."""

    is_parallel = True

    def begin(self, seq_ids: Sequence[int], ids_last: Sequence[int], top_k: int, n_steps: int = 1) -> list[Node]:
        super().begin(seq_ids, ids_last, top_k)
        self.n_levels = n_steps
        if n_steps > 1:
            more = self.costs.of("step", (n_steps - 1) * len(seq_ids)) - self.costs.curves["begin"].at(1)
            self.t += max(0.0, more)
        return self.nodes

    def expand(self, nodes: Sequence[int], top_k: int) -> list[Node]:
        n = len(self.nodes)
        for i in nodes:
            if self.nodes[i][3] < self.n_levels:
                self._children(i, self.nodes[i][4], top_k)
        return self.nodes[n:]


def run_plain(costs: Costs, n_tokens: int) -> float:
    """Return tokens per second without a head."""
    return 1e6 * n_tokens / sum(costs.of("target", 1) for _ in range(n_tokens))


def run_chain(
    costs: Costs, head: Head, n_draft: int, n_tokens: int, seed: int = 1, n_unroll: int = 1, kind: type = Machine
) -> float:
    """Return tokens per second of chains of one length."""
    machine = kind(costs, head, seed, n_unroll=n_unroll)
    rate = run_batch(machine, n_draft, 1, n_tokens)
    return rate if head.rates is None else rate * head.expected(n_draft) * machine.n_steps / machine.n_tokens[0]


def run_tree(costs: Costs, head: Head, depth: int, top_k: int, n_nodes: int, n_tokens: int, seed: int = 1) -> float:
    """Return tokens per second of EAGLE-2's trees: every level expands its top_k best nodes, the best are kept."""
    m = Machine(costs, head, seed)
    while m.n_tokens[0] < n_tokens:
        m.begin([0], [TRUTH], top_k)
        cum = [p for _, _, p, _, _ in m.nodes]
        level = list(range(len(m.nodes)))
        for _ in range(depth - 1):
            level = sorted(level, key=lambda i: -cum[i])[:top_k]
            first = len(m.nodes)
            m.expand(level, top_k)
            cum += [cum[parent] * p for parent, _, p, _, _ in m.nodes[first:]]
            level = list(range(first, len(m.nodes)))
        kept = sorted(sorted(range(len(cum)), key=lambda i: (-cum[i], i))[:n_nodes])
        tokens = [m.nodes[i][1] for i in kept]
        parents = [-1 if m.nodes[i][0] < 0 else kept.index(m.nodes[i][0]) for i in kept]
        m.verify([(tokens, parents)])
    return 1e6 * m.n_tokens[0] / m.t


def make_policy(
    machine: Machine, target: dict[int, float] | None = None, *, order: Sequence[Machine] = (), **options: int
) -> Policy:
    """Make a planner that knows the costs, or other costs of the target. order: that of several drafters."""
    drafters = order or (machine,)
    curves = [target or machine.costs.target, *(c for m in drafters for c in (m.costs.begin, m.costs.step))]
    return Policy(drafters, [CostCurve(curve) for curve in curves], **options)


def run_auto(machine: Machine, planner: Policy, n_tokens: int, text: int = 128, log: list[int] | None = None) -> float:
    """Return tokens per second of the planner, over texts of so many tokens.

    Chains count their expected tokens, not the drawn ones, if the head knows the expectation.
    """
    exact = machine.head.rates is not None
    n_expected = 0.0
    start, t_start = machine.n_tokens[0], machine.t
    next_text = start + text
    while machine.n_tokens[0] < start + n_tokens:
        if machine.n_tokens[0] >= next_text:
            planner.reset()
            next_text += text
        (n_replay,) = machine.n_replay
        draft = plan(planner, TRUTH, 1000 if n_replay <= N_REPLAY_MAX else 0, n_rows_extra=n_replay)
        (n,), n_rows, t_verify, t_other = machine.verify([(draft.tokens, draft.parents)])
        planner.observe([0], [[TRUTH] * n], n_rows, t_verify, t_other)
        if log is not None:
            log.append(len(draft))
        exact = exact and is_chain(draft)
        n_expected += machine.head.expected(len(draft)) if exact else 0.0
    if exact:
        return 1e6 * n_expected / (machine.t - t_start)
    return 1e6 * (machine.n_tokens[0] - start) / (machine.t - t_start)


def run_batch(machine: Machine, how: Policy | int, n_seqs: int, n_tokens: int) -> float:
    """Return tokens per second of several sequences together, with a planner or with chains of one length."""
    ids, start, t_start = list(range(n_seqs)), sum(machine.n_tokens), machine.t
    while sum(machine.n_tokens) < start + n_tokens:
        trees: list[tuple[list[int], list[int]]] = [([], [])] * n_seqs
        if isinstance(how, Policy):
            drafts = plan_all(how, ids, [TRUTH] * n_seqs, [1000] * n_seqs)
            assert all(is_chain(draft) for draft in drafts)
            trees = [(draft.tokens, draft.parents) for draft in drafts]
        elif how > 0 and max(machine.n_replay) <= N_REPLAY_MAX:
            n = min(how, machine.n_unroll)
            machine.begin(ids, [TRUTH] * n_seqs, 1, n)
            level = list(range(len(machine.nodes) - n_seqs, len(machine.nodes)))
            for _ in range(how - (1 if machine.is_parallel else n)):
                first = len(machine.nodes)
                machine.expand(level, 1)
                level = list(range(first, len(machine.nodes)))
            trees = [([node[1] for node in machine.nodes if node[4] == s], list(range(-1, how - 1))) for s in ids]
        emitted, n_rows, t_verify, t_other = machine.verify(trees)
        if isinstance(how, Policy):
            how.observe(ids, [[TRUTH] * n for n in emitted], n_rows, t_verify, t_other)
    return 1e6 * (sum(machine.n_tokens) - start) / (machine.t - t_start)
