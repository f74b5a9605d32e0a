"""Run one prompt through our engine or llama.cpp's tool, with the same figures from both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama
from llama_cpp_eagle3.bench import compare
from llama_cpp_eagle3.bench.compare import N_CTX, Timed

from .bandwidth import weights_read
from .synthetic import SyntheticAcceptance


@dataclass
class Run:
    """Figures of one or several prompts. Times are in seconds; those of steps exclude the prompt's."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    t_decode: float = 0.0
    """Wall-clock time of all steps."""
    t_draft: float = 0.0
    """Time of the drafter's part: processing rows, drafting, and the code around them."""
    t_prompt: float = 0.0
    t_graph: float = 0.0
    """The part of t_draft inside ggml. Ours only."""
    t_verify: float = 0.0
    """Time inside llama_decode. Ours only."""
    t_propose: float = 0.0
    """The part of t_draft for drafting, in C++."""
    t_process: float = 0.0
    """The part of t_draft for processing rows, in C++."""
    t_sample: float = 0.0
    """Time of sampling, Python included. Ours only."""
    n_bytes: float = 0.0
    """Bytes of weights that were read in all steps. Ours only."""

    def __add__(self, other: Run) -> Run:
        n = max(len(self.per_position), len(other.per_position))
        lists = (run.per_position + [0] * (n - len(run.per_position)) for run in (self, other))
        added = {name: getattr(self, name) + getattr(other, name) for name in vars(self) if name != "per_position"}
        return Run(**added, per_position=[a + b for a, b in zip(*lists, strict=True)])

    @property
    def acceptance(self) -> float:
        """The accepted part of the drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def rates(self) -> list[float]:
        """The part of all steps in which the 1st, 2nd, ... drafted token was accepted."""
        return [n / self.steps for n in self.per_position] if self.steps else []

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, without the prompt."""
        return self.tokens / self.t_decode if self.t_decode else 0.0

    @property
    def t_overhead_step(self) -> float:
        """Time of a step outside ggml and llama_decode. Ours only."""
        return (self.t_decode - self.t_verify - self.t_graph) / self.steps if self.steps else 0.0

    @property
    def ideal_share(self) -> float:
        """Tokens/s, divided by those of an engine that spends its time in llama_decode and the head's graphs alone.

        The latter are mean acceptance length / (T(n) + drafter's ggml time). Ours only, 0 for others.
        """
        return (self.t_verify + self.t_graph) / self.t_decode if self.t_decode else 0.0

    @property
    def gb_per_second(self) -> float:
        """Gigabytes of weights that were read per second. Ours only."""
        return self.n_bytes / self.t_decode * 1e-9 if self.t_decode else 0.0

    @property
    def t_draft_step(self) -> float:
        """The drafter's time in a step."""
        return self.t_draft / self.steps if self.steps else 0.0


def total(runs: Iterable[Run]) -> Run:
    """Return the sum of several runs."""
    return sum(runs, Run())


def load(
    model: str,
    head: str | None,
    n_threads: int,
    n_gpu_layers: int = 0,
    n_ctx: int = N_CTX,
    *,
    synthetic: Sequence[float] | None = None,
    **options: Any,
) -> Eagle3Llama:
    """Load our engine, as `compare.load` does, with the settings that `run_peer` gives to llama.cpp's tool.

    synthetic: odds by which drafted tokens are accepted, see `synthetic`.
    """
    llm = compare.load(model, head, n_threads, n_gpu_layers, n_ctx, **options)
    if synthetic is not None:
        llm.engine.stepper.on_sample = SyntheticAcceptance(synthetic, llm.n_vocab())
    return llm


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def generate(
    llm: Eagle3Llama,
    prompt: Sequence[int],
    n_predict: int,
    *,
    fresh: bool = True,
    stop: bool = True,
    clock: Callable[[], float] = perf_counter,
    temperature: float = 0.0,
    seed: int = 0,
    on_first: Callable[[], None] = lambda: None,
) -> Timed:
    """Generate, by default greedily.

    Args:
        llm: an engine that `load` returned.
        prompt: tokens.
        n_predict: tokens to generate, at most.
        fresh: evaluate the prompt anew even if the context begins with it.
        stop: end at the end-of-generation token.
        clock: returns seconds, of wall-clock or processor time.
        temperature: the temperature of llama.cpp's default samplers; 0 is greedy.
        seed: the seed of sampled text.
        on_first: called after the first token.
    """
    if fresh:
        llm.reset()
    llm.set_seed(seed)
    generator = llm.generate(prompt, temp=temperature)
    tokens = [next(generator)]
    on_first()
    eos, start = llm.token_eos(), clock()
    for token in islice(generator, n_predict - 1):
        tokens.append(token)
        if stop and token == eos:
            break
    generator.close()
    seconds = clock() - start
    return Timed(tokens, seconds, llm.last_stats)


def run_own(llm: Eagle3Llama, prompt: Sequence[int], n_predict: int, **options: Any) -> tuple[Run, list[int]]:
    """Generate in our engine, by default greedily; return the figures and the tokens.

    options: the arguments of `generate`, except on_first.
    """
    before: list[tuple[float, ...]] = []

    def on_first() -> None:
        before.append((*_clocks(llm), _n_steps(llm)))

    timed = generate(llm, prompt, n_predict, on_first=on_first, **options)
    stats = timed.stats
    after = (*_clocks(llm), _n_steps(llm))
    t_verify, t_propose, t_process, t_graph, n_graphs = (b - a for a, b in zip(before[0], after, strict=True))
    n_target = weights_read(llm.model_path)
    n_head = llm.drafters[0].n_bytes_read if llm.drafters else 0
    run = Run(
        # the prompt's pass gives the first token
        tokens=stats.tokens - 1,
        steps=stats.steps,
        drafted=stats.drafted,
        accepted=stats.accepted,
        per_position=list(stats.accepted_per_position),
        t_decode=timed.seconds,
        t_draft=stats.draft_seconds,
        t_prompt=stats.prefill_seconds,
        t_graph=t_graph,
        t_verify=t_verify,
        t_propose=t_propose,
        t_process=t_process,
        t_sample=stats.sample_seconds,
        n_bytes=n_target * stats.steps + n_head * n_graphs,
    )
    return run, timed.tokens


def _n_steps(llm: Eagle3Llama) -> int:
    """Return the number of the head's graphs that were computed."""
    return sum(d.n_steps for d in llm.drafters)


def _clocks(llm: Eagle3Llama) -> tuple[float, float, float, float]:
    """Return seconds counted in C++: llama_decode, propose, process, and the graphs within the last two."""
    t_us = [llm.target.t_decode_us, 0, 0, 0]
    for drafter in llm.drafters:
        t_us[1:] = t_us[1] + drafter.t_propose_us, t_us[2] + drafter.t_process_us, t_us[3] + drafter.t_graph_us
    a, b, c, d = (t * 1e-6 for t in t_us)
    return a, b, c, d


@dataclass(frozen=True)
class Peer:
    """llama-speculative-simple with a pair and the settings of `load`."""

    tools: Path
    clock: Path | None
    """The library of `peer_tools.get_clock`. Without it `t_process` is 0, and so `t_draft` is too low."""
    model: str
    draft: str
    """The drafter's file; for a block for multi-token prediction, the target's own file."""
    n_threads: int
    n_gpu_layers: int = 0
    n_ctx: int = N_CTX

    def command(self, prompt_file: Path, n_predict: int, n_max: int) -> list[str]:
        """Return the command line, greedy."""
        n_threads, n_layers = str(self.n_threads), str(self.n_gpu_layers if self.n_gpu_layers >= 0 else 999)
        return [
            *(str(self.tools / "llama-speculative-simple"), "-m", self.model, "-md", self.draft),
            *("-f", str(prompt_file), "--no-escape", "-n", str(n_predict), "--temp", "0"),
            *("--spec-type", "draft-eagle3", "--spec-draft-n-max", str(n_max)),
            *("-c", str(self.n_ctx), "-b", str(self.n_ctx), "-ub", "512", "-t", n_threads, "-tb", n_threads),
            *("-ngl", n_layers, "-ngld", n_layers),
            # llama-cpp-python's default; at trace level the tool prints the drafter's statistics
            *("-fa", "off", "-lv", "4", "--log-colors", "off", "--no-log-prefix"),
        ]


def run_peer(peer: Peer, prompt: str, n_predict: int, n_max: int) -> tuple[Run, str]:
    """Generate greedily with llama-speculative-simple; return the figures and its output."""
    with tempfile.TemporaryDirectory() as folder:
        prompt_file, clock_file = Path(folder, "prompt"), Path(folder, "clock")
        prompt_file.write_text(prompt, encoding="utf-8")
        env = dict(os.environ)
        if peer.clock is not None:
            env |= {"LD_PRELOAD": str(peer.clock), "PEER_CLOCK": str(clock_file)}
        command = peer.command(prompt_file, n_predict, n_max)
        done = subprocess.run(command, capture_output=True, env=env)
        out, log = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode != 0:
            raise Eagle3Error(f"{' '.join(command)} failed:\n{log[-2000:]}")
        process = json.loads(clock_file.read_text()) if clock_file.exists() else {"t_steps_us": 0, "t_prompt_us": 0}
    return parse_peer(log, process), out


def parse_peer(log: str, process: dict[str, int]) -> Run:
    """Read the block of figures at the end of llama-speculative-simple's output."""

    def find(pattern: str) -> tuple[str, ...]:
        found = re.search(pattern, log)
        if found is None:
            raise Eagle3Error(f"llama-speculative-simple printed no {pattern!r}:\n{log[-2000:]}")
        return found.groups()

    (t_decode,) = find(r"decoded\s+\d+ tokens in\s+([\d.]+) seconds")
    (t_encode,) = find(r"encoded\s+\d+ tokens in\s+([\d.]+) seconds")
    (n_calls,) = find(r"#calls\(b,g,a\) =\s+\d+\s+(\d+)\s+\d+")
    t_begin, t_generate, t_accept = (float(t) for t in find(r"dur\(b,g,a\) = ([\d.]+), ([\d.]+), ([\d.]+) ms"))
    steps = int(n_calls)
    rates = re.search(r"#acc rate/pos = \(([\d., ]*)\)", log)
    t_process = process["t_steps_us"] * 1e-6
    return Run(
        tokens=int(find(r"n_predict = (\d+)")[0]),
        steps=steps,
        drafted=int(find(r"n_drafted = (\d+)")[0]),
        accepted=int(find(r"n_accept  = (\d+)")[0]),
        per_position=[round(float(r) * steps) for r in re.findall(r"[\d.]+", rates[1])] if rates else [],
        t_decode=float(t_decode),
        t_draft=(t_begin + t_generate + t_accept) * 1e-3 + t_process,
        t_prompt=float(t_encode),
        t_propose=t_generate * 1e-3,
        t_process=t_process,
    )
