"""One step: schedule, propose, verify, sample, commit.

Lossless by construction: a sequence's sampler sees only the target's logits, once per sampled token and in order. A
draft decides how many rows one pass of the target computes, never which token is sampled.

A step ends with `commit`. In a step with a paced sequence the client takes token after token (`sample`), and whatever
the engine does next commits first, however many tokens were taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

from ..errors import ContextFullError, LogitsError
from .detokenizer import Detokenizer
from .drafting import Drafting
from .keeping import Keeping
from .logprobs import token_logprob, token_prob
from .memory import Memory
from .prefill_budget import PrefillBudget
from .scheduler import Scheduler
from .sequence import FinishReason, Output, Outputs, ScheduledSequence, Sequence, Step, TokenLogprob
from .slots import Slots
from .verifier import Verifier
from .vocab import Vocab

_log = logging.getLogger("llama_cpp_eagle3")
T = TypeVar("T")


class Stepper:
    """Runs the steps of an engine."""

    def __init__(
        self,
        slots: Slots,
        vocab: Vocab,
        drafting: Drafting,
        n_batch: int,
        prefill_budget: int | None,
        after_pass: Callable[[], None],
    ):
        """The arguments are those of `Engine`."""
        self.slots, self.vocab, self.drafting = slots, vocab, drafting
        self.memory: Memory = slots.memory
        self.outputs = Outputs()
        self.prefill_budget = PrefillBudget(prefill_budget, lambda: drafting.reading_ns)
        self.verifier = Verifier(self.memory, n_batch, after_pass)
        self.scheduler = Scheduler(
            slots, self.verifier, self.outputs, self.prefill_budget, n_batch, on_run=drafting.begin, on_end=self.keep
        )
        self.keeping: Keeping | None = None
        """Keeps the texts that end, and hidden states of theirs; None: they are not kept."""
        self.on_sample: Callable[[ScheduledSequence, int], int] | None = None
        """Hook for experiments: (scheduled sequence, sampled token) -> the token to go on with."""
        self.opened: Step | None = None
        """The step whose rows are being sampled."""

    def step(self) -> None:
        """Run a step for all running sequences; its outputs go to `outputs`. It stays open if one is paced."""
        step = self.scheduler.schedule()
        while step is not None:
            if step.may_draft:
                self.propose(step)
            try:
                self.verify(step)
                break
            except ContextFullError as e:
                step = self.scheduler.reschedule(step, e)
        is_paced = False
        for scheduled in () if step is None else step.scheduled:
            if scheduled.sequence.is_paced:
                is_paced = True
            else:
                self._sample_all(scheduled.sequence)
        if not is_paced:
            self.commit()
            self.scheduler.retire()

    def propose(self, step: Step) -> None:
        """Draft after the last token of the sequences that decode."""
        start = perf_counter_ns()
        if self.drafting.propose(step, self.scheduler.n_drafts_max):
            step.draft_ns = perf_counter_ns() - start

    def verify(self, step: Step) -> None:
        """Let the target evaluate the scheduled tokens and drafts, and open the step for sampling."""
        start = perf_counter_ns()
        self.verifier.verify(step)
        step.verify_ns = perf_counter_ns() - start
        self.opened = step
        for scheduled in step.scheduled:
            s, n, media = scheduled.sequence, len(scheduled.tokens), scheduled.media
            if n:
                scheduled.path = [0] if n == 1 else list(range(n))
                s.n_past = scheduled.n_past + n
            if scheduled.draft.tokens:
                s.result.stats.begin_draft(scheduled.draft, self.memory.source_names)
            scheduled.is_done = s.n_past < len(s.tokens) or s.chain is None
            s.scheduled = scheduled
            if media is not None and s.n_past == media.end:
                media.drop_rows()
            if s.result.prompt_logprobs is not None and scheduled.is_prefill:
                self.verifier.score(scheduled, s.result.prompt_logprobs)
        if step.n_own_rows and step.scheduled[0].media is None:
            self.prefill_budget.observe(step.n_own_rows, step.n_prefill_rows, step.verify_ns)

    def sample(self, s: Sequence) -> Output | None:
        """Sample the next row along a sequence's draft: a token with its text, log-probability and finish reason.

        None if the open step has no more rows for the sequence: after the first token that was not drafted.
        """
        scheduled = s.scheduled
        if scheduled is None or scheduled.is_done:
            return None
        node, draft = scheduled.node, scheduled.draft
        if node >= 0:  # the token sampled last had been drafted: its row is accepted
            scheduled.path.append(node + 1)
            s.n_past += 1
        start = perf_counter_ns()
        token, logprob = self._draw(scheduled)
        scheduled.sample_ns += perf_counter_ns() - start
        node = scheduled.node = draft.child(node, token) if draft.tokens else -1
        s.result.stats.judge(draft, len(scheduled.sampled), node, self.memory.source_names)
        scheduled.is_done = node < 0
        scheduled.sampled.append(token)
        s.tokens.append(token)
        by = self.memory.names_of(draft.drafters_of(node)) if node >= 0 else ()
        detokenizer = s.detokenizer
        if detokenizer is None:
            return Output(s, token, "", node >= 0, logprob, drafted_by=by)
        reason = s.result.finish_reason = self._finish_reason(s, detokenizer, token)
        return Output(s, token, detokenizer.release(at_end=reason != ""), node >= 0, logprob, reason, by)

    def commit(self) -> None:
        """End the open step, if there is one: target, drafters and sequences keep the accepted tokens.

        After an error or interrupt in the middle, the next call repeats it.
        """
        step = self.opened
        if step is None:
            return
        has_rows = self.verifier.has_rows
        start = perf_counter_ns()
        evaluated = [x for x in step.scheduled if x.tokens and x.sequence.scheduled is x]
        can_defer = [self.drafting.can_defer(x.sequence, len(step.scheduled)) for x in evaluated]
        self.memory.commit(evaluated, has_rows, can_defer)
        for scheduled in step.scheduled:
            s = scheduled.sequence
            if s.scheduled is not scheduled:
                continue
            if scheduled.tokens and has_rows:
                s.rows = scheduled.rows if scheduled.has_logits else []
                s.is_dirty = False
                self._let_keep(Keeping.see, scheduled)
                self._save(scheduled)
            s.scheduled = None
        self.opened = None
        commit_ns = perf_counter_ns() - start
        _count(step, commit_ns)
        self.drafting.observe(step, commit_ns)

    def keep(self, s: Sequence) -> None:
        """Hand over the text of a sequence that has ended to those who keep texts."""
        if s.result.finish_reason not in ("cancelled", "error"):
            self._let_keep(Keeping.end, s)

    def _let_keep(self, do: Callable[[Keeping, T], None], of: T) -> None:
        """Let texts be kept for learning, if they are. An error, such as too little memory, ends that alone."""
        if self.keeping is not None:
            try:
                do(self.keeping, of)
            except Exception as e:
                self.keeping = None
                _log.warning("no more texts are kept for learning, until the model is loaded again: %s", e)

    def recover(self) -> None:
        """Finish what the last call left undone when an error or interrupt ended it."""
        self.commit()
        if not self.verifier.has_rows:
            self.verifier.drop_rows()
        self.scheduler.retire()
        if self.slots.has_bad_cells:
            self.scheduler.clear_cells()
        self.slots.clear_dirty()

    def _save(self, scheduled: ScheduledSequence) -> None:
        """Save the state of a sequence that has reached a position at which it must be saved."""
        s = scheduled.sequence
        s.saves.see(s.tokens, s.n_prompt, len(scheduled.sampled))
        if s.saves.is_due(scheduled.n_past, s.n_past) and not self.slots.cache.save(s):
            s.saves.put_off(s.n_past)

    def _sample_all(self, s: Sequence) -> None:
        """Sample all rows of a sequence; an error of its sampler ends only this sequence.

        Logits that are no numbers may come from another sequence's cells, or from a state that was loaded: the first
        time the sequence is evaluated again instead, after `recover` has cleared all cells.
        """
        while not s.result.finish_reason:
            try:
                output = self.sample(s)
            except BaseException as e:
                if isinstance(e, LogitsError) and not s.is_retried:
                    s.is_retried, s.scheduled = True, None
                    s.n_past, s.rows, s.is_dirty = 0, [], True
                    _log.warning("%d tokens are evaluated again, once, and all cells are cleared: %s", len(s.tokens), e)
                    return
                self.outputs.fail(s, e)
                if isinstance(e, Exception):
                    return
                raise  # an interrupt concerns all sequences, but this sampler may have drawn a token that no caller got
            if output is None:
                return
            self.outputs.append(output)

    def _draw(self, scheduled: ScheduledSequence) -> tuple[int, TokenLogprob | None]:
        """Draw a token from the next row's logits; returns it, and its log-probability if the sequence keeps them."""
        s, target = scheduled.sequence, self.memory.target
        chain = s.chain
        assert chain is not None
        row = scheduled.row = scheduled.root + scheduled.node + 1
        try:
            token = chain.draw(target, row, s.tokens, s.n_generated)
            if self.on_sample is not None:
                token = self.on_sample(scheduled, token)
            if s.request.logprobs is None:
                return token, None
            probs = chain.probs  # of the candidates that the samplers left, if they are kept
            logprob = (
                token_prob(probs, token, s.request.logprobs)
                if probs
                else token_logprob(target.logits(row), token, s.request.logprobs)
            )
        except LogitsError:
            self.slots.has_bad_cells = True
            self.slots.cache.distrust(s.tokens)
            raise
        s.result.logprobs.append(logprob)
        return token, logprob

    def _finish_reason(self, s: Sequence, detokenizer: Detokenizer, token: int) -> FinishReason:
        """Add a token's text, and return why that ends the sequence; empty if it does not."""
        request, n = s.request, s.n_generated
        is_kept = request.keeps_stop_tokens and token in request.stop_tokens
        if not is_kept and (token in self.vocab.eog or token in request.stop_tokens):
            s.tokens.pop()
            return "stop"
        piece = self.vocab.piece(token, token in request.special)
        if detokenizer.add(piece, can_complete=not is_kept and n < s.max_tokens + detokenizer.n_complete):
            if detokenizer.stop and detokenizer.find_stop(may_end=n > request.sampling.min_tokens):
                return "stop"
            if is_kept:
                return "stop"
            if (detokenizer.n_indent and detokenizer.find_outdent()) or n >= s.max_tokens:
                return "length"
        return ""


def _count(step: Step, commit_ns: int) -> None:
    """Add to each sequence's figures its share of a step, by rows."""
    n_all, verify_ns, draft_ns = max(1, step.n_own_rows), step.verify_ns, step.draft_ns + commit_ns
    for scheduled in step.scheduled:
        stats, n = scheduled.sequence.result.stats, len(scheduled.tokens) + len(scheduled.draft.tokens)
        if scheduled.is_prefill:
            stats.prompt_tokens += n
            stats.prefill_ns += (verify_ns + commit_ns) * n // n_all
        else:
            stats.steps += 1
            stats.verify_ns += verify_ns * n // n_all
            stats.draft_ns += draft_ns * n // n_all
        stats.sample_ns += scheduled.sample_ns
