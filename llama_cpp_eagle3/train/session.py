"""`llama-cpp-eagle3 train` from start to end: texts, hidden states, training, the head's file, evaluation."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from tqdm import tqdm

from .._core import read_target
from ..bench.report import plot_training
from ..convert import convert
from ..errors import Eagle3Error
from ..pair import fingerprint
from ..whole_file import output_path, whole_file
from .build import boundaries_of, fresh_head, head_from_gguf, replace_draft_vocab, target_config
from .checkpoint import check_form, draft_vocabulary, export
from .data import Prompt, SelfPrompts, Store, Text, file_prompts
from .eagle import Head
from .measure import measure
from .ranks import Ranks, process_group
from .rows import AnswerGenerator, Extractor, Source, cache_bytes, cache_path
from .trainer import STATE, Settings, Trainer, split

_SETTINGS = "settings.json"
_VERSION = 4
"""Of what the work folder holds; 3 ignored --draft-vocab with --init, 2 had another state of the optimizer, 1 other
names of the head's weights."""
_N_ANSWER_MIN = 8
_N_SELF = 128
"""Prompts that the model makes up at once."""
N_DRAFT_VOCAB = 8192
"""Tokens that a fresh head can draft."""


@dataclass(frozen=True)
class Job:
    """What to do."""

    target: Path
    output: Path
    files: Sequence[Path] = ()
    init: Path | None = None
    work: Path | None = None
    resume: bool = False
    cache: Path | None = None
    export: Path | None = None
    export_form: str = "eagle"
    n_tokens: int = 1_000_000
    """Of answers."""
    max_tokens: int = 320
    """Of each."""
    n_ctx: int = 768
    n_parallel: int = 16
    layers: tuple[int, ...] = ()
    n_ff: int | None = None
    """Width of a fresh head's feed-forward layer; None: the target's."""
    draft_vocab: int | None = None
    """Tokens that the head can draft; None: 8192, or those of --init."""
    eagle31: bool = False
    """A fresh head with EAGLE-3.1's norms."""
    outtype: str = "q8_0"
    n_threads: int | None = None
    n_gpu_layers: int = 0
    n_measured: int = 16
    """Held-out prompts for the figures at the end."""
    training: Settings = field(default_factory=Settings)

    @property
    def loading(self) -> dict[str, Any]:
        """How the target is loaded, wherever it is."""
        n_threads = self.n_threads or torch.get_num_threads()
        return {"n_threads": n_threads, "n_threads_batch": n_threads, "n_gpu_layers": self.n_gpu_layers}

    @property
    def folder(self) -> Path:
        """Where everything lies that is needed to go on."""
        return self.work or self.output.with_name(self.output.name + ".work")

    @property
    def n_prompt_max(self) -> int:
        """Tokens of a prompt that leave room for an answer."""
        return self.n_ctx - min(self.max_tokens, self.n_ctx // 2)


def run(job: Job) -> None:
    """Do it.

    Raises:
        ValueError: something that was given cannot work.
        Eagle3Error: the training came to an end before its time; what was made until then is kept.
    """
    if job.n_threads:
        torch.set_num_threads(job.n_threads)
    with process_group() as ranks:
        head, texts = ranks.broadcast(lambda: _prepare(job))
        extractor = Extractor(job.target, head.cfg.boundaries, job.n_ctx, **job.loading, **_place(job, ranks))
        try:
            trainer = Trainer(head, Source(extractor, job.cache), texts, job.folder, job.training, ranks)
            if job.init is not None and not trainer.log:  # what --init gave is kept if nothing better comes of it
                found = trainer.evaluate()
                if ranks.is_first:
                    _log(json.dumps(found))
            trainer.run()
        finally:
            extractor.close()
    if ranks.is_first:
        _finish(job, trainer, texts)


def _prepare(job: Job) -> tuple[Head, list[Text]]:
    """The head as it begins, and the texts."""
    output_path(job.output, job.target, *job.files, job.init)
    _check_folder(job)
    torch.manual_seed(job.training.seed)
    head = None if job.init is None else head_from_gguf(_init_gguf(job), job.target, job.n_ctx, n_steps(job))
    if head is not None:
        check_form(head.cfg, job.export_form)
        if job.draft_vocab is not None and not head.cfg.own_output:
            raise ValueError(
                f"--draft-vocab {job.draft_vocab}: the head '{job.init}' has no lm_head of its own, it drafts with the "
                "target's: leave the flag out"
            )
    boundaries = boundaries_of(job.target, job.layers if head is None else head.cfg.boundaries)
    store = Store(job.folder)
    if job.cache is not None:
        _check_cache(job, job.cache, boundaries, store)
    make_texts(job, boundaries, store)
    texts = _usable(store.texts)
    split(texts)  # are there enough?
    return (make_head(job, texts) if head is None else choose_tokens(job, head, texts)), texts


def _place(job: Job, ranks: Ranks) -> dict[str, Any]:
    """Where the target of a rank lies, if each has one: on a GPU of its own."""
    if ranks.n_ranks == 1 or not job.n_gpu_layers:
        return {}
    return {"main_gpu": ranks.local_rank, "split_mode": llama_cpp.LLAMA_SPLIT_MODE_NONE}


def _finish(job: Job, trainer: Trainer, texts: Sequence[Text]) -> None:
    """The best head as files, and its evaluation."""
    best = trainer.load_best()
    _log(f"best on held-out text: {json.dumps(best)}")
    plot(trainer.log, job.folder / "training.png")
    write_head(job, trainer.head)
    evaluate_speculation(job, split(texts)[1])


def plot(log: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A picture of how it went: loss and acceptance on held-out text over the rows that were trained on."""
    try:
        plot_training(path, log)
    except Eagle3Error as e:  # no matplotlib
        _log(f"no picture: {e}")
        return
    _log(f"drew '{path}'")


def write_head(job: Job, head: Head) -> None:
    """The GGUF, and the checkpoint that it is made of."""
    folder = job.export or job.folder / "checkpoint"
    export(head, folder, job.export_form, job.target.stem)
    convert(
        folder,
        job.target,
        job.output,
        outtype=job.outtype,
        boundaries=head.cfg.boundaries if head.cfg.has_fc else None,
        norm_output=head.cfg.norm_output,
        norm_before_residual=head.cfg.norm_before_residual,
        name=job.output.stem,
    )
    _log(f"wrote '{job.output}' ({job.output.stat().st_size / 1e6:.1f} MB)")


def evaluate_speculation(job: Job, held: Sequence[Text]) -> None:
    """Evaluate the heads by real speculation on prompts that were not trained on."""
    prompts = [text.tokens[: text.n_prompt] for text in held[: job.n_measured]]
    options = {"n_ctx": job.n_ctx, "max_tokens": min(128, job.max_tokens), "n_max": job.training.n_max, **job.loading}
    heads = {"without a head": None, "with the head of --init": job.init and _init_gguf(job)}
    for name, head in {**heads, "with the new head": job.output}.items():
        if head is not None or name == "without a head":
            _log(f"{name}: {measure(job.target, head, prompts, **options)}")


def make_texts(job: Job, boundaries: Sequence[int], store: Store) -> None:
    """Have the target answer prompts until there are enough tokens, or no more prompts."""
    if store.n_tokens >= job.n_tokens or (job.folder / STATE).exists():
        return
    generator = AnswerGenerator(job.target, boundaries, job.n_ctx, job.n_parallel, job.n_prompt_max, **job.loading)
    bar = tqdm(total=job.n_tokens, initial=store.n_tokens, unit="token", desc="answers", mininterval=2.0)
    try:
        for prompts in _prompts(job, store, generator):
            for sample in generator(prompts, job.max_tokens, job.training.seed):
                tokens = sample.tokens.tolist()
                source = store.prompts[sample.id].source
                if job.cache is not None:
                    sample.save(cache_path(job.cache, sample.id))
                store.add_text(Text(sample.id, tokens, sample.n_prompt, sample.temperature, source))
                bar.update(len(tokens) - sample.n_prompt)
                if store.n_tokens >= job.n_tokens:
                    return
    finally:
        bar.close()
        generator.close()
    _log(f"{len(store.texts)} prompts gave {store.n_tokens} tokens, fewer than the {job.n_tokens} that were asked for")


def _prompts(job: Job, store: Store, generator: AnswerGenerator) -> Iterator[list[Prompt]]:
    """Those without an answer, then new ones."""
    if job.files and not store.prompts:
        store.add_prompts(file_prompts(generator.llm, job.files, job.n_prompt_max, _log))
    if left := store.unanswered():
        yield left
    if job.files:
        return
    own = SelfPrompts(generator.llm, job.n_ctx, job.training.seed, store.prompts)
    while True:
        prompts = own.block(len(store.prompts), _N_SELF)
        if not prompts:
            raise Eagle3Error(
                f"the target made up {_N_SELF} prompts of which none can be used: they are all the same, or never end. "
                "Give prompts with -f"
            )
        store.add_prompts(prompts)
        yield prompts


def _check_cache(job: Job, cache: Path, boundaries: Sequence[int], store: Store) -> None:
    """Log how large the cache will be, before anything is written.

    Raises:
        ValueError: the disk has less room, or the rows that are there are of another target or other boundaries.
    """
    info = read_target(str(job.target))
    n_values = len(boundaries) * info.n_embd
    cache.mkdir(parents=True, exist_ok=True)
    about = {"target": fingerprint(str(job.target)), "boundaries": list(boundaries)}
    path = cache / "about.json"
    if path.exists() and json.loads(path.read_text()) != about:
        raise ValueError(
            f"--cache: '{cache}' holds rows of another target or of other boundaries than {list(boundaries)} of "
            f"'{job.target}': name another folder"
        )
    with whole_file(path) as part:
        part.write_text(json.dumps(about) + "\n")
    n_known = sum(len(text.tokens) for text in store.texts)
    per_answer = n_known / store.n_tokens if store.n_tokens else 1 + 64 / job.max_tokens  # with its prompt
    n_tokens = max(n_known, round(per_answer * job.n_tokens))
    size = cache_bytes(n_tokens, n_values)
    n_there = sum(file.stat().st_size for file in cache.glob("*.safetensors"))
    free = shutil.disk_usage(cache).free
    _log(
        f"the cache in '{cache}' grows to about {size / 1e9:.2f} GB ({cache_bytes(1, n_values)} bytes a token); "
        f"{n_there / 1e9:.2f} GB are there, {free / 1e9:.1f} GB are free"
    )
    if size - n_there > free:
        raise ValueError(
            f"--cache: '{cache}' would need {(size - n_there) / 1e9:.2f} GB more and the disk has {free / 1e9:.2f}: "
            "ask for fewer --tokens, or train without a cache"
        )


def n_steps(job: Job) -> int:
    """Draft steps that a head ever runs."""
    return max(job.training.ttt_steps, job.training.n_max)


def make_head(job: Job, texts: Sequence[Text]) -> Head:
    """A fresh head; what it drafts is settled with the first run."""
    cfg = target_config(job.target, job.n_ctx, job.layers, n_ff=job.n_ff, eagle31=job.eagle31)
    d2t = _draft_vocabulary(job, count_answers(texts, cfg.n_vocab), job.draft_vocab or N_DRAFT_VOCAB)
    return fresh_head(job.target, cfg, d2t, n_steps(job))


def choose_tokens(job: Job, head: Head, texts: Sequence[Text]) -> Head:
    """The head of --init with the tokens that the answers need most, if asked for; else as it is, and that is said."""
    counts = count_answers(texts, head.cfg.n_vocab)
    known = head.d2t.numpy()
    if job.draft_vocab is not None:
        _log(f"draft vocabulary of --init: {_coverage(counts, known)}")
        return replace_draft_vocab(head, job.target, _draft_vocabulary(job, counts, job.draft_vocab), n_steps(job))
    if len(known) < head.cfg.n_vocab:
        best = draft_vocabulary(counts, len(known)).numpy()
        _log(
            f"draft vocabulary of --init: {_coverage(counts, known)}; --draft-vocab {len(known)} would choose those "
            f"that are {_share(counts, best):.2%}"
        )
    return head


def count_answers(texts: Sequence[Text], n_vocab: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often the answers have each token."""
    counts = np.zeros(n_vocab, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.tokens[text.n_prompt :], 1)
    return counts


def _share(counts: np.ndarray[Any, Any], d2t: np.ndarray[Any, Any]) -> float:
    return float(counts[d2t].sum() / max(1, counts.sum()))


def _coverage(counts: np.ndarray[Any, Any], d2t: np.ndarray[Any, Any]) -> str:
    return f"{len(d2t)} tokens, {_share(counts, d2t):.2%} of the answers"


def _draft_vocabulary(job: Job, counts: np.ndarray[Any, Any], n_draft: int) -> torch.Tensor:
    """The most frequent n_draft tokens; the first run writes them to the work folder, later ones read them there."""
    path = job.folder / "d2t.npy"
    if not path.exists():
        d2t = draft_vocabulary(counts, min(n_draft, len(counts))).numpy()
        _log(f"draft vocabulary: {_coverage(counts, d2t)}")
        with whole_file(path) as part, part.open("wb") as f:
            np.save(f, d2t)
    return torch.from_numpy(np.load(path))


def _init_gguf(job: Job) -> Path:
    """The head of --init as a GGUF."""
    assert job.init is not None
    if not job.init.is_dir():
        return job.init
    path = job.folder / "init.gguf"
    if not path.exists():
        convert(job.init, job.target, path, outtype="f32")
    return path


def _usable(texts: Sequence[Text]) -> list[Text]:
    """Those with an answer that is long enough."""
    return [text for text in texts if len(text.tokens) - text.n_prompt >= _N_ANSWER_MIN]


def _check_folder(job: Job) -> None:
    """Refuse a folder of another run; write down this one's settings.

    Raises:
        ValueError: the folder holds a training and --resume was not given, or it has other settings.
    """
    path = job.folder / _SETTINGS
    job.folder.mkdir(parents=True, exist_ok=True)
    ours = {
        "version": _VERSION,
        "target": fingerprint(str(job.target)),
        "files": [str(f) for f in job.files],
        "init": None if job.init is None else str(job.init),
        **{name: getattr(job, name) for name in ("n_ctx", "max_tokens", "n_ff", "draft_vocab")},
        "layers": list(job.layers),
        "norms": dict.fromkeys(("fc_norm", "norm_output"), job.eagle31),
        "seed": job.training.seed,
        "optimizer": job.training.optimizer,
        "ttt_steps": job.training.ttt_steps,
    }
    settings = {**ours, "batch": job.training.batch}
    if any((job.folder / name).exists() for name in (STATE, "prompts.jsonl", "d2t.npy")) and path.exists():
        if not job.resume:
            raise ValueError(
                f"'{job.folder}' holds a training that was begun: use --resume to go on with it, or another --work"
            )
        theirs = json.loads(path.read_text())
        different = [name for name in ours if theirs.get(name) != ours[name]]
        if different:
            raise ValueError(
                f"'{job.folder}' was begun with other settings: "
                + ", ".join(f"{name} {theirs.get(name)!r} instead of {ours[name]!r}" for name in different)
            )
    elif job.resume:
        raise ValueError(f"--resume: '{job.folder}' holds no training that was begun")
    with whole_file(path) as part:
        part.write_text(json.dumps(settings, indent=1) + "\n")


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
