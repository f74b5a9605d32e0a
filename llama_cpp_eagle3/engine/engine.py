"""The loop for any number of sequences that join and leave: who runs, who waits, who has ended.

`open` begins a round for all that run, `accept` samples its rows as they are asked for, `commit` settles it; `step` is
all three. What a round is, `rounds` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf

from .._core import Drafter, FeatureTap, Guard, NgramDrafter, Planner, Target
from ..errors import Eagle3Error, LogitsError
from .detokenizer import N_COMPLETE, Detokenizer
from .media import Media, check_media
from .memory import Memory
from .opener import Opener, lost_error
from .outputs import Output, Outputs
from .proposers import Proposer
from .rounds import Rounds
from .sampling import Chain, Sampling
from .schedule import Schedule
from .sequence import DraftSettings, Saved, ScheduledSequence, Sequence, Shift, State, Step, check_prompt
from .vocab import Vocab


class Engine:
    """Generates for sequences that share a target, a draft and their passes. For one thread at a time.

    `add` and `cancel` may be called from any thread and at any time; everything else raises BusyError if two threads
    meet. An error belongs to its sequence; only a failed pass of the target concerns all, and they may go on after it.
    """

    def __init__(
        self,
        target: Target,
        vocab: Vocab,
        *,
        n_batch: int,
        drafter: Drafter | None = None,
        tap: FeatureTap | None = None,
        draft: DraftSettings | None = None,
        draft_model: Callable[..., object] | None = None,
        ngram: NgramDrafter | None = None,
        prefill_budget: int | None = None,
        prefix_cache_bytes: int = 0,
        n_rs_seq: int = 0,
        before_pass: Callable[[], None] = lambda: None,
        log: Callable[[str], None] = lambda text: None,
    ):
        """Make an engine on an empty context.

        Args:
            target: the context; its n_seq is how many sequences run at once.
            vocab: the target's vocabulary.
            n_batch: rows of a pass.
            drafter: the head, for as many sequences; None drafts nothing.
            tap: what reads the target's hidden states.
            draft: what is drafted for sequences that do not say it.
            draft_model: a `llama_cpp.LlamaDraftModel`, in place of a drafter.
            ngram: the n-gram drafter, for as many sequences; it drafts once there is a planner.
            prefill_budget: rows of a prompt in a pass in which others generate; None = what takes as long again as
                their rows alone.
            prefix_cache_bytes: host memory for prefixes that fall out of the cache.
            n_rs_seq: snapshots that a recurrent target keeps of each sequence.
            before_pass: called before the target or the draft computes; it may raise.
            log: told what users should know.
        """
        self.vocab = vocab
        self.n_ctx, self.n_batch = target.n_ctx, n_batch
        """Positions of a sequence, and rows of a pass."""
        self.memory = Memory(target, drafter, tap, prefix_cache_bytes, log)
        self.draft = draft or DraftSettings()
        self.before_pass = before_pass
        self._rounds = Rounds(
            self.memory,
            n_batch=n_batch,
            n_rs_seq=n_rs_seq,
            prefill_budget=prefill_budget,
            draft_model=draft_model,
            ngram=ngram,
        )
        self._is_spoilt = False
        """Whether cells may hold what is no number."""
        self._guard = Guard(type(self).__name__)
        self._schedule = Schedule(self.memory, self._rounds.begin_text)
        self._outputs = Outputs(vocab)
        self._opener = Opener(self.memory, self._rounds, self._schedule, self._outputs)

    # what it is made of

    @property
    def target(self) -> Target:
        """The context."""
        return self.memory.target

    @property
    def drafter(self) -> Drafter | None:
        """The head; None without one."""
        return self.memory.drafter

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with another head from now on; it has seen nothing yet, and the planner that drove the old one goes."""
        with self._guard:
            self._begin()
            self._rounds.set_drafter(drafter)

    @property
    def planner(self) -> Planner | None:
        """What decides in mode "auto"; None: chains of a few tokens are drafted."""
        return self._rounds.planner

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        self._rounds.planner = planner

    @property
    def ngram(self) -> NgramDrafter | None:
        """The n-gram drafter; None without it."""
        return self._rounds.ngram

    @property
    def proposer(self) -> Proposer | None:
        """A source of drafts in place of all others; None: those that the sequences' settings name."""
        return self._rounds.proposer

    @proposer.setter
    def proposer(self, proposer: Proposer | None) -> None:
        self._rounds.proposer = proposer

    @property
    def on_draw(self) -> Callable[[ScheduledSequence, int], int] | None:
        """Hook for experiments: (part, token drawn) -> the token to go on with. None: the one that was drawn."""
        return self._rounds.on_draw

    @on_draw.setter
    def on_draw(self, hook: Callable[[ScheduledSequence, int], int] | None) -> None:
        self._rounds.on_draw = hook

    @property
    def argmax_on_device(self) -> bool:
        """Whether the target's device takes the argmax of each row, so that rows of logits never travel."""
        return self._rounds.argmax_on_device

    @property
    def opened(self) -> Step | None:
        """The pass that is open."""
        return self._rounds.opened

    @property
    def n_running(self) -> int:
        """Sequences that have a slot."""
        return len(self._schedule.running)

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._schedule.waiting)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do, or to tell."""
        return bool(self._schedule.running or self._schedule.waiting or len(self._outputs))

    # sequences

    def add(
        self,
        tokens: SequenceOf[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: SequenceOf[str] = (),
        draft: DraftSettings | None = None,
        logprobs: int | None = None,
        seq_id: int | None = None,
        cache_prompt: bool = True,
        special: Collection[int] = (),
        exact: bool = False,
        media: SequenceOf[Media] = (),
    ) -> Sequence:
        """Have tokens continued. From any thread.

        Args:
            tokens: the prompt.
            sampling: how tokens are drawn.
            max_tokens: at most; None = what the context holds.
            stop: strings that end the text, and are cut off.
            draft: what is drafted; None = the engine's settings.
            logprobs: keep the log-probability of each token, and those of so many of the most probable ones.
            seq_id: the slot to run in, and to go on from what is kept there; None = any.
            cache_prompt: whether it may begin with what others left behind.
            special: special tokens that are part of the text.
            exact: never exceed max_tokens, not even to complete a character.
            media: images in the prompt, whose rows have the prompt's negative tokens.

        Returns:
            The sequence; look at it between two steps.

        Raises:
            ValueError: no tokens, or the sampler cannot be built.
            ContextFullError: the prompt has no room in the context.
        """
        sequence = self.prepare(
            tokens,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            draft=draft,
            logprobs=logprobs,
            seq_id=seq_id,
            cache_prompt=cache_prompt,
            special=special,
            exact=exact,
            media=media,
        )
        self.submit(sequence)
        return sequence

    def prepare(
        self,
        tokens: SequenceOf[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: SequenceOf[str] = (),
        draft: DraftSettings | None = None,
        logprobs: int | None = None,
        seq_id: int | None = None,
        cache_prompt: bool = True,
        special: Collection[int] = (),
        exact: bool = False,
        media: SequenceOf[Media] = (),
        n_indent: int = 0,
        shift: Shift | None = None,
        prompt_logprobs: bool = False,
    ) -> Sequence:
        """The first half of `add`: check everything and make the sequence, for `submit`. From any thread.

        Args beside those of `add`:
            n_indent: end the text at a line behind the first that begins with fewer blanks.
            shift: how to go on when the context is full; None ends the text then.
            prompt_logprobs: keep those of the prompt's tokens too, with as many others; all of it is read for that.
        """
        check_prompt(tokens, self.vocab.n_tokens, self.n_ctx, media)
        check_media(tokens, media, self.n_batch, self.target.n_ubatch)
        if media and (shift is not None or prompt_logprobs):
            raise ValueError("a prompt with images has no log-probabilities, and its context cannot be shifted")
        draft = draft or self.draft
        self.check_draft(draft)
        if seq_id is not None and not 0 <= seq_id < self.target.n_seq:
            raise ValueError(f"expected seq_id in 0..{self.target.n_seq - 1}, found {seq_id}")
        n_left = self.n_ctx - len(tokens)
        sequence = Sequence(
            tokens,
            Chain(sampling or Sampling(), self.vocab, self.n_ctx),
            max_tokens=n_left if max_tokens is None else max_tokens,
            draft=draft,
            detokenizer=Detokenizer(stop, n_complete=0 if exact else N_COMPLETE, n_indent=n_indent),
            logprobs=logprobs,
        )
        assert sequence.chain is not None
        sequence.chain.see(tokens)
        sequence.n_save = self.n_save(len(tokens))
        sequence.seq_id_wanted, sequence.cache_prompt, sequence.special = seq_id, cache_prompt, frozenset(special)
        sequence.media = list(media)
        sequence.shift = shift
        if prompt_logprobs:
            if logprobs is None:
                raise ValueError("prompt_logprobs needs logprobs")
            sequence.prompt_logprobs, sequence.logits_all, sequence.cache_prompt = [], True, False
        return sequence

    def submit(self, sequence: Sequence) -> None:
        """The second half of `add`: have a prepared sequence wait for a slot. From any thread."""
        self._schedule.submit(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence with the next step, wherever it is; one that has ended stays as it is. From any thread."""
        self._schedule.cancel(sequence)

    def check_draft(self, draft: DraftSettings) -> None:
        """Raise ValueError for a draft that the target cannot take back."""
        n_rs_seq = self._rounds.n_rs_seq
        drafts = self.drafter is not None or (self.ngram is not None and draft.mode == "auto")
        if drafts and self.target.rollback_kind == "snapshots" and draft.depth > n_rs_seq:
            raise ValueError(
                f"a draft of {draft.depth} tokens is longer than the target's snapshots allow: it keeps "
                f"{n_rs_seq} per sequence. Draft less, or load the model with a larger draft_n_max or "
                "draft_tree_depth"
            )

    # the loop

    def step(self) -> list[Output]:
        """One pass for all running sequences; returns what came of it.

        Raises:
            Eagle3Error: the pass failed; the sequences go on from where they are with the next one, which also returns
                what had come of this one.
        """
        with self._guard:
            self._begin()
            self._schedule.end_cancelled(self._outputs.end)
            self.before_pass()
            opened = self._opener.open()
            for part in opened.parts if opened is not None else ():
                self._accept_all(part.sequence)
            self._rounds.commit()
            self._schedule.retire()
            return self._outputs.take()

    def open(self, only: Sequence | None = None) -> Step | None:
        """Begin a pass: draft and verify. None if nothing is to be done.

        only: for this sequence, which was not added but is `held`; else for all that run.
        """
        with self._guard:
            self._begin()
            self.before_pass()
            return self._opener.open(only)

    def accept(self, sequence: Sequence) -> Iterator[int]:
        """Sample a sequence's rows of the open pass, one by one, for as long as its draft says the same."""
        while (token := self.next(sequence)) is not None:
            yield token

    def next(self, sequence: Sequence) -> int | None:
        """The next token that `accept` would yield; None if the round has no more to say."""
        with self._guard:
            return self._next(sequence)

    def commit(self) -> None:
        """Make target and draft hold what was accepted of the open pass. Does nothing without one."""
        with self._guard:
            self._rounds.commit()

    def n_save(self, n_prompt: int) -> int:
        """Position behind which a prompt, or a longer one, can go on again where memory cannot be trimmed anywhere."""
        return n_prompt if self.target.rollback_kind == "trim" else n_prompt - 1

    def _begin(self) -> None:
        """A call begins: finish what the last one left behind, which an error or an interrupt may have ended."""
        self._rounds.commit()
        self._schedule.retire()
        if self._is_spoilt:
            self._scrub()
        self.memory.tidy()

    # a sequence that somebody drives by hand

    def attach(self, sequence: Sequence, seq_id: int) -> None:
        """Give a slot to a sequence that `open(sequence)` will run; others may take it while nothing runs."""
        with self._guard:
            self._begin()
            if sequence.seq_id < 0:
                self._attach(sequence, seq_id)

    def _attach(self, sequence: Sequence, seq_id: int) -> None:
        user = self.memory.slots[seq_id].user
        if user is not None and user.state is State.RUNNING:
            self._schedule.preempt(user)
        sequence.state = State.IDLE
        self.memory.assign(sequence, seq_id)

    def resume(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Have a held sequence go on with other tokens, as far as they begin alike; the rest of them is pending."""
        with self._guard:
            self._begin()
            if sequence.seq_id < 0:
                sequence.tokens = tokens
                self._attach(sequence, seq_id)
            else:
                self.memory.settle(sequence)  # what is lost was not to be gone on from
                self.memory.resume(sequence, tokens)
            sequence.media = [m for m in sequence.media if m.is_in(tokens)]
            sequence.n_prompt = len(tokens)
            sequence.n_save = self.n_save(len(tokens))
            self._rounds.begin_text(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Have target and draft hold the first n_past tokens of a held sequence, whatever happened meanwhile."""
        with self._guard:
            self._begin()
            if sequence.seq_id >= 0 and not self.memory.settle(sequence):
                raise lost_error()

    def adopt(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Somebody has filled the empty context: a sequence holds these tokens there, and nothing else is there."""
        with self._guard:
            sequence.state = State.IDLE
            self.memory.adopt(sequence, tokens, seq_id)

    def decoded_elsewhere(self, sequence: Sequence, n_past: int, seq_id: int) -> None:
        """Somebody else has decoded into a held sequence, up to n_past; the last row of that says what follows.

        Raises:
            Eagle3Error: another sequence runs there.
        """
        with self._guard:
            self._begin()
            if sequence.seq_id < 0:
                user = self.memory.slots[seq_id].user
                if user is not None and user.state is State.RUNNING:
                    user.is_dirty = True
                    raise Eagle3Error(
                        f"somebody has decoded into sequence {seq_id}, where another text is being generated: "
                        "let the engine come to an end before, or evaluate at least one token with `eval`"
                    )
                sequence.state = State.IDLE
                self.memory.take_over(sequence, seq_id)
            self.memory.decoded_elsewhere(sequence, n_past)
            self._rounds.decoded_elsewhere(sequence)

    def go_back(self, sequence: Sequence, n_past: int) -> None:
        """Keep exactly the first tokens of a held sequence; what cannot be kept of them is pending again."""
        with self._guard:
            self._begin()
            if not self.memory.settle(sequence):
                raise lost_error()
            self.memory.go_back(sequence, n_past)

    def clear(self) -> None:
        """Forget all that no running sequence holds."""
        with self._guard:
            self._begin()
            self.memory.clear()

    def preempt_all(self) -> None:
        """Put all running sequences aside and forget the rest: somebody is about to fill the context anew."""
        with self._guard:
            self._begin()
            for sequence in reversed(self._schedule.running.copy()):
                self._schedule.preempt(sequence)
            self.memory.clear()

    def flush(self) -> None:
        """Have the target's memory hold exactly what the sequences have taken in: somebody is about to copy it."""
        with self._guard:
            self._begin()
            self.memory.flush()

    def store_prefix(self, seq_id: int) -> tuple[list[int], Saved]:
        """Tokens that are kept in a slot that nobody uses, and what target and draft hold of them, to be stored."""
        with self._guard:
            self._begin()
            self.memory.flush()
            return self.memory.store_prefix(seq_id)

    def restore_prefix(self, seq_id: int, tokens: SequenceOf[int], target: bytes, draft: bytes) -> None:
        """Have a slot that nobody uses keep tokens, from what `kept` gave before.

        Raises:
            ContextFullError: no room.
            Eagle3Error: the states are not what they should be. The slot is empty then.
        """
        with self._guard:
            self._begin()
            try:
                self.memory.restore_prefix(seq_id, tokens, target, draft)
            except BaseException:  # whatever it was, some of the state may be in the cells
                self._is_spoilt = True
                self._scrub()
                raise

    def evict_prefix(self, seq_id: int) -> int:
        """Forget what is kept in a slot that nobody uses; returns how many tokens that was."""
        with self._guard:
            self._begin()
            return self.memory.evict_prefix(seq_id)

    def drop(self, sequences: SequenceOf[Sequence]) -> None:
        """End sequences now, as `cancel` does with the next step; nothing more is told of them."""
        with self._guard:
            for sequence in sequences:
                self.cancel(sequence)
            self._begin()
            self._schedule.end_cancelled(self._outputs.end)
            self._outputs.forget(sequences)

    def close(self) -> None:
        """The context is about to be freed: every later call raises."""
        with self._guard:
            self._guard.closed = True
            self._rounds.set_drafter(None)
            self.target.close()
            self.vocab.close()

    def _next(self, sequence: Sequence) -> int | None:
        try:
            return self._rounds.next(sequence)
        except LogitsError:
            self._is_spoilt = True
            raise

    def _scrub(self) -> None:
        """Clear all cells, since masked ones take part in products with zero and NaN stays NaN in these.

        Those that run are put aside, and come back by themselves.
        """
        for sequence in reversed(self._schedule.running.copy()):
            self._schedule.preempt(sequence)
        self.memory.scrub()
        self._is_spoilt = False

    def _accept_all(self, s: Sequence) -> None:
        """Say all that a sequence's rows of the open pass give; an error of its sampler ends the sequence alone."""
        outputs = self._outputs
        while not s.finish_reason:
            try:
                token = self._next(s)
            except BaseException as e:
                outputs.fail(s, e)
                if isinstance(e, Exception):
                    return
                raise  # an interrupt is for all, but this sequence's sampler may have drawn a token that nobody got
            if token is None:
                return
            outputs.add(s, token)
