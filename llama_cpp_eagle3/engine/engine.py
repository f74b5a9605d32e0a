"""The engine: continuous batching for any number of sequences, with one lock around it.

`Engine.step` runs one step for all sequences, `next` gives one token of a sequence that is paced by its client, and
`rewind` takes tokens back. `step.py` is one step on one page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._core import Drafter, FeatureTap, Guard, NgramDrafter, Target
from ..errors import Eagle3Error
from .arguments import as_type
from .detokenizer import N_COMPLETE, Detokenizer
from .draft_state import DraftState
from .drafters import Drafters
from .drafting import Drafting
from .keeping import Keeping, KeptText
from .memory import Memory
from .prefix_disk import PrefixFiles
from .request import DraftSettings, Request, RequestOptions
from .sampler_chain import SamplerChain
from .sampling import Sampling
from .save_plan import plan_saves
from .sequence import Output, Sequence, State, StoredPrefix
from .slots import Slots
from .stats import Stats
from .step import Stepper
from .vocab import Vocab

if TYPE_CHECKING:
    from typing_extensions import Unpack


_log = logging.getLogger("llama_cpp_eagle3")
_N_STEPS_TOLD = 8  # for a text of fewer steps the log does not say why nothing was drafted


class Engine:
    """Generates for sequences that share a target, a draft and their passes. For one thread at a time.

    `add` and `cancel` may be called from any thread and at any time; everything else raises BusyError if two threads
    meet. An error ends its sequence only; a failed pass of the target concerns all, which may go on after it.
    """

    def __init__(
        self,
        target: Target,
        vocab: Vocab,
        *,
        n_batch: int,
        drafters: SequenceOf[Drafter] = (),
        tap: FeatureTap | None = None,
        draft: DraftSettings | None = None,
        draft_model: Callable[..., object] | None = None,
        ngram: NgramDrafter | None = None,
        why_no_source: str = "",
        prefill_budget: int | None = None,
        prefix_cache_bytes: int = 0,
        ctx_checkpoints: int = 32,
        checkpoint_min_step: int = 256,
        prefix_folder: Future[PrefixFiles | None] | None = None,
        n_swa: int = 0,
        swa_full: bool = True,
        before_step: Callable[[], None] = lambda: None,
        after_pass: Callable[[], None] = lambda: None,
        log: Callable[[str], None] = lambda text: None,
    ):
        """Make an engine on an empty context.

        Args:
            target: the context; its n_seq is how many sequences run at once.
            vocab: the target's vocabulary.
            n_batch: rows of a pass.
            drafters: drafters with weights, for as many sequences; the first one drafts fixed shapes.
            tap: reads the target's hidden states.
            draft: how to draft for requests that do not say it.
            draft_model: a `llama_cpp.LlamaDraftModel`, in place of drafters.
            ngram: the n-gram drafter, for as many sequences; it drafts once the policy knows costs.
            why_no_source: why there is none of these.
            prefill_budget: rows of prompts in a step in which other sequences decode; None = as many as double the
                step's time.
            prefix_cache_bytes: host memory for evicted prefixes, and for states that recurrent layers and sliding
                windows go back to.
            ctx_checkpoints: at most so many such states of one text.
            checkpoint_min_step: tokens between two of them, except those at the end of a prompt.
            prefix_folder: where prefixes are kept over restarts, once a thread has opened it (None: it cannot be
                used); `close` closes it.
            n_swa: tokens of the target's sliding windows; 0 = it has none.
            swa_full: whether the context keeps tokens that have left them.
            before_step: called before each step; it may raise.
            after_pass: called after each pass of the target; if it raises, nothing of the pass is used.
            log: called with lines for the user.
        """
        self.target, self.vocab = target, vocab
        self.n_ctx, self.n_batch = target.n_ctx, n_batch
        """Positions of a sequence, and rows of a batch."""
        self.memory = Memory(target, drafters, tap, log, n_swa, swa_full)
        self.slots = Slots(self.memory, prefix_cache_bytes, ctx_checkpoints, prefix_folder)
        """What target and drafters hold, slot by slot."""
        self.draft = draft or DraftSettings()
        self.before_step = before_step
        self._checkpoint_min_step = checkpoint_min_step
        self.guard = Guard(type(self).__name__)
        self._has_explained = False
        self.drafting = Drafting(self.slots, n_batch, ngram, draft_model, why_no_source)
        """How drafts are made: the policy, the n-gram drafter, or a drafter in place of both."""
        self.stepper = Stepper(self.slots, vocab, self.drafting, n_batch, prefill_budget, after_pass)
        self.scheduler = self.stepper.scheduler
        """The open step, and the sequences that run and wait."""

    @contextmanager
    def _recovered(self) -> Iterator[None]:
        """Hold the guard, and finish what an error or interrupt has left behind."""
        with self.guard:
            self.stepper.recover()
            yield

    @property
    def drafters(self) -> Drafters:
        """The drafters with weights."""
        return self.memory.drafters

    def set_drafters(self, drafters: SequenceOf[Drafter]) -> None:
        """Draft with other drafters, which have evaluated nothing yet, and of which the policy knows nothing."""
        with self._recovered():
            self.drafting.set_drafters(drafters)

    def drafts(self, settings: DraftSettings | None = None) -> DraftState:
        """Whether texts get drafts, and if not, why. settings: None: those of requests that do not say it."""
        return self.drafting.state(settings or self.draft)

    def explain(self, stats: Stats, settings: DraftSettings) -> None:
        """Give the figures of a text the reason why nothing was drafted, if nothing was, and log it once."""
        if stats.drafts or not stats.tokens:
            return
        state = self.drafts(settings)
        stats.why_not_drafted = state.why_not(settings)
        if state.can_draft and stats.steps == 0:
            stats.why_not_drafted = "the only token came with the prompt's pass"
        if self.drafters and stats.steps >= _N_STEPS_TOLD and not self._has_explained:
            self._has_explained = True
            _log.warning("nothing is drafted: %s", stats.why_not_drafted)

    @property
    def n_running(self) -> int:
        """Sequences that have a slot."""
        return len(self.scheduler.running)

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for a slot."""
        return len(self.scheduler.waiting)

    @property
    def has_work(self) -> bool:
        """Whether `step` has sequences to run, or outputs of a failed step to return."""
        return bool(self.scheduler.running or self.scheduler.waiting or len(self.stepper.outputs))

    def keep_texts(self, take: Callable[[KeptText], None]) -> None:
        """Hand over each text that may be kept when it ends, with hidden states of the target that have passed by.

        take: called in the engine's thread; it must not wait.
        """
        self.stepper.keeping = Keeping(self.memory.tap, take)

    # sequences

    def add(
        self, tokens: SequenceOf[int], sampling: Sampling | None = None, **options: Unpack[RequestOptions]
    ) -> Sequence:
        """Add a request: its sequence waits for a slot. From any thread.

        Args:
            tokens: the prompt.
            sampling: how tokens are sampled.
            **options: the other fields of `Request`.

        Returns:
            The sequence. Read its state and result between two steps.

        Raises:
            ValueError: no tokens, or the sampler cannot be built.
            ContextFullError: the prompt has no room in the context.
        """
        sequence = self.prepare(Request(tokens, sampling or Sampling(), **options))
        self.submit(sequence)
        return sequence

    def prepare(self, request: Request, like: Sequence | None = None) -> Sequence:
        """The first half of `add`: check a request and make its sequence, for `submit`. From any thread.

        like: a sequence with the same grammar, which is not submitted yet: the grammar is read once for both.
        """
        as_type("request", request, Request).check(self.vocab.n_tokens, self.n_ctx, self.n_batch, self.target)
        beside = None if like is None else like.chain
        chain = SamplerChain(request.sampling, self.vocab, self.n_ctx, request.stop_tokens, beside)
        sequence = Sequence(
            request,
            max_tokens=self.n_ctx - len(request.tokens) if request.max_tokens is None else request.max_tokens,
            draft=request.draft or self.draft,
            chain=chain,
            detokenizer=Detokenizer(
                request.stop,
                n_complete=0 if request.exact else N_COMPLETE,
                n_indent=request.n_indent,
                kept_stop=request.kept_stop,
            ),
        )
        chain.see(request.tokens)
        self.begin_prompt(sequence)
        return sequence

    def submit(self, sequence: Sequence) -> None:
        """The second half of `add`: queue a prepared sequence for a slot. From any thread."""
        self.scheduler.submit(as_type("sequence", sequence, Sequence))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence with the next step, running or waiting; an ended one does not change. From any thread."""
        self.scheduler.cancel(as_type("sequence", sequence, Sequence))

    # steps

    def step(self, sequences: Collection[Sequence] | None = None) -> list[Output]:
        """Run one step for all running sequences, and return its outputs.

        Args:
            sequences: return only the outputs of these, and keep the others for a later call.

        Raises:
            Eagle3Error: the step failed. The next step continues the sequences where they are, and also returns the
                outputs of this one.
        """
        with self.guard:  # not `_recovered`: every step pays for its calls
            self.stepper.recover()
            self.scheduler.end_cancelled()
            self.before_step()
            self.stepper.step()
            return self.stepper.outputs.take(sequences)

    def next(self, sequence: Sequence) -> Output | None:
        """Return the next token of a paced sequence, from a row of the open step or from a new step of all that run.

        None if the step has evaluated a part of its prompt, or other sequences have the room that it waits for. What
        others get in such a step is returned by `step`.

        Raises:
            Eagle3Error: the step failed, or whatever error ends this sequence; the next call continues from where it
                is, if it has not ended.
        """
        with self.guard:
            output = self.stepper.sample(sequence)
            if output is not None:
                return output
            self.stepper.recover()
            self.scheduler.end_cancelled()
            self.before_step()
            self.scheduler.resume(sequence)
            try:
                self.stepper.step()
            finally:
                self.scheduler.pause(sequence)
            if sequence.result.error is not None:
                self.stepper.outputs.drop([sequence])
                raise sequence.result.error
            return self.stepper.sample(sequence)

    def rewind(self, sequence: Sequence, n_tokens: int) -> None:
        """Cut a paced sequence to its first tokens, after which it goes on; the open step is ended.

        Tokens that target and drafters cannot keep are pending then.
        """
        with self._recovered():
            if len(sequence.tokens) > n_tokens:
                del sequence.tokens[n_tokens:]
                sequence.n_prompt = min(sequence.n_prompt, n_tokens)
                sequence.media = [m for m in sequence.media if m.end <= n_tokens]
                sequence.kept_rows = [(at, rows[: n_tokens - at]) for at, rows in sequence.kept_rows if at < n_tokens]
            if sequence.n_past > n_tokens:
                sequence.n_past, sequence.rows, sequence.is_dirty = n_tokens, [], True
            if sequence.is_dirty:
                self.memory.settle(sequence)

    def decoded_elsewhere(self, sequence: Sequence, seq_id: int, *, has_row: bool) -> None:
        """Tell that code outside of the engine has decoded all pending tokens of a paced sequence into its slot.

        Args:
            sequence: with a negative token for each one that cannot be evaluated again.
            seq_id: its slot.
            has_row: whether the last token's logits are in the context.

        Raises:
            Eagle3Error: another sequence runs there.
        """
        with self._recovered():
            if sequence.seq_id < 0:
                user = self.slots[seq_id].user
                if user is not None and user.state is State.RUNNING:
                    user.is_dirty = True
                    raise Eagle3Error(
                        f"tokens were decoded into slot {seq_id} outside of the engine while a sequence runs there: "
                        "let the engine finish first, or evaluate at least one token with `eval`"
                    )
                self.slots.take_over(sequence, seq_id)
            self.memory.decoded_elsewhere(sequence)
            self.stepper.verifier.drop_rows(sequence if has_row else None)

    def begin_prompt(self, sequence: Sequence) -> None:
        """Plan where the state of a sequence is saved, once its prompt is known."""
        n_prompt, is_needed = len(sequence.tokens), self.memory.needs_states
        sequence.saves = plan_saves(sequence.request, n_prompt, self._checkpoint_min_step, is_needed=is_needed)

    # slots and the prefix cache

    def clear(self) -> None:
        """Clear the prefix cache."""
        with self._recovered():
            self.slots.clear()

    def preempt_all(self) -> None:
        """Preempt all running sequences and clear the prefix cache, before other code fills the context."""
        with self._recovered():
            self.scheduler.preempt_all()
            self.slots.clear()

    def flush(self) -> None:
        """Make the target's memory hold exactly what the sequences have evaluated, before it is copied."""
        with self._recovered():
            self.slots.flush()

    def store_prefix(self, seq_id: int) -> StoredPrefix:
        """Return the cached prefix of a free slot, for a file."""
        with self._recovered():
            self.slots.flush()
            return self.slots.store_prefix(seq_id)

    def restore_prefix(self, seq_id: int, stored: StoredPrefix) -> None:
        """Load what `store_prefix` gave into a free slot.

        Raises:
            ContextFullError: no room.
            Eagle3Error: the states are damaged, or of another model. The slot is empty then.
        """
        with self._recovered():
            try:
                self.slots.restore_prefix(seq_id, as_type("stored", stored, StoredPrefix))
            except BaseException:  # whatever it was, some of the state may be in the cells
                self.slots.has_bad_cells = True
                self.scheduler.clear_cells()
                raise

    def keep(self) -> bool:
        """Use the prefix folder while there is nothing else to do; returns whether there is more to write or to read.

        It copies at most one slot, which takes as long as copying its bytes; threads write, and read once what the last
        process used last.
        """
        with self._recovered():
            return self.slots.cache.keep() or self.slots.cache.read_ahead()

    def evict_prefix(self, seq_id: int) -> int:
        """Clear a free slot; returns the length of its cached prefix."""
        with self._recovered():
            return self.slots.evict_prefix(seq_id)

    def drop(self, sequences: SequenceOf[Sequence]) -> None:
        """End sequences now, not with the next step as `cancel` does; `step` returns no more of their outputs."""
        with self.guard:
            for sequence in sequences:
                self.cancel(sequence)
            self.stepper.recover()
            self.scheduler.end_cancelled()
            self.stepper.outputs.drop(sequences)

    def close(self) -> None:
        """Close the engine, before the context is freed: every later call raises."""
        with self.guard:
            try:
                if self.slots.cache.may_have_folder:
                    self.stepper.recover()
                    self.slots.cache.close()
            except Exception as e:
                _log.warning("not all of the prefix cache is written to its folder: %s", e)
            finally:
                self.guard.closed = True
                self.slots.cache.clear()  # now, not when Python collects cycles: it may be gigabytes
                self.drafting.set_drafters(())
                self.target.close()
                self.vocab.close()
