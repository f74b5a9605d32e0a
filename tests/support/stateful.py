"""Parts of the stateful test: kinds of pairs, its memory of sequences, and the inputs that its rules draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import dflash
from faults import Fault, Full, Interrupt, Lost
from joint import write_both
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import DraftSettings, Sequence
from loading import load
from mtp import write_able
from oracle import Draw, Reference
from recurrent_pairs import write_pair
from small import write_small_pair
from tiny import write_head, write_perfect_pair, write_target

KINDS = (
    *("random", "perfect-row", "perfect-token", "gemma3", "qwen35", "qwen3next", "mamba2", "mimo2-mtp", "qwen35-mtp"),
    *("small-llama", "small-gemma3", "small-lfm2", "llama-dflash", "gemma3-dflash", "qwen35-dflash"),
    *("both-mimo2-mtp", "both-qwen35-mtp"),
)
N_TEXTS, N_TOKENS = 3, 250


@dataclass
class Kind:
    """A target with its head, and the objects that all runs with it share."""

    name: str
    target: Any
    head: Any
    reference: Reference
    fresh: Eagle3Llama | None
    """A pair that shows the expected content of a draft's state."""
    texts: list[list[int]]
    """Beginnings of prompts."""

    @property
    def sources(self) -> dict[str, Any]:
        """Return the drafters as arguments, where they have to be named."""
        return {"draft_sources": ("mtp", "eagle3", "ngram")} if self.name.startswith("both-") else {}


@contextmanager
def open_kind(name: str, folder: Path) -> Iterator[Kind]:
    """Write a pair of this kind, and load the objects that all runs with it share."""
    if name == "random":
        target: Any = write_target(folder / "target.gguf", eos_scale=1.0)
        head: Any = write_head(folder / "head.gguf", target)
    elif name.startswith("perfect"):
        target, head = write_perfect_pair(folder / "target.gguf", folder / "head.gguf", kind=name.split("-")[1])
    elif name.endswith("-dflash"):
        pair = dflash.write_able(folder, name.removesuffix("-dflash"))
        target, head = pair.target, pair.drafter
    elif name.startswith("both-"):
        target, head = write_both(folder, name.removeprefix("both-"))
    elif name.endswith("-mtp"):
        target, head = write_able(folder, name), None
    elif name.startswith("small-"):
        target, head = write_small_pair(folder, "llama", name.removeprefix("small-"))
    else:
        target, head = write_pair(folder, name)
    reference = Reference(target)
    n_vocab = min(reference.plain.n_vocab(), 128)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, n_vocab, N_TOKENS).tolist() for _ in range(N_TEXTS)]
    kind = Kind(name, target, head, reference, None, texts)
    with closing(load(target, head, draft="chain", **kind.sources)) as kind.fresh:
        yield kind
    reference.plain.close()


class Oops(Exception):
    """A logits processor that fails."""


class Failing:
    """A logits processor that raises at its n-th call."""

    def __init__(self, n: int, kind: type[BaseException]):
        self.n, self.kind, self.n_calls = n, kind, 0
        self.raised: list[BaseException] = []

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.n_calls += 1
        if self.n_calls >= self.n:
            self.raised.append(self.kind(f"call {self.n_calls}"))
            raise self.raised[-1]
        return scores


@dataclass
class Request:
    """A sequence, and the expected facts about it."""

    sequence: Sequence
    prompt: list[int]
    draw: Draw
    max_tokens: int
    failing: Failing | None = None
    may_be_cancelled: bool = False
    is_watched: bool = True
    """Whether the test gets all of its outputs."""
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    has_ended: bool = False
    is_checked: bool = False


@dataclass
class Stream:
    """A generator of `Llama.generate` that waits for its next token."""

    stream: Any
    prompt: list[int]
    draw: Draw
    tokens: list[int]
    is_disturbed: bool = False
    """Whether something else has happened since its last token."""


class Clock:
    """A clock on which every reading adds the same time, so that nothing depends on the machine's speed."""

    def __init__(self, step: int):
        self._ticks = itertools.count(step, step)

    def __call__(self) -> int:
        return next(self._ticks)


class ClockedDrafter:
    """A planner's drafter with such a clock."""

    def __init__(self, drafter: Any):
        self.drafter, self._clock = drafter, Clock(50)
        self.n_unroll, self.n_expand, self.n_waiting = drafter.n_unroll, drafter.n_expand, drafter.n_waiting
        self.is_parallel = drafter.is_parallel

    @property
    def t_draft_us(self) -> int:
        return self._clock()

    def begin(self, *args: Any) -> Any:
        self.drafter.begin(*args)
        return self.drafter.nodes

    def expand(self, nodes: Any, top_k: int) -> Any:
        n = len(self.drafter.nodes)
        self.drafter.expand(nodes, top_k)
        return self.drafter.nodes[n:]


# inputs that the rules draw

texts = st.tuples(
    st.integers(0, N_TEXTS - 1),
    st.one_of(st.integers(0, 20), st.integers(0, 130), st.sampled_from([64, 100, 235, 250])),
    st.lists(st.integers(0, 127), max_size=5),
)
"""The first tokens of one of the texts, and other tokens."""
draws = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 0.0, 0.0, 0.8, 1.5]),
    top_k=st.sampled_from([40, 40, 0]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    mirostat_mode=st.sampled_from([0, 0, 0, 2]),
    seed=st.integers(1, 3),
    ignore_eos=st.booleans(),
)
GREEDY = Draw()
modes = st.builds(
    DraftSettings,
    mode=st.sampled_from(["off", "chain", "tree", "auto"]),
    n_max=st.integers(1, 5),
    n_min=st.sampled_from([0, 0, 1]),
    p_min=st.sampled_from([0.0, 0.0, 0.1]),
    tree_depth=st.integers(1, 4),
    tree_topk=st.integers(1, 3),
    tree_tokens=st.integers(4, 8),
)
errors = st.one_of(
    st.builds(
        Fault,
        st.sampled_from([Interrupt, Lost]),
        names=st.sampled_from([("decode_parts",), ("accept_batch",), ("process_batch",)]),
        after=st.booleans(),
        skip=st.integers(0, 3),
    ),
    st.builds(Fault, st.sampled_from([Interrupt, Lost]), after=st.booleans(), skip=st.integers(0, 60)),
    st.builds(
        Fault,
        st.just(Full),
        names=st.sampled_from([("decode_parts",), ("state_set",)]),
        after=st.just(False),
        skip=st.integers(0, 2),
        times=st.integers(1, 6),
    ),
)
maybe_errors = st.one_of(st.none(), st.none(), errors)
picks = st.integers(0, 1 << 16)
