"""The prefix cache with a folder, after any events in any order: never another text, never over a limit.

Slots, tree, files and their format are the real ones; a target holds texts instead of numbers, threads run when the
test says so, and disks fail, fill up and lose data at every step of writing and reading.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from fake_memory import Pool, fake_memory
from invariants import check_tree
from llama_cpp_eagle3.engine import DraftSettings, Request, Sampling, Sequence, Slots
from llama_cpp_eagle3.files import prefix_file, prefix_folder, whole_file
from llama_cpp_eagle3.files.prefix_file import Maker
from llama_cpp_eagle3.files.prefix_folder import PrefixFolder, open_folder

N_SLOTS = 3
N_STEPS_EACH = 30
SEED = int(os.environ.get("EAGLE3_STATEFUL_SEED", "0"))


done: Counter[str] = Counter()
"""Counts of events, so that a run that tries nothing is noticed."""


FAULTS = ("open", "full", "kill", "half", "torn")
SPOILS = ("flip", "cut", "remove", "swap")


class Killed(BaseException):
    """The process ends here."""


class Machine(RuleBasedStateMachine):
    """Requests that begin like others, restarts and faults."""

    is_cut = True

    def __init__(self) -> None:
        super().__init__()
        self._place = tempfile.TemporaryDirectory()
        self.folder = Path(self._place.name)
        self.fault = ""
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(prefix_file, "whole_file", self._whole_file)
        self._patch.setattr(os, "replace", self._replace)
        self._replaced, self._whole = os.replace, whole_file.whole_file
        self._patch.setattr(os, "replace", self._replace)
        self._patch.setattr(PrefixFolder, "_drop_damaged", self._drop_damaged)
        self.rng = random.Random(0)
        self.texts: list[list[int]] = [[]]
        self.n_grown = 0  # bytes by which spoiled files are longer than the written ones

    def teardown(self) -> None:
        self._patch.undo()
        self._place.cleanup()

    # faults

    def _drop_damaged(self, name: str, e: Exception) -> None:
        done["dropped"] += 1
        (self.folder / name).unlink(missing_ok=True)

    def _whole_file(self, path: Path, **options: Any) -> Any:
        if self.fault == "open":
            self.fault = ""
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
        return self._whole(path, **options)

    def _replace(self, part: Path, path: Path) -> None:
        """Fail between the last write and the rename."""
        fault, self.fault = self.fault, ""
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault in ("kill", "half"):
            if fault == "half":
                os.truncate(part, part.stat().st_size // 2)
            kept = part.with_name(part.name + "x")  # `whole_file` would remove a killed process's file
            os.link(part, kept)
            self._killed = (kept, part)
            raise Killed
        real_replace(part, path)
        if fault == "torn":  # the file was renamed, and the disk lost it when the power went
            os.truncate(path, path.stat().st_size // 2)

    # rules

    @initialize(
        n_host=st.sampled_from([0, 1000, 5000, 100_000, 100_000]),
        n_disk=st.sampled_from([1000, 4000, 10_000, 20_000, 1 << 20]),
        n_states=st.sampled_from([1, 3, 32]),
        seed=st.integers(0, 1000),
    )
    def begin(self, n_host: int, n_disk: int, n_states: int, seed: int) -> None:
        self.options = (n_host, n_disk, n_states)
        self.rng = random.Random(seed)
        self._start()

    def _start(self) -> None:
        n_host, n_disk, n_states = self.options
        folder = open_folder(self.folder, n_disk, Maker("target", {"a": 1}, ""))
        assert folder is not None
        folder.close()
        self.pools = Pool(), Pool()
        folder._writer, folder._reader = self.pools  # type: ignore[assignment]
        self.slots = Slots(fake_memory(N_SLOTS, is_cut=self.is_cut), n_host, n_states, folder)
        self.running: list[Sequence] = []
        self._check()

    def _run(self, function: Any) -> None:
        """Call a function; if that kills the process, start again."""
        try:
            function()
        except Killed:
            done["killed"] += 1
            kept, part = self._killed
            os.rename(kept, part)
            self._start()
        self._check()

    @rule(
        what=st.sampled_from(["ask"] * 12 + [*FAULTS, *SPOILS, "hold", "go", "restart", "end", "clear", "distrust"]),
        index=st.integers(0, 15), share=st.floats(0, 1), n_new=st.integers(1, 120), blocks=st.booleans(),
        stays=st.booleans(), n_idle=st.integers(0, 4), n=st.integers(1, 4),
    )  # fmt: skip
    def act(
        self, what: str, index: int, share: float, n_new: int, blocks: bool, stays: bool, n_idle: int, n: int
    ) -> None:
        """Do one of all events in one rule: with several rules Hypothesis would leave some out."""
        if what in FAULTS:
            self.fault = what  # it happens to the next file that is written
        elif what in SPOILS:
            self._spoil(index, what)
        elif what in ("hold", "go"):  # threads are slow, or quick again
            for pool in self.pools:
                pool.is_held = what == "hold"
                if what == "go":
                    self._run(pool.run)
        elif what == "restart":  # the process is killed, and another one begins
            self._start()
        elif what == "end":
            self._run(self._end)
        elif what == "clear":
            self._run(self.slots.clear)
        elif what == "distrust":
            self._run(lambda: self.slots.cache.distrust(self.texts[index % len(self.texts)]))
        else:
            for i in range(n):
                self._run(lambda i=i: self._ask(index + i, share, n_new, blocks, stays))  # type: ignore[misc]
                for _ in range(n_idle):
                    self._run(self._idle)

    def _idle(self) -> None:
        cache = self.slots.cache
        if not cache.keep():
            n_bytes = cache.stats.n_bytes
            cache.read_ahead()
            done["read ahead"] += cache.stats.n_bytes > n_bytes

    def _end(self) -> None:
        """End the process in order, and begin another one."""
        while self.running:
            self.slots.release(self.running.pop())
        self.slots.cache.close()
        self._start()

    def _spoil(self, index: int, what: str) -> None:
        files = sorted(path for path in self.folder.iterdir() if not path.name.startswith("."))
        if not files:
            return
        path = files[index % len(files)]
        data = bytearray(path.read_bytes())
        if what == "flip" and data:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(data)
        elif what == "cut":
            path.write_bytes(data[: self.rng.randrange(len(data) + 1)])
        elif what == "remove":
            path.unlink()
        elif what == "swap":
            other = files[(index + 1) % len(files)].read_bytes()
            self.n_grown += max(0, len(other) - len(data))
            path.write_bytes(other)

    def _ask(self, index: int, share: float, n_new: int, blocks: bool, stays: bool) -> None:
        text = self.texts[index % len(self.texts)]
        prompt = text[: int(share * len(text))] + [self.rng.randrange(3) for _ in range(n_new)]
        request = Request(prompt, Sampling())
        sequence = Sequence(request, max_tokens=10, draft=DraftSettings())
        sequence.saves.n_turn = len(prompt)
        sequence.saves.places = sorted({self.rng.randrange(1, len(prompt) + 1) for _ in range(3)})
        cache = self.slots.cache
        target: Any = self.slots.memory.target
        while len(self.running) >= N_SLOTS:
            self.slots.release(self.running.pop(0))
        cache.sync()
        if not cache.fetch(sequence, blocks):
            self.pools[1].run()
            cache.sync()
        assert self.slots.assign(sequence)
        held = target.texts[sequence.seq_id]
        done.update(tier for tier, n in cache.stats.reused_tokens.items() if n and sequence.n_past)
        assert held == prompt[: sequence.n_past], "another text"
        assert len(held) == sequence.n_past < len(prompt)
        for n in [*(n for n in sequence.saves.places if n > sequence.n_past), len(prompt)]:
            held += prompt[len(held) : n]
            sequence.n_past = len(held)
            if n in sequence.saves.places:
                cache.save(sequence)
            self._check()
        for _ in range(self.rng.randrange(40)):
            sequence.tokens.append(self.rng.randrange(3))
        held += sequence.tokens[len(held) : -1]
        sequence.n_past = len(held)
        self.texts = [*self.texts[-15:], list(sequence.tokens)]
        if stays:
            self.running.append(sequence)
        else:
            self.slots.release(sequence)

    def _check(self) -> None:
        tree = self.slots.cache.tree
        check_tree(tree)
        done["evicted"] += tree.n_evicted_files > 0
        stats = self.slots.cache.stats
        assert stats.n_bytes <= stats.n_bytes_max == self.options[0]
        assert stats.n_file_bytes <= stats.n_file_bytes_max == self.options[1]
        files = [path for path in self.folder.iterdir() if not path.name.endswith(".part")]
        if not any(pool.todo for pool in self.pools):
            assert sum(path.stat().st_size for path in files) <= self.options[1] + self.n_grown
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


class RecurrentMachine(Machine):
    """The machine with a target that can go back only to saved states."""

    is_cut = False


real_replace = os.replace


@pytest.mark.parametrize("machine", [Machine, RecurrentMachine])
def test_whatever_happens(machine: type[Machine]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    n_examples = int(os.environ.get("EAGLE3_STATEFUL_STEPS", "0")) // N_STEPS_EACH or 40
    run = settings(
        max_examples=n_examples, stateful_step_count=N_STEPS_EACH, deadline=None, suppress_health_check=checks,
        derandomize=SEED == 0, database=None,
    )  # fmt: skip
    seed(SEED)(machine)
    done.clear()
    run_state_machine_as_test(machine, settings=run)
    assert all(done[what] for what in ("slot", "host", "disk", "killed", "evicted", "dropped", "read ahead")), done


def open_slots(path: Path, *, n_host: int = 1 << 20, n_disk: int = 1 << 20, n_slots: int = 1) -> Slots:
    folder = open_folder(path, n_disk, Maker("target", {}, ""))
    return Slots(fake_memory(n_slots, is_cut=True), n_host, 4, folder)


def ask(slots: Slots, prompt: list[int], seconds: float = 0.0) -> Sequence:
    """Run a request to its end; seconds: the time of its evaluation."""
    sequence = Sequence(Request(prompt, Sampling()), max_tokens=10, draft=DraftSettings())
    slots.cache.sync()
    assert slots.cache.fetch(sequence, blocks=True)
    assert slots.assign(sequence)
    sequence.n_cached = sequence.n_past
    stats = sequence.result.stats
    stats.prompt_tokens, stats.prefill_ns = len(prompt) - sequence.n_past, int(1e9 * seconds)
    slots.memory.target.texts[sequence.seq_id][:] = prompt  # type: ignore[attr-defined]
    sequence.n_past = len(prompt)
    slots.release(sequence)
    return sequence


def test_what_is_not_worth_reading(tmp_path: Path) -> None:
    """A short beginning of a long text is not read if evaluating it is as quick."""
    long, short = list(range(20_000)), [*range(40), 1, 2, 3]
    slots = open_slots(tmp_path)
    ask(slots, long)
    slots.cache.close()
    for seconds, expected in ((10.0, 40), (1e-7, 0)):  # seconds of each of forty texts of 1,000 tokens
        slots = open_slots(tmp_path)
        for i in range(40):
            ask(slots, [-1 - i] * 1000, seconds)
        assert ask(slots, short).n_cached == expected
        slots = open_slots(tmp_path)
        assert ask(slots, [*long, 5]).n_cached == 20_000


def read_ahead(slots: Slots) -> int:
    """Read ahead to the end; returns the number of prefixes in host memory."""
    until = time.monotonic() + 120
    while slots.cache.read_ahead():
        assert time.monotonic() < until
    return slots.cache.stats.n_prefixes


def test_what_was_used_last_is_read_ahead(tmp_path: Path) -> None:
    """Once the engine is idle. A request finds it in host memory, whatever has become of its file by then."""
    texts = [[first] * 1000 for first in (1, 2)]
    slots = open_slots(tmp_path, n_slots=2)
    for text in texts:
        ask(slots, text)
    slots.cache.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: prefix_file.read_head(path).tokens)
    for age, path in enumerate(files):
        os.utime(path, (1000 + age, 1000 + age))
    slots = open_slots(tmp_path)
    assert read_ahead(slots) == 1
    for path in files:
        path.write_bytes(b"")
    assert ask(slots, [*texts[1], 5]).n_cached == 1000
    assert slots.cache.stats.reused_tokens["disk"] == 1000
    assert ask(slots, [*texts[0], 5]).n_cached == 0


def test_nothing_is_evicted_to_read_ahead(tmp_path: Path) -> None:
    slots = open_slots(tmp_path)
    ask(slots, [1] * 1000)
    slots.cache.close()
    n_bytes = slots.cache.stats.n_bytes
    slots = open_slots(tmp_path, n_host=n_bytes * 3 // 2)
    ask(slots, [2] * 1000)
    assert slots.cache.keep()
    assert read_ahead(slots) == 1
    assert (slots.cache.stats.n_bytes, slots.cache.stats.n_evicted) == (n_bytes, 0)


def test_damage_is_found_while_reading_ahead(tmp_path: Path) -> None:
    slots = open_slots(tmp_path)
    ask(slots, [1] * 1000)
    slots.cache.close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    slots = open_slots(tmp_path)
    assert read_ahead(slots) == 0
    assert not path.exists()
    assert ask(slots, [1] * 1000 + [5]).n_cached == 0


def test_what_is_refused_is_not_copied_again(tmp_path: Path) -> None:
    """If neither host memory nor the folder has room for both slots' texts, copying comes to an end."""
    slots = open_slots(tmp_path, n_host=5000, n_disk=2000, n_slots=2)
    for first in (1, 2):
        ask(slots, [first] * 1000)
    n = 0
    while slots.cache.keep():
        n += 1
        assert n < 10
    slots.cache.close()


def test_names_of_files_are_found(tmp_path: Path) -> None:
    """Names are found of existing files, and of those that a killed process was writing."""
    folder = PrefixFolder(tmp_path, 1 << 20, Maker("t", {}, ""))
    name = folder._name_of([1, 2, 3], is_state=True)
    assert prefix_folder._NAME.fullmatch(name)
    with whole_file.whole_file(tmp_path / name) as part:
        assert prefix_folder._PART.fullmatch(part.name)
