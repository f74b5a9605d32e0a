"""The engine against plain decoding, after any events in any order.

Hypothesis adds and cancels sequences, lets calls fail or be interrupted, uses Llama's own context in between, and after
each of these the engine's records must agree with the states of target and drafter. Every text must be plain
llama_cpp's.

EAGLE3_STATEFUL_STEPS=20000 runs about 20,000 steps per kind of target, different ones each time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import llama_cpp
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from faults import Fault, Interrupt, armed
from invariants import check_draft_cache, check_empty, check_engine
from llama_cpp_eagle3 import ContextFullError, Eagle3Error
from llama_cpp_eagle3._core import CostCurve, Policy
from llama_cpp_eagle3.engine import DraftSettings, Rng
from llama_cpp_eagle3.engine.detokenizer import N_COMPLETE
from loading import load
from oracle import Draw
from stateful import (
    GREEDY,
    KINDS,
    Clock,
    ClockedDrafter,
    Failing,
    Kind,
    Oops,
    Request,
    Stream,
    draws,
    errors,
    maybe_errors,
    modes,
    open_kind,
    picks,
    texts,
)

N_STEPS = int(os.environ.get("EAGLE3_STATEFUL_STEPS", "0"))
SEED = int(os.environ.get("EAGLE3_STATEFUL_SEED", "0"))
N_STEPS_EACH = 40
"""Steps of a run."""
counts: Counter[str] = Counter()


@pytest.fixture(scope="module", params=KINDS)
def kind(request: Any, tmp_path_factory: Any) -> Iterator[Kind]:
    with open_kind(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


class Machine(RuleBasedStateMachine):
    """All events that can happen to an engine."""

    kind: Kind

    @initialize(
        n_parallel=st.integers(1, 4),
        is_pool=st.booleans(),
        n_batch=st.sampled_from([12, 24, 64]),
        n_ubatch=st.sampled_from([8, 64]),
        prefill_budget=st.sampled_from([None, 5, 40]),
        prefix_cache_bytes=st.sampled_from([0, 100_000, 64 << 20]),
        disk_bytes=st.sampled_from([0, 200_000, 64 << 20]),
        with_head=st.sampled_from([True, True, True, False]),
        draft=st.sampled_from(["chain", "tree", "auto"]),
        draft_n_max=st.integers(1, 5),
        with_planner=st.booleans(),
        rng=st.sampled_from(["gumbel", "gumbel", "llama"]),
    )
    def load(
        self,
        n_parallel: int,
        is_pool: bool,
        n_batch: int,
        n_ubatch: int,
        prefill_budget: int | None,
        prefix_cache_bytes: int,
        disk_bytes: int,
        with_head: bool,
        draft: str,
        draft_n_max: int,
        with_planner: bool,
        rng: Rng,
    ) -> None:
        self.rng = rng
        self.is_pool = is_pool or n_parallel == 1
        n_ctx = 256 if self.is_pool else 256 * n_parallel
        options: dict[str, Any] = {"n_parallel": n_parallel, "kv_unified": is_pool, "n_ctx": n_ctx}
        options |= {"n_batch": n_batch, "n_ubatch": min(n_batch, n_ubatch), "swa_full": False}
        options |= {"prefill_budget": prefill_budget, "prefix_cache_bytes": prefix_cache_bytes}
        self.folder = tempfile.TemporaryDirectory()
        if disk_bytes:
            options |= {"prefix_cache_dir": self.folder.name, "prefix_cache_disk_bytes": disk_bytes}
        if with_head:
            options["draft"] = draft if self.is_pool or draft != "tree" else "chain"
            options["draft_n_max"] = draft_n_max
            options |= self.kind.sources
        else:
            options["draft_sources"] = ()
        self.llm = load(self.kind.target, self.kind.head if with_head else None, rng=rng, **options)
        self.engine = self.llm.engine
        assert self.engine.n_ctx == 256
        assert self.engine.target.is_pooled == self.is_pool
        self.llm.draft = "chain"  # "auto" would measure first
        self._patch_clock()
        if with_head and with_planner:
            self._plan()
        self.requests: list[Request] = []
        self.raised: list[BaseException] = []
        self.own: list[int] = []  # the expected content of Llama's own context
        self.own_is_foreign = False
        self.streams: list[Stream] = []
        self.states: list[tuple[list[int], Any]] = []
        self.head_may_be_behind = False
        counts["runs"] += 1

    def _patch_clock(self) -> None:
        import llama_cpp_eagle3.engine.step as step

        step.perf_counter_ns = Clock(10_000)  # type: ignore[assignment]

    def _plan(self) -> None:
        n_leaves = self.engine.target.n_leaves_max
        self.engine.drafting.policy = Policy(
            [ClockedDrafter(drafter) for drafter in self.llm.drafters],
            [CostCurve({1: 1e5, 16: 1.001e5}), *(CostCurve({1: 1.0}) for _ in range(2 * len(self.llm.drafters)))],
            n_max=8,
            n_nodes_max=min(16, self.engine.n_batch - 1),
            top_k=3 if n_leaves > 1 else 1,
            n_leaves_max=n_leaves,
            n_seq_max=self.engine.target.n_seq,
            uniform=not self.is_pool,
        )

    def _tokens(self, text: tuple[int, int, list[int]]) -> list[int]:
        i, n, tail = text
        return [*self.kind.texts[i][:n], *tail]

    # sequences

    @rule(
        text=texts,
        draw=draws,
        mode=modes,
        max_tokens=st.sampled_from([1, 2, 8, 20, 60, 1000]),
        stop=st.sampled_from([(), (), ("e", "qu"), tuple("abcdefghijklm")]),
        fails_at=st.sampled_from([0] * 8 + [1, 2, 5]),
        error=st.sampled_from([Oops, Oops, Interrupt]),
        logprobs=st.sampled_from([None, None, 2]),
        n=st.integers(1, 3),
    )
    def add(
        self,
        text: Any,
        draw: Draw,
        mode: Any,
        max_tokens: int,
        stop: Any,
        fails_at: int,
        error: Any,
        logprobs: Any,
        n: int,
    ) -> None:
        prompt, draw = self._tokens(text) or [1], replace(draw, rng=self.rng)
        for _ in range(n):
            self._add(prompt, draw, mode, max_tokens, stop, Failing(fails_at, error) if fails_at else None, logprobs)

    def _add(
        self, prompt: list[int], draw: Draw, mode: DraftSettings, max_tokens: int, stop: Any = (),
        failing: Failing | None = None, logprobs: int | None = None,
    ) -> None:  # fmt: skip
        sequence = self.engine.add(
            prompt,
            draw.sampling([failing] if failing else []),
            max_tokens=max_tokens,
            stop=stop,
            draft=replace(mode, sources=tuple(self.llm.draft_sources)),
            logprobs=logprobs,
        )
        self.requests.append(Request(sequence, prompt, draw, max_tokens, failing))
        counts["added"] += 1

    @precondition(lambda self: any(r.sequence.is_done for r in self.requests))
    @rule(i=picks, n_back=st.sampled_from([0, 0, 1, 5]), tail=st.lists(st.integers(0, 127), max_size=5), mode=modes)
    def go_on_from_one(self, i: int, n_back: int, tail: list[int], mode: DraftSettings) -> None:
        done = [r for r in self.requests if r.sequence.is_done]
        tokens = done[i % len(done)].sequence.tokens
        self._add(([*tokens[: len(tokens) - n_back], *tail] or [1])[:250], GREEDY, mode, 20)

    @precondition(lambda self: self.requests)
    @rule(i=picks)
    def cancel(self, i: int) -> None:
        r = self.requests[i % len(self.requests)]
        r.may_be_cancelled |= not r.sequence.result.finish_reason
        self.engine.cancel(r.sequence)

    @precondition(lambda self: self.requests)
    @rule(some=st.lists(picks, max_size=3), all_of_them=st.sampled_from([False, False, True]), fault=maybe_errors)
    def drop(self, some: list[int], all_of_them: bool, fault: Fault | None) -> None:
        chosen = self.requests if all_of_them else [self.requests[i % len(self.requests)] for i in some]
        for r in chosen:
            r.may_be_cancelled |= not r.sequence.result.finish_reason
            r.is_watched = False  # nothing more comes of it
        self._attempt(fault, lambda: self.engine.drop([r.sequence for r in chosen]))

    @rule(n=st.integers(1, 12))
    def step(self, n: int) -> None:
        for _ in range(n):
            self._step()

    @rule(fault=errors, n=st.integers(1, 3))
    def step_and_fail(self, fault: Fault, n: int) -> None:
        for _ in range(n):
            self._step(fault)

    def _step(self, fault: Fault | None = None) -> None:
        counts["steps"] += 1
        done, outputs = self._attempt(fault, self.engine.step)
        for output in outputs if done else ():
            r = next((r for r in self.requests if r.sequence is output.sequence), None)
            if r is not None:
                assert not r.has_ended, f"something came after the end of {r.sequence}"
                r.text += output.text
                r.has_ended = output.token is None
                if output.token is not None:
                    r.tokens.append(output.token)
        self._check()

    @rule(fault=maybe_errors)
    def preempt_all(self, fault: Fault | None) -> None:
        self._attempt(fault, self.engine.preempt_all)

    @rule(fault=maybe_errors)
    def clear(self, fault: Fault | None) -> None:
        self._attempt(fault, self.engine.clear)

    @rule(some=st.lists(texts, min_size=1, max_size=3), draw=draws)
    def generate_batch(self, some: list[Any], draw: Draw) -> None:
        prompts, draw = [(self._tokens(text) or [1])[:240] for text in some], replace(draw, rng=self.rng)
        for r in self.requests:
            r.is_watched = False  # outputs of the others in between are not collected
        options = draw.options()
        options["temperature"] = options.pop("temp")
        ok, results = self._attempt(
            None,
            lambda: self.llm.generate_batch(
                prompts, max_tokens=8, seed=draw.seed, ignore_eos=draw.ignore_eos, **options
            ),
        )
        if ok:
            for prompt, result in zip(prompts, results, strict=True):
                assert result.finish_reason in ("stop", "length")
                self.kind.reference.check(prompt, draw, result.tokens)

    # Llama's own context

    @rule(
        text=texts, draw=draws, n=st.integers(1, 20), reset=st.sampled_from([True, True, False]),
        stays=st.booleans(), fault=maybe_errors,
    )  # fmt: skip
    def own_generate(self, text: Any, draw: Draw, n: int, reset: bool, stays: bool, fault: Fault | None) -> None:
        self._look_at_own()
        tokens, draw = self._tokens(text), replace(draw, rng=self.rng)
        prompt = tokens if reset else [*self.own, *tokens]
        if not prompt:
            return
        self.llm.set_seed(draw.seed)
        stream = self.llm.generate(tokens, **draw.options(), reset=reset, ignore_eos=draw.ignore_eos)
        s = Stream(stream, prompt, draw, [])
        if self._next_of(s, n, fault):
            if stays:
                self.streams.append(s)
            else:
                stream.close()
                self._look_at_own()

    @precondition(lambda self: self.streams)
    @rule(i=picks, n=st.integers(1, 8), fault=maybe_errors)
    def own_next(self, i: int, n: int, fault: Fault | None) -> None:
        self._look_at_own()
        s = self.streams[i % len(self.streams)]
        if not self._next_of(s, n, fault):
            self.streams.remove(s)

    @precondition(lambda self: self.streams)
    @rule(i=picks)
    def own_close(self, i: int) -> None:
        self.streams.pop(i % len(self.streams)).stream.close()

    def _next_of(self, s: Stream, n: int, fault: Fault | None) -> bool:
        """Draw n tokens; return False if the stream has ended."""
        for other in self.streams:
            other.is_disturbed |= other is not s
        known = [*self.own, -1], [*s.prompt, *s.tokens]

        def draw_some() -> None:
            for _ in range(n):
                s.tokens.append(next(s.stream))
                known[1].append(s.tokens[-1])

        try:
            ok, _ = self._attempt(fault, draw_some, own=known)
        except Eagle3Error as e:
            if "the model was used for something else" not in str(e):
                raise
            assert s.is_disturbed
            ok = False
        self.kind.reference.check(s.prompt, s.draw, s.tokens)
        s.is_disturbed = False
        if ok:
            self.own = [*s.prompt, *s.tokens[:-1]]
        return ok

    @rule(text=texts, fault=maybe_errors)
    def own_eval(self, text: Any, fault: Fault | None) -> None:
        self._look_at_own()
        tokens = self._tokens(text)
        after = [*self.own, *tokens]
        ok, _ = self._attempt(fault, lambda: self.llm.eval(tokens), own=(self.own, after))
        if ok:
            self.own = after

    @rule(fault=maybe_errors)
    def own_sample(self, fault: Fault | None) -> None:
        self._look_at_own()
        if not self.own:
            return
        self.llm._sampler = None
        ok, token = self._attempt(fault, lambda: self.llm.sample(temp=0.0), own=(self.own,))
        if ok and self.llm.n_tokens:
            self.kind.reference.check(self.own, GREEDY, [token])

    @rule(fault=maybe_errors)
    def own_reset(self, fault: Fault | None) -> None:
        self._look_at_own()
        ok, _ = self._attempt(fault, self.llm.reset, own=(self.own,))
        if ok:
            self.own = []

    @rule(fault=maybe_errors)
    def own_save(self, fault: Fault | None) -> None:
        self._look_at_own()
        ok, state = self._attempt(fault, self.llm.save_state, own=(self.own,))
        if ok:
            assert state.n_tokens == len(self.own)
            self.states.append((self.own, state))

    @precondition(lambda self: self.states)
    @rule(i=picks, as_plain=st.sampled_from([False, False, False, True]), fault=maybe_errors)
    def own_load(self, i: int, as_plain: bool, fault: Fault | None) -> None:
        self._look_at_own()
        tokens, state = self.states[i % len(self.states)]
        draft_state = state.draft_state
        if as_plain and self.llm.drafters:
            state.draft_state = b""
            self.head_may_be_behind = True
        ok, _ = self._attempt(fault, lambda: self.llm.load_state(state), own=(self.own, tokens))
        state.draft_state = draft_state
        if ok:
            self.own, self.own_is_foreign = tokens, False

    @rule(n=picks)
    def own_back(self, n: int) -> None:
        self._look_at_own()
        if self.own:
            n %= len(self.own)
            for s in self.streams:
                s.is_disturbed = True
            self.llm.n_tokens = n
            self.own = self.own[:n]

    @rule(token=st.integers(0, 127), tokens=st.lists(st.integers(0, 127), min_size=1, max_size=6))
    def own_foreign(self, token: int, tokens: list[int]) -> None:
        """Evaluate text outside the engine, and then more after it, as the handlers of images do."""
        self._look_at_own()
        if len(self.own) + 1 + len(tokens) > self.engine.n_ctx:
            return
        ok, _ = self._attempt(None, lambda: self.llm.eval([token]), own=(self.own, [*self.own, token]))
        if not ok:
            return
        self.own = [*self.own, token]
        n_past = self.llm.n_tokens
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = t, n_past + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i == len(tokens) - 1
        done = llama_cpp.llama_decode(self.llm.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        if done:
            n = n_past + len(tokens)
            self.llm.input_ids[n_past:n] = tokens
            self.llm.n_tokens = n
            self.own, self.own_is_foreign = [*self.own, *tokens], True

    def _look_at_own(self) -> None:
        """Check that Llama's context holds its expected tokens, unless others took its slot."""
        n = self.llm.n_tokens
        if n != len(self.own):
            assert n == 0, f"{n} tokens are left of {len(self.own)}"
            self.own, self.own_is_foreign = [], False
        assert self.llm.input_ids[:n].tolist() == self.own

    # checks around every call

    def _attempt(
        self, fault: Fault | None, call: Callable[[], Any], own: tuple[list[int], ...] | None = None
    ) -> tuple[bool, Any]:
        """Call; return (whether it succeeded, its result). own: tokens that Llama's context may hold after an error."""
        if own is None:
            for s in self.streams:
                s.is_disturbed = True
        elif own[0] is not self.own or own is not None:
            for s in self.streams:
                s.is_disturbed |= len(own) < 2 or own[0][-1:] != [-1]
        error: BaseException | None = None
        result = None
        try:
            with armed(self.engine, fault):
                result = call()
        except (Exception, KeyboardInterrupt) as e:
            error = e
        if fault is not None:
            new = [e for e in fault.raised if e not in self.raised]
            counts["faults"] += len(new)
            self.raised += new
        if error is None:
            return True, result
        is_expected = any(error is e for e in [*self.raised, *self._processor_errors()])
        if own is not None:
            others = self.is_pool and self.engine.n_running + self.engine.n_waiting > 0
            n_most = max(map(len, own))
            is_expected |= isinstance(error, ContextFullError) and (others or n_most >= self.engine.n_ctx)
            is_expected |= self.own_is_foreign and "not in memory any more" in str(error)
        if not is_expected:
            if isinstance(error, KeyboardInterrupt):  # Hypothesis would stop at a KeyboardInterrupt
                raise AssertionError("an interrupt came again") from error
            raise error
        if own is not None:
            n = self.llm.n_tokens
            found = self.llm.input_ids[:n].tolist()
            assert any(tokens[:n] == found for tokens in own), f"{found} is left of {own}"
            self.own = found
            self.own_is_foreign &= n > 0
        return False, None

    def _processor_errors(self) -> list[BaseException]:
        return [e for r in self.requests if r.failing for e in r.failing.raised]

    def _check(self) -> None:
        check_engine(self.llm, self.head_may_be_behind)
        waiting = {id(output.sequence) for output in self.engine.stepper.outputs}  # until a step succeeds
        for r in self.requests:
            if r.sequence.is_done and not r.is_checked and id(r.sequence) not in waiting:
                self._check_done(r)

    def _check_done(self, r: Request) -> None:
        s, reason = r.sequence, r.sequence.result.finish_reason
        r.is_checked = True
        counts[f"finished: {reason}"] += 1
        generated = s.generated
        assert s.tokens[: s.n_prompt] == r.prompt
        expected = self.kind.reference.check(r.prompt, r.draw, generated)
        counts["tokens"] += len(generated)
        raw = b"".join(self.engine.vocab.piece(t) for t in generated)
        eog = self.engine.vocab.eog
        assert not eog & set(generated)
        assert len(generated) <= r.max_tokens + N_COMPLETE
        assert s.seq_id == -1
        if reason == "stop":
            is_cut = s.detokenizer is not None and any(stop in raw for stop in s.detokenizer.stop)
            assert is_cut or set(expected[len(generated) :]) & eog or len(expected) < len(generated)
        elif reason == "length":
            assert len(generated) >= r.max_tokens or len(s.tokens) == self.engine.n_ctx + 1
        elif reason == "cancelled":
            assert r.may_be_cancelled
        else:
            assert reason == "error"
            if r.failing is not None and any(s.result.error is e for e in r.failing.raised):
                assert len(generated) == r.failing.n - 1
            else:
                assert any(s.result.error is e for e in self.raised), s.result.error
        if s.request.logprobs is not None:
            assert [entry.token for entry in s.result.logprobs][: len(generated)] == generated
        if r.is_watched and not r.may_be_cancelled:
            assert [t for t in r.tokens if t not in eog] == generated
            assert r.text == str(s.detokenizer)

    def _check_drafts(self) -> None:
        if not self.llm.drafters or self.head_may_be_behind or self.engine.stepper.opened is not None:
            return
        for slot in self.engine.slots:
            user = slot.user
            if user is None or not (user.is_dirty or (user.is_paced and self.own_is_foreign)):
                check_draft_cache(self.llm, self.kind.fresh, slot)

    @rule()
    def look_at_drafts(self) -> None:
        self._check_drafts()

    def teardown(self) -> None:
        if not hasattr(self, "states"):
            return
        try:
            if sys.exc_info()[1] is None:
                self._end()
        finally:
            self.llm.close()
            self.folder.cleanup()

    def _end(self) -> None:
        n_most = 100 + 2 * sum(len(r.prompt) + min(r.max_tokens, 256) for r in self.requests)
        for _ in range(n_most):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.engine.has_work, (
            f"does not come to an end: {self.engine.scheduler.running}, {self.engine.scheduler.waiting}"
        )
        self._step()
        assert all(r.is_checked for r in self.requests)
        self._look_at_own()
        self._check_drafts()
        for s in self.streams:
            s.stream.close()
        self.llm.reset()
        check_empty(self.llm)
        self._fill()
        counts["ties"] = self.kind.reference.n_ties

    def _fill(self) -> None:
        """Check that no cell is lost: texts as long as the context find room."""
        n = 1 if self.is_pool else self.engine.target.n_seq
        for i in range(n):
            self._add(self.kind.texts[0][: 240 + i], GREEDY, DraftSettings(mode="off"), 1000)
        while self.engine.has_work:
            self._step()
        assert all(r.sequence.result.finish_reason in ("length", "stop") for r in self.requests[-n:])


def test_stateful(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_cpp_eagle3.engine import step

    monkeypatch.setattr(step, "perf_counter_ns", Clock(10_000))
    counts.clear()
    n_runs = max(1, N_STEPS // N_STEPS_EACH) if N_STEPS else 3
    machine = seed(SEED or zlib.crc32(kind.name.encode()))(type("Machine", (Machine,), {"kind": kind}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=n_runs,
            stateful_step_count=N_STEPS_EACH,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{kind.name}: {dict(sorted(counts.items()))}")
