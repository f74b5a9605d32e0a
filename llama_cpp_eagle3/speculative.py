"""The loop: propose, verify, accept, commit.

Lossless by construction: the sampler chain sees the target's logits only, once per emitted token and in order. What the
draft says decides how many rows one pass of the target computes, never which token comes out.

Rows are sampled lazily, when the consumer asks for the next token. A round is therefore open while its tokens go out;
`commit` settles it, and whoever is about to touch the model's state calls that first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .errors import Eagle3Error
from .sampling import Draw

if TYPE_CHECKING:
    from .context import DraftedContext

Tokens = Generator[int, Sequence[int] | None, int | None]
_NO_TOKEN = -1


@dataclass(slots=True)
class Round:
    """A pass of the target over `tokens` from position `n_past` on; those below `llm.n_tokens` are accepted."""

    tokens: list[int]
    n_past: int


class Speculation:
    """One generation: what `Eagle3Llama.generate` runs."""

    def __init__(self, llm: DraftedContext, draw: Draw, stop: Callable[..., Any] | None):
        self.llm = llm
        self.draw = draw
        self.stop = stop
        self.prompt = llm._input_ids.copy()
        self.tokens: list[int] = []

    def run(self) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow the prompt. The consumer may send tokens to be put behind the last one."""
        token = yield from self.accept([])  # the prompt's last row is a round without a draft
        while token is not None:
            draft = self.propose(token)
            self.verify(token, draft)
            token = yield from self.accept(draft)
            commit(self.llm)

    def propose(self, id_last: int) -> list[int]:
        """Draft what may follow `id_last`: as many tokens as are wanted and fit into the context and one batch."""
        llm = self.llm
        n_max = min(llm.draft_n_max, llm.n_batch - 1, llm._n_ctx - llm.n_tokens - 1)
        if n_max <= 0 or n_max < llm.draft_n_min:
            return []
        start = perf_counter_ns()
        draft = llm._draft(id_last, n_max)
        llm._stats.draft_ns += perf_counter_ns() - start
        return draft if len(draft) >= llm.draft_n_min else []

    def verify(self, id_last: int, draft: list[int]) -> None:
        """One pass of the target over the last token and the draft; its rows are there for `accept`."""
        llm, stats = self.llm, self.llm._stats
        start = perf_counter_ns()
        n_past, tokens = llm.n_tokens, [id_last, *draft]
        llm._decode(tokens, n_past)
        llm._round = Round(tokens, n_past)
        llm._keep(id_last, 0)
        stats.verify_ns += perf_counter_ns() - start
        stats.rounds += 1
        if draft:
            stats.drafts += 1
            stats.extend_positions(len(draft))

    def accept(self, draft: list[int]) -> Tokens:
        """Walk along the draft for as long as the target's own sampler says the same, yielding what it says.

        Returns the token to go on from, sampled but not evaluated yet; or None if the stopping criteria said so.
        """
        llm, stats = self.llm, self.llm._stats
        row = llm._last_row()
        for i, guess in enumerate((*draft, _NO_TOKEN)):
            start = perf_counter_ns()
            token = self.draw(row)
            if self.stop is not None and self.stop(llm._input_ids, llm._logits(row)):
                return None
            stats.sample_ns += perf_counter_ns() - start
            accepted = stats.judge(i, token == guess, len(draft))
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
            row += 1
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
    n_accepted = min(llm.n_tokens - opened.n_past, len(opened.tokens))
    if n_accepted < len(opened.tokens):
        llm._target.truncate(llm.n_tokens)
    drafter, tap = llm._drafter, llm._tap
    # a draft that has the rows already was interrupted right here; one that is behind pauses
    if drafter is not None and tap is not None and n_accepted > 0 and drafter.n_past() == opened.n_past:
        drafter.process(tap, opened.tokens[:n_accepted], opened.n_past)
    llm._round = None
    llm._stats.draft_ns += perf_counter_ns() - start
