"""Run several sides on the same files and prompts in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.compare import context_size, turns
from llama_cpp_eagle3.bench.report import Spread
from llama_cpp_eagle3.draft.kinds import NGRAM

from . import peer_tools
from .peers import PeerSetting, of_dict
from .replay import Recorded, Replay, tokens_of
from .runs import Peer, Run, load, n_cores, run_own, run_peer, total
from .server import Server
from .settings import Setting, load_largest


@dataclass
class Config:
    """The sides, files, prompts and number of runs of a comparison."""

    model: str
    draft: str
    settings: list[Setting]
    texts: list[str]
    sources: tuple[str, ...] = ("eagle3", NGRAM)
    """The drafters that may be asked, as `draft_sources` of `Eagle3Llama`."""
    n_threads: int = field(default_factory=n_cores)
    n_predict: int = 128
    n_runs: int = 5
    n_fresh: int = 1
    """Prompts that each side evaluates anew in the first run, to time the first token; others are evaluated once."""
    n_gpu_layers: int = 0
    n_ctx: int = 0
    """Positions of the context; 0 = as many as the longest prompt and its answer need."""
    cpu_kernels: str = "auto"
    """The kernels, as `cpu_kernels` of `Eagle3Llama`."""
    temperature: float = 0.0
    """The temperature; 0 is greedy. Prompt j is sampled with seed j."""
    tools: str | None = None
    """The folder of llama.cpp's programs."""
    synthetic: list[float] | None = None
    """The odds by which drafted tokens are accepted, in place of the tokens that the target samples."""
    replay: list[tuple[str, str]] = field(default_factory=list)
    """Recorded prompts and answers, in place of `texts`; the target is made to generate them."""


@dataclass
class Side:
    """The figures of one side."""

    setting: Setting
    runs: list[Run]
    t_first: list[float]
    """Seconds to the first token, for each prompt that was evaluated anew."""

    def spread(self, figure: Callable[[Run], float]) -> Spread:
        """Return the spread of a figure over the runs."""
        return Spread.of(map(figure, self.runs))

    def median(self, figure: Callable[[Run], float]) -> float:
        """Return the median of a figure over the runs."""
        return self.spread(figure).median

    @property
    def speed(self) -> Spread:
        """Tokens per second."""
        return self.spread(lambda run: run.tokens_per_second)

    def as_dict(self) -> dict[str, Any]:
        """Return the side as JSON values."""
        return {
            "setting": asdict(self.setting),
            "name": self.setting.name,
            "tokens_per_second": asdict(self.speed),
            "mean_acceptance_length": total(self.runs).acceptance_length,
            "acceptance_per_position": total(self.runs).rates,
            "ideal_share": self.median(lambda run: run.ideal_share),
            "seconds_to_first_token": self.t_first,
            "runs": [asdict(run) for run in self.runs],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Side:
        """Make a side from the result of `as_dict`."""
        runs = [Run(**run) for run in data["runs"]]
        return cls(of_dict(data["setting"]), runs, data["seconds_to_first_token"])


@dataclass
class Result:
    """The figures of all sides."""

    sides: list[Side]
    n_prompts: int
    n_predict: int
    n_different: int
    """Prompts to which one of our sides wrote another text than plain decoding (or the first side) did."""
    synthetic: list[float] | None
    draft_type: int | None = None
    """The ggml type to which our sides converted the head's matrices; None = unchanged."""
    is_replay: bool = False
    """Whether the target was made to generate recorded texts."""
    cpu_kernels: str = ""
    """The kernels of ours that multiplied weights, or the reason why none did."""
    temperature: float = 0.0
    """The temperature; 0 is greedy."""

    def side(self, name: str) -> Side:
        """Return the side of the setting with this name."""
        return next(side for side in self.sides if side.setting.name == name)

    @property
    def plain(self) -> Side | None:
        """Return the side of plain decoding, or None if it was not run."""
        return next((side for side in self.sides if side.setting.kind == "plain"), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "synthetic_acceptance": self.synthetic,
            "n_prompts": self.n_prompts,
            "n_predict": self.n_predict,
            "n_different": self.n_different,
            "replay": self.is_replay,
            "draft_type": self.draft_type,
            "cpu_kernels": self.cpu_kernels,
            "temperature": self.temperature,
            "sides": [side.as_dict() for side in self.sides],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Result:
        """Make a result from the result of `as_dict`."""
        sides = [Side.from_dict(side) for side in data["sides"]]
        return cls(
            sides,
            data["n_prompts"],
            data["n_predict"],
            data["n_different"],
            data["synthetic_acceptance"],
            data["draft_type"],
            data.get("replay", False),
            data.get("cpu_kernels", ""),
            data.get("temperature", 0.0),
        )


Runner = Callable[[int, bool], tuple[Run, list[int] | None]]
"""(number of the prompt, whether to evaluate it anew) -> figures, and the tokens if they can be compared."""


def measure(config: Config, progress: Callable[[str], None] = lambda text: None) -> Result:
    """Run all sides, prompt by prompt.

    Each engine evaluates a prompt once and continues it in all runs. Within a run the sides take turns, and each run
    begins with another side. A run's figure is that of all its prompts together.

    Raises:
        ValueError: a side cannot be run with these settings, or a prompt and its answer do not fit into the context.
        Eagle3Error: target and head do not fit each other, or a program of llama.cpp failed.
    """
    if config.synthetic and any(s.kind == "simple" for s in config.settings):
        raise ValueError("llama-speculative-simple has no synthetic acceptance: compare with llama-server")
    if config.replay and any(s.kind == "simple" for s in config.settings):
        raise ValueError("llama-speculative-simple cannot replay recorded texts: compare with llama-server")
    is_free = not (config.synthetic or config.replay or any(s.kind == "simple" for s in config.settings))
    if config.temperature != 0.0 and not is_free:
        raise ValueError(
            "--temp is for texts that our sides and llama-server write: leave out --peer simple, --replay and "
            "--synthetic-acceptance"
        )
    texts = [prompt for prompt, _ in config.replay] or config.texts
    config = replace(config, n_ctx=context_size(config.model, texts, config.n_predict, config.n_ctx))
    n_prompts = len(texts)
    found: dict[Setting, list[list[Run]]] = {s: [[] for _ in range(config.n_runs)] for s in config.settings}
    t_first: dict[Setting, list[float]] = {s: [] for s in config.settings}
    different = set()
    with ExitStack() as stack:
        progress("loading")
        load_drafted = partial(_load, config, stack, config.draft)
        drafted = load_largest(
            [s for s in config.settings if not isinstance(s, PeerSetting)], config.sources, load_drafted
        )
        runners, kernels = _runners(config, drafted, stack, progress)
        for s in config.settings:  # the first run of each side warms up
            runners[s](0, False)
        expected: dict[int, list[int]] = {}
        for s, j, i, fresh in turns(config.settings, n_prompts, config.n_runs, config.n_fresh):
            progress(f"prompt {j + 1} of {n_prompts}, run {i + 1} of {config.n_runs}, {s.title}")
            run, tokens = runners[s](j, fresh)
            found[s][i].append(run)
            if fresh:
                t_first[s].append(run.t_prompt)
            if tokens is not None and not config.synthetic and tokens != expected.setdefault(j, tokens):
                different.add(j)
    sides = [Side(s, [total(runs) for runs in found[s]], t_first[s]) for s in config.settings]
    draft_type = None if drafted is None else drafted.draft_type
    return Result(
        sides,
        n_prompts,
        config.n_predict,
        len(different),
        config.synthetic,
        draft_type,
        bool(config.replay),
        kernels,
        config.temperature,
    )


def _runners(
    config: Config, drafted: Eagle3Llama | None, stack: ExitStack, progress: Callable[[str], None]
) -> tuple[dict[Setting, Runner], str]:
    """Return the function that runs each side, and our CPU kernels. `stack` closes the engines and servers."""
    runners: dict[Setting, Runner] = {}
    plain = None
    if drafted is None or any(s.kind == "plain" for s in config.settings):
        plain = _load(config, stack, None)
    engines = [llm for llm in (plain, drafted) if llm is not None]
    llm = engines[0]
    prompts = [Recorded(llm.tokenize(text.encode(), special=True), []) for text in config.texts]
    if config.replay:
        tokenize = partial(_tokenize, llm)
        prompts = [tokens_of(text, tokenize, config.n_predict) for text in config.replay]
    tools = peer_tools.get_tools(config.tools) if any(isinstance(s, PeerSetting) for s in config.settings) else Path()
    for s in config.settings:
        if isinstance(s, PeerSetting):
            clock = peer_tools.get_clock() if s.kind == "simple" else None
            other = Peer(tools, clock, config.model, config.draft, config.n_threads, config.n_gpu_layers, config.n_ctx)
            if s.kind == "simple":
                runners[s] = _simple(config, other, s.n_max)
            else:
                progress(f"starting {s.title}")
                replay = peer_tools.get_replay() if config.replay else None
                server = Server(other, s.n_max, config.synthetic, ngram=s.kind == "ngram", replay=replay)
                runners[s] = _server(config, stack.enter_context(server), prompts)
        elif s.kind == "plain" and plain is not None:
            runners[s] = _own(config, plain, s, prompts)
        elif drafted is not None:
            alone = drafted
            if s.kind in ("head", "text"):  # so that the policy learns from this side alone
                alone = _load(config, stack, config.draft, **s.load_options(config.sources))
            runners[s] = _own(config, alone, s, prompts)
    return runners, engines[-1].loaded.cpu_kernels_used


def _load(config: Config, stack: ExitStack, head: str | None, **options: Any) -> Eagle3Llama:
    size = config.n_threads, config.n_gpu_layers, config.n_ctx
    synthetic = config.synthetic if head is not None else None
    llm = load(config.model, head, *size, synthetic=synthetic, cpu_kernels=config.cpu_kernels, **options)
    return stack.enter_context(closing(llm))


def _tokenize(llm: Eagle3Llama, text: bytes, begins: bool) -> list[int]:
    tokens: list[int] = llm.tokenize(text, add_bos=begins, special=True)
    return tokens


def _n_predict(config: Config, recorded: Recorded) -> int:
    return len(recorded.answer) or config.n_predict


def _own(config: Config, llm: Eagle3Llama, setting: Setting, prompts: Sequence[Recorded]) -> Runner:
    replay = Replay()

    def run(j: int, fresh: bool) -> tuple[Run, list[int] | None]:
        setting.apply(llm, config.sources)
        if config.replay:
            llm.engine.stepper.on_sample = replay
            replay.answer = prompts[j].answer
        n_predict, stop = _n_predict(config, prompts[j]), not (config.synthetic or config.replay)
        t = config.temperature
        return run_own(llm, prompts[j].prompt, n_predict, fresh=fresh, stop=stop, temperature=t, seed=j)

    return run


def _simple(config: Config, other: Peer, n_max: int) -> Runner:
    return lambda j, fresh: (run_peer(other, config.texts[j], config.n_predict, n_max)[0], None)


def _server(config: Config, server: Server, prompts: Sequence[Recorded]) -> Runner:
    def run(j: int, fresh: bool) -> tuple[Run, list[int] | None]:
        if config.replay:
            server.replay([*prompts[j].prompt, *prompts[j].answer])
        n_predict, stop = _n_predict(config, prompts[j]), not (config.synthetic or config.replay)
        t = config.temperature
        return server.run(prompts[j].prompt, n_predict, fresh=fresh, stop=stop, temperature=t, seed=j), None

    return run
