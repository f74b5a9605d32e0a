"""Several prompts at once: one draft graph and one pass of the target per round for all of them.

Every prompt has a lane: a sequence of the target and of the draft, a sampler and a length of its own. The rounds are
those of `speculative.py`, taken by all lanes together; a lane that is done makes room for a prompt that waits. Rows are
found by their index in the batch, so lanes may be in any order and have drafts of any length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from .draft import Draft
from .errors import ContextFullError
from .sampling import Draw
from .speculative import N_REPLAY_MAX
from .stats import Stats
from .text import bytes_lacking

if TYPE_CHECKING:
    from .llama import Eagle3Llama

_N_COMPLETE = 16  # tokens beyond max_tokens that a text may take to end outside of a character


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came out of one prompt of `generate_batch`."""

    prompt_tokens: list[int]
    tokens: list[int]
    """Generated tokens, without the one that ended the text."""
    text: str
    """Their text, up to a stop string."""
    finish_reason: str
    """ "stop": the model ended the text, or a stop string came up; "length": max_tokens was reached."""
    stats: Stats
    """Counters of this prompt alone; times are shared, see `Eagle3Llama.last_stats`."""


@dataclass(slots=True)
class Lane:
    """A prompt on its way."""

    index: int
    prompt: list[int]
    max_tokens: int
    stop: list[bytes]
    options: dict[str, Any]
    seed: int | None
    seq_id: int = -1
    draw: Draw | None = None
    tokens: list[int] = field(default_factory=list)
    n_past: int = 0
    """Tokens of `context` that target and draft have taken in."""
    text: bytes = b""
    n_lacking: int = 0
    """Tokens that may still be needed to complete a character."""
    finish_reason: str = ""
    stats: Stats = field(default_factory=Stats)

    @property
    def context(self) -> list[int]:
        """Prompt and generated tokens."""
        return self.prompt + self.tokens

    @property
    def n_cells(self) -> int:
        """Room in the context that this prompt may come to need."""
        return len(self.prompt) + self.max_tokens + _N_COMPLETE


class BatchGeneration:
    """One call of `generate_batch`."""

    def __init__(self, llm: Eagle3Llama, lanes: Iterable[Lane]):
        self.llm = llm
        self.waiting = deque(lanes)
        self.lanes: list[Lane] = []
        self.free = list(range(llm.n_parallel))
        self.n_cells = llm._n_ctx - llm.n_parallel * (llm.draft_n_max + 1)

    def run(self) -> Iterable[Lane]:
        """Yield lanes as they finish."""
        while self.waiting or self.lanes:
            self.admit()
            yield from self.retire()
            if self.lanes:
                self.round()
                yield from self.retire()

    def admit(self) -> None:
        """Take in prompts for as long as there are lanes and room, and sample the first token of each."""
        llm = self.llm
        added: list[Lane] = []
        while self.waiting and self.free:
            n_cells = sum(lane.n_cells for lane in self.lanes + added) + self.waiting[0].n_cells
            if n_cells > self.n_cells and (self.lanes or added):
                break
            lane = self.waiting.popleft()
            lane.seq_id = self.free.pop()
            lane.draw = self.make_draw(lane)
            if llm._planner is not None:
                llm._planner.reset(lane.seq_id)
            added.append(lane)
        start = perf_counter_ns()
        reading = list(added)
        while reading:
            parts, n_room = [], llm.n_batch
            for lane in reading:
                piece = lane.prompt[lane.n_past : lane.n_past + n_room]
                if piece:
                    parts.append((lane, piece))
                    n_room -= len(piece)
            llm._check_servers()
            llm._target.decode_parts([(lane.seq_id, lane.n_past, piece) for lane, piece in parts], False)
            row = -1
            for lane, piece in parts:
                self.show_draft(lane, piece, list(range(row + 1, row + 1 + len(piece))))
                row += len(piece)
                lane.n_past += len(piece)
                llm._stats.prompt_tokens += len(piece)
                lane.stats.prompt_tokens += len(piece)
                if lane.n_past == len(lane.prompt):
                    self.accept(lane, Draft(), row)
                    reading.remove(lane)
        llm._stats.prefill_ns += perf_counter_ns() - start
        self.lanes += added

    def make_draw(self, lane: Lane) -> Draw:
        """Set up the lane's own sampler chain."""
        llm, options = self.llm, dict(lane.options)
        processors = options.pop("logits_processor", None)
        # Llama hands its own tokens to processors; a lane has others
        own = [lambda _, scores, p=p: p(np.asarray(lane.context, dtype=np.intc), scores) for p in processors or ()]
        if lane.seed is not None:
            llm.set_seed(lane.seed)
        _, draw = llm._make_chain(own, options)
        return draw

    def round(self) -> None:
        """Propose, verify, accept and commit for all lanes."""
        llm, stats = self.llm, self.llm._stats
        start = perf_counter_ns()
        llm._check_servers()
        drafts = self.propose()
        drafted = perf_counter_ns()

        n_replay = sum(llm._rollbacks[lane.seq_id].n_replay for lane in self.lanes)
        parts = []
        for lane, draft in zip(self.lanes, drafts, strict=True):
            tokens = [lane.tokens[-1], *draft.tokens]
            llm._rollbacks[lane.seq_id].begin(len(tokens))
            parts.append((lane.seq_id, lane.n_past, tokens))
        llm._target.decode_parts(parts)
        verified = perf_counter_ns()

        row, said = 0, []
        for lane, draft, (_, _, tokens) in zip(self.lanes, drafts, parts, strict=True):
            lane.stats.rounds += 1
            stats.rounds += 1
            if draft.tokens:
                lane.stats.drafts += 1
                lane.stats.extend_positions(len(draft))
            n_tokens = len(lane.tokens)
            n_accepted = 1 + self.accept(lane, draft, row)
            said.append(lane.tokens[n_tokens:])
            llm._rollbacks[lane.seq_id].commit(n_accepted)
            self.show_draft(lane, tokens[:n_accepted], list(range(row, row + n_accepted)))
            lane.n_past += n_accepted
            row += len(tokens)
        self.observe(said, row + n_replay, verified - drafted, perf_counter_ns() - verified)
        stats.draft_ns += drafted - start
        stats.verify_ns += verified - drafted
        stats.sample_ns += perf_counter_ns() - verified

    def observe(self, said: list[list[int]], n_rows: int, verify_ns: int, other_ns: int) -> None:
        """Tell the planner how the round went."""
        llm = self.llm
        if llm.draft == "auto" and llm._planner is not None:
            seq_ids = [lane.seq_id for lane in self.lanes]
            llm._planner.observe_batch(seq_ids, said, n_rows, 1e-3 * verify_ns, 1e-3 * other_ns)

    def propose(self) -> list[Draft]:
        """Draft chains for all lanes, as much as fits into one batch."""
        llm, drafter = self.llm, self.llm._drafter
        if drafter is None:
            return [Draft() for _ in self.lanes]
        n_each = llm.n_batch // len(self.lanes) - 1
        rooms = []
        for lane in self.lanes:
            n_left = lane.max_tokens - len(lane.tokens) - 1
            replays = llm._rollbacks[lane.seq_id].n_replay
            rooms.append(0 if replays > N_REPLAY_MAX else max(0, min(n_each - replays, n_left, llm.draft_n_max)))
        return llm._draft_batch([lane.seq_id for lane in self.lanes], [lane.tokens[-1] for lane in self.lanes], rooms)

    def accept(self, lane: Lane, draft: Draft, row: int) -> int:
        """Walk along a draft from a row on; returns how many of its tokens were accepted."""
        assert lane.draw is not None
        for i in range(len(draft) + 1):
            token = lane.draw(row + i)
            accepted = lane.stats.judge(i, i < len(draft) and token == draft.tokens[i], len(draft))
            lane.tokens.append(token)
            if self.ended(lane, token) or not accepted:
                return i
        return len(draft)

    def ended(self, lane: Lane, token: int) -> bool:
        """Whether the text ends here."""
        llm = self.llm
        if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token):
            lane.finish_reason = "stop"
            lane.tokens.pop()
            return True
        piece = llm._piece(token, False)
        text = lane.text + piece
        # a text does not end inside a character
        lane.n_lacking = bytes_lacking(text, lane.n_lacking)
        if lane.n_lacking > 0 and len(lane.tokens) < lane.max_tokens + _N_COMPLETE:
            lane.n_lacking -= 1
            lane.text = text
            return False
        # a stop string that ends in this token
        n_look = len(piece) + 4 + max((len(s) for s in lane.stop), default=0)
        found = [i for s in lane.stop if (i := text.find(s, max(0, len(text) - n_look))) >= 0]
        if found:
            lane.finish_reason = "stop"
            lane.text = text[: min(found)]
            return True
        lane.text = text
        if len(lane.tokens) >= lane.max_tokens:
            lane.finish_reason = "length"
            return True
        return False

    def show_draft(self, lane: Lane, tokens: list[int], rows: list[int]) -> None:
        """Hand rows of the last pass to the draft."""
        drafter, tap = self.llm._drafter, self.llm._tap
        if drafter is not None and tap is not None:
            drafter.process(tap, tokens, lane.n_past, lane.seq_id, rows)

    def retire(self) -> Iterable[Lane]:
        """Yield the lanes that are done and free their places."""
        llm = self.llm
        for lane in [lane for lane in self.lanes if lane.finish_reason]:
            self.lanes.remove(lane)
            llm._target.truncate(0, lane.seq_id)
            if llm._drafter is not None:
                llm._drafter.reset(lane.seq_id)
            self.free.append(lane.seq_id)
            llm._stats = llm._stats + lane.stats.without_prompt()
            yield lane


def make_lanes(
    llm: Eagle3Llama,
    prompts: Sequence[str | Sequence[int]],
    options: Sequence[Mapping[str, Any]] | None,
    common: Mapping[str, Any],
) -> list[Lane]:
    """Check the arguments of `generate_batch`, all of them before anything is evaluated."""
    if options is not None and len(options) != len(prompts):
        raise ValueError(f"expected options for each of {len(prompts)} prompts, found {len(options)}")
    lanes = []
    for i, prompt in enumerate(prompts):
        merged = {**common, **(options[i] if options is not None else {})}
        tokens = _prompt_tokens(llm, prompt)
        if not tokens:
            raise ValueError(f"prompt {i}: expected at least one token, found none")
        max_tokens = merged.pop("max_tokens")
        if max_tokens is None or max_tokens <= 0:
            max_tokens = llm._n_ctx // llm.n_parallel - len(tokens) - llm.draft_n_max - 1 - _N_COMPLETE
        stop = merged.pop("stop") or []
        merged["temp"] = merged.pop("temperature")
        lane = Lane(
            index=i,
            prompt=tokens,
            max_tokens=int(max_tokens),
            stop=[s.encode() for s in ([stop] if isinstance(stop, str) else stop)],
            seed=merged.pop("seed"),
            options=merged,
        )
        n_room = llm._n_ctx - llm.n_parallel * (llm.draft_n_max + 1)
        if lane.max_tokens < 1 or lane.n_cells > n_room:
            raise ContextFullError(
                f"prompt {i}: {len(tokens)} tokens and max_tokens={lane.max_tokens} do not fit, {n_room} positions are "
                f"there for them: n_ctx={llm._n_ctx} less {llm.draft_n_max + 1} for each of {llm.n_parallel} drafts. "
                "Use a larger n_ctx."
            )
        lanes.append(lane)
    return lanes


def _prompt_tokens(llm: Eagle3Llama, prompt: str | Sequence[int]) -> list[int]:
    """Tokens of a prompt as `create_completion` makes them."""
    if not isinstance(prompt, str):
        return [int(t) for t in prompt]
    tokens = llm.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
    bos = llm.token_bos()
    return [bos, *tokens] if bos >= 0 and (llm._model.add_bos_token() or not tokens) else tokens


def run_batch(llm: Eagle3Llama, lanes: list[Lane], progress: bool | None) -> list[BatchResult]:
    """Run lanes to their end; the context is empty before and after."""
    results: list[BatchResult | None] = [None] * len(lanes)
    bar = _progress_bar(len(lanes), progress)
    llm._reset()
    llm._take_argmax_on_device(False)
    llm._begin_text()
    try:
        for lane in BatchGeneration(llm, lanes).run():
            results[lane.index] = BatchResult(
                prompt_tokens=lane.prompt,
                tokens=lane.tokens,
                text=lane.text.decode("utf-8", errors="ignore"),
                finish_reason=lane.finish_reason,
                stats=lane.stats,
            )
            bar.update()
    finally:
        bar.close()
        for seq_id in range(llm.n_parallel):
            llm._target.truncate(0, seq_id)
        llm._reset()
    return [result for result in results if result is not None]


class _NoBar:
    def update(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


def _progress_bar(n: int, progress: bool | None) -> Any:
    """A tqdm bar over the prompts; by default on a terminal, if tqdm is there."""
    if progress is not False:
        try:
            from tqdm import tqdm
        except ImportError:
            if progress:
                raise
        else:
            return tqdm(total=n, unit="prompt", disable=None if progress is None else False)
    return _NoBar()
