"""The loop: propose, verify, accept, commit.

Lossless by construction: the sampler chain sees the target's logits only, once per emitted token and in order. What the
draft says decides how many rows one pass of the target computes, never which token comes out.

Rows are sampled lazily, when the consumer asks for the next token. A round is therefore open while its tokens go out;
`commit` settles it, and whoever is about to touch the model's state calls that first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .draft import Draft
from .errors import Eagle3Error
from .sampling import Draw

if TYPE_CHECKING:
    from .context import DraftedContext
    from .drafting import Drafting

Tokens = Generator[int, Sequence[int] | None, int | None]
_NO_DRAFT = Draft()
N_REPLAY_MAX = 8
"""A target that must evaluate this many accepted tokens once more gets a round without a draft."""


@dataclass(slots=True)
class Round:
    """A pass of the target over the last token and its draft, from position `n_past` on."""

    draft: Draft
    n_past: int
    path: list[int] = field(default_factory=list)
    """Rows of the accepted tokens: 0, the last token itself, then 1 + i for token i of the draft."""
    tokens: list[int] = field(default_factory=list)
    """The tokens of `path`."""
    n_rows: int = 0
    """Of the pass, with tokens that it evaluated once more."""
    verify_ns: int = 0
    sample_ns: int = 0
    said: list[int] = field(default_factory=list)
    """What the target said: the drafted tokens that were accepted, and the one behind them."""


class Speculation:
    """One generation: what `Eagle3Llama.generate` runs."""

    def __init__(self, llm: Drafting, draw: Draw, stop: Callable[..., Any] | None):
        self.llm = llm
        self.draw = draw
        self.stop = stop
        self.prompt = llm._input_ids.copy()
        self.tokens: list[int] = []

    def run(self) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow the prompt. The consumer may send tokens to be put behind the last one."""
        llm = self.llm
        token = yield from self.accept(_NO_DRAFT)  # the prompt's last row is a round without a draft
        while token is not None:
            draft = self.propose(token)
            opened = self.verify(token, draft)
            token = yield from self.accept(draft)
            start = perf_counter_ns()
            commit(llm)
            llm._observe(opened, perf_counter_ns() - start)

    def propose(self, id_last: int) -> Draft:
        """Draft what may follow `id_last`: as much as fits into the context and one batch."""
        llm = self.llm
        n_room = min(llm._n_rows_max() - 1, llm._n_ctx - llm.n_tokens - 1)
        if n_room <= 0 or llm._rollback.n_replay > N_REPLAY_MAX:
            return _NO_DRAFT
        start = perf_counter_ns()
        draft = llm._draft(id_last, n_room)
        llm._stats.draft_ns += perf_counter_ns() - start
        return draft

    def verify(self, id_last: int, draft: Draft) -> Round:
        """One pass of the target over the last token and the draft; its rows are there for `accept`."""
        llm, stats = self.llm, self.llm._stats
        start = perf_counter_ns()
        n_past, n_rows = llm.n_tokens, llm._rollback.n_replay + 1 + len(draft)
        llm._verify(id_last, draft, n_past)
        opened = llm._round = Round(draft, n_past, n_rows=n_rows)
        llm._keep(id_last, 0)
        opened.verify_ns = perf_counter_ns() - start
        stats.verify_ns += opened.verify_ns
        stats.rounds += 1
        if draft.tokens:
            stats.drafts += 1
            stats.extend_positions(draft.depth)
        return opened

    def accept(self, draft: Draft) -> Tokens:
        """Walk along the draft for as long as the target's own sampler says the same, yielding what it says.

        Returns the token to go on from, sampled but not evaluated yet; or None if the stopping criteria said so.
        """
        llm, stats = self.llm, self.llm._stats
        row, node = llm._last_row(), -1
        for depth in range(len(draft) + 1):
            start = perf_counter_ns()
            token = self.draw(row)
            if self.stop is not None and self.stop(llm._input_ids, llm._logits(row)):
                return None
            sample_ns = perf_counter_ns() - start
            stats.sample_ns += sample_ns
            if llm._round is not None:
                llm._round.sample_ns += sample_ns
                llm._round.said.append(token)
            node = draft.child(node, token)
            accepted = stats.judge(depth, node >= 0, len(draft))
            llm.last_token_drafted = accepted

            n_past, epoch = llm.n_tokens, llm._epoch
            self.tokens.append(token)
            sent = yield token

            if llm._epoch != epoch or llm.n_tokens != n_past:
                self.check_own(n_past)
            if sent:
                self.tokens += sent
                llm._eval([token, *sent[:-1]])
                return int(sent[-1])
            if not accepted or llm._round is None:  # None: somebody settled the round meanwhile
                break
            row = node + 1
            llm._keep(token, row)
        return token

    def check_own(self, n_past: int) -> None:
        """Somebody used the model between two tokens: go on only if what this generation stands on is still there."""
        llm = self.llm
        n_prompt = len(self.prompt)
        intact = (
            llm.n_tokens >= n_past
            and bool((llm.input_ids[:n_prompt] == self.prompt).all())
            and llm.input_ids[n_prompt:n_past].tolist() == self.tokens[: n_past - n_prompt]
        )
        if not intact:
            raise Eagle3Error(
                "the model was used for something else while this generator waited, and its tokens are gone. "
                "Save the state before and load it afterwards, or start a new generation."
            )
        llm._go_back(n_past)


def commit(llm: DraftedContext) -> None:
    """Make target memory and draft describe the accepted prefix. Does nothing when no round is open."""
    opened = llm._round
    if opened is None:
        return
    start = perf_counter_ns()
    # whoever comes back after an interrupt finds some of this done
    if llm._rollback.is_open:
        llm._rollback.commit(len(opened.path))
    elif llm._target.holds_tree:
        llm._target.keep(opened.path)
    llm._show_draft(opened.tokens, opened.n_past, opened.path)
    llm._round = None
    llm._stats.draft_ns += perf_counter_ns() - start
