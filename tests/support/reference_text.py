"""The expected drafts of a `NgramDrafter`, found by searching the whole text."""

from __future__ import annotations

from collections.abc import Sequence

ORDERS = (16, 8, 4, 2)
N_LONGEST = 64
N_VOTES = 8
NOVELTY = 1.3


def matches(text: Sequence[int], end: Sequence[int]) -> list[tuple[int, int]]:
    """Return (position after it, length) of the latest matches of `end`'s end in `text` with a token after them.

    A negative token ends a text.
    """
    for n in ORDERS:
        if len(end) < n:
            continue
        tail = list(end[-n:])
        places = [p for p in range(len(text) - 1, n - 1, -1) if text[p] >= 0 and list(text[p - n : p]) == tail]
        if places:
            return [(p, common_end(text[:p], end)) for p in places[:N_VOTES]]
    return []


def common_end(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    while n < min(len(a), len(b), N_LONGEST) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n


def continued(text: Sequence[int], place: int, n: int) -> list[int]:
    """Return n tokens from a position on, if the text continues as it did after that position."""
    longer = list(text)
    while len(longer) < place + n:
        longer.append(longer[place - len(text)])
    return longer[place : max(place + n, len(text))]


def propose(
    text: Sequence[int], n_max: int, n_nodes: int, top_k: int, others: Sequence[tuple[Sequence[int], int]] = ()
) -> list[tuple[int, int, float, int]]:
    """Return (parent, token, p, depth) as `NgramDrafter.propose` does. others: (continuation, length) of a store."""
    votes = [(continued(text, p, n_max), length) for p, length in matches(text, text)]
    longest = max((length for _, length in votes), default=0)
    votes += [(list(tokens), length) for tokens, length in others if length > longest]
    nodes: list[tuple[int, int, float, int]] = []
    branches: list[tuple[float, float, list[tuple[list[int], int]], int, int]] = []

    def expand(voters: list[tuple[list[int], int]], p_path: float, depth: int, node: int) -> None:
        ballots: dict[int, list[tuple[list[int], int]]] = {}
        for vote in voters:
            if depth < len(vote[0]):
                ballots.setdefault(vote[0][depth], []).append(vote)
        weights = {token: sum((n + depth) ** 2 for _, n in said) for token, said in ballots.items()}
        total = sum(weights.values()) + NOVELTY * max(n + depth for _, n in voters)
        for token in sorted(ballots, key=lambda t: -weights[t])[:top_k]:
            p = weights[token] / total
            branches.append((p_path * p, p, ballots[token], node, depth + 1))

    if votes and n_max > 0:
        expand(votes, 1.0, 0, -1)
    while branches and len(nodes) < n_nodes:
        best = max(range(len(branches)), key=lambda i: branches[i][0])
        p_path, p, voters, parent, depth = branches.pop(best)
        nodes.append((parent, voters[0][0][depth - 1], p, depth))
        if depth < n_max:
            expand(voters, p_path, depth, len(nodes) - 1)
    return nodes
