"""Verification: one pass of the target over the scheduled tokens and their drafts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from .._core import BatchPart
from ..errors import Eagle3Error
from .logprobs import token_logprob
from .memory import Memory
from .sequence import ScheduledSequence, Sequence, Step, TokenLogprob

N_ROWS_ARGMAX = 33
"""Most rows of one sequence of which a device takes the argmax at once."""


class Verifier:
    """Runs the target on steps, and keeps track of which sequences' rows the last batch holds."""

    def __init__(self, memory: Memory, n_batch: int, after_pass: Callable[[], None]):
        """n_batch: rows of a batch. after_pass: see `Engine`."""
        target = memory.target
        self.memory, self.n_batch, self._after_pass = memory, n_batch, after_pass
        self.argmax_on_device = False
        """Whether the target's device takes the argmax of each row, so that logits are not copied to the host."""
        self._can_take_argmax = target.logits_are_remote and not (memory.tap and memory.tap.needs_all_outputs)
        self.owners: list[Sequence] = []
        """Sequences whose `rows` are those of the last batch."""
        self._n_batches = target.n_batches  # the target's count after that batch

    @property
    def n_drafts_max(self) -> int:
        """Tokens of a sequence's draft that can be verified."""
        return min(self.n_batch, N_ROWS_ARGMAX - 1) if self.argmax_on_device else self.n_batch

    def verify(self, step: Step) -> None:
        """Evaluate a step's tokens and drafts in one batch.

        Raises:
            ContextFullError: the context has no room for them.
        """
        target, batch = self.memory.target, self._batch(step)
        if batch:
            self.drop_rows()
            target.decode_parts(batch)
            self._after_pass()
            self._n_batches = target.n_batches
        sequences = [scheduled.sequence for scheduled in step.scheduled]
        # without a batch the other sequences' rows still exist
        self.owners = sequences + [s for s in self.owners if not any(s is x for x in sequences)]

    @property
    def has_rows(self) -> bool:
        """Whether the target still holds the rows of the last step, and has not decoded anything else since."""
        return self.memory.target.n_batches == self._n_batches

    def drop_rows(self, owner: Sequence | None = None) -> None:
        """Clear the sequences' `rows`. owner: the sequence of the last row, which other code has decoded."""
        for s in self.owners:
            s.rows = []
        self.owners = [] if owner is None else [owner]
        if owner is not None:
            owner.rows = [-1]
        self._n_batches = self.memory.target.n_batches

    def choose_argmax(self, sequences: SequenceOf[Sequence]) -> None:
        """Let an accelerator take the argmax of each row while all sequences are greedy."""
        if not self._can_take_argmax:
            return
        wanted = all(s.chain is not None and s.chain.is_argmax and not s.wants_logits for s in sequences)
        if wanted == self.argmax_on_device:
            return
        try:
            self.memory.target.set_device_argmax(min(N_ROWS_ARGMAX, self.n_batch) if wanted else 0)
        except Eagle3Error:
            self._can_take_argmax = False  # several devices that act as one cannot do it
            return
        self.argmax_on_device = wanted
        if not wanted:
            self.drop_rows()  # the last rows' logits stayed on the device

    def score(self, scheduled: ScheduledSequence, found: list[TokenLogprob]) -> None:
        """Add the log-probabilities of those of a prompt's tokens that the rows of a chunk predict."""
        s = scheduled.sequence
        assert s.request.logprobs is not None
        n_past = scheduled.n_past
        for row, i in enumerate(range(n_past + 1, min(n_past + len(scheduled.tokens) + 1, s.n_prompt))):
            if i == len(found) + 1:  # the others are evaluated again
                logits = self.memory.target.logits(scheduled.first_row + row)
                found.append(token_logprob(logits, s.tokens[i], s.request.logprobs))

    def _batch(self, step: Step) -> list[BatchPart]:
        """The rows of a batch; the last one of each sequence's tokens has logits, and those of its draft."""
        batch, row = [], 0
        for scheduled in step.scheduled:
            s, draft, tokens = scheduled.sequence, scheduled.draft, scheduled.tokens
            if not tokens:
                continue
            s.is_dirty = True
            scheduled.root = row + len(tokens) - 1
            row += len(tokens) + len(draft.tokens)
            is_end = scheduled.n_past + len(tokens) == len(s.tokens)
            logits = "all" if s.logits_all else "last" if is_end else "none"
            scheduled.has_logits = logits != "none"
            if scheduled.media is None:
                batch.append(BatchPart(s.seq_id, scheduled.n_past, tokens, draft.tokens, draft.parents, logits))
            else:
                batch.append(scheduled.media.piece(self.memory.target, s.seq_id, scheduled.n_past, len(tokens), logits))
        step.n_own_rows = row
        return batch
