"""Code that all benchmarks share: the pair, the prompts, the arguments, the places of the figures."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

import random_model
from comparison import peer_tools
from comparison.runs import N_CTX, load, n_cores
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3._core import Drafter, DraftRequest, DraftShape, Policy, use_huge_pages
from llama_cpp_eagle3.bench import provenance
from llama_cpp_eagle3.files.cache_dir import cache_dir

HERE = Path(__file__).parent


@dataclass
class Section:
    """One benchmark's figures, as results/NAME.md shows them."""

    script: str
    title: str
    text: str
    data: dict[str, object]
    variant: str = ""
    """The section's name, where a script makes several."""

    @property
    def name(self) -> str:
        return self.variant or self.script


def parser(description: str | None, runs: int = 5) -> argparse.ArgumentParser:
    """Make a parser with the arguments that all benchmarks have."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("-m", "--model", help="target (default: the bundled pair)")
    p.add_argument("-md", "--model-draft", help="head")
    p.add_argument("--prompts", type=Path, help="JSON list of texts (default: those that come with the bundled pair)")
    p.add_argument("--n-prompts", type=int, help="use only the first ones")
    p.add_argument("-n", "--n-predict", type=int, default=128, help="tokens per prompt")
    p.add_argument("-c", "--ctx-size", type=int, default=N_CTX)
    p.add_argument("-t", "--threads", type=int, default=n_cores())
    p.add_argument("-ngl", "--gpu-layers", type=int, default=0, help="of the target; the head follows; -1 = all")
    p.add_argument("--runs", type=int, default=runs)
    p.add_argument("--tools", help=f"folder of llama.cpp's tools (or {peer_tools.ENV_TOOLS}; default: build them)")
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    return p


def add_shape(p: argparse.ArgumentParser) -> None:
    """Add the arguments of benchmarks that measure random files."""
    p.add_argument("--shape", choices=random_model.SHAPES, default="1B")
    p.add_argument("--type", choices=random_model.TYPES, default="Q4_0", help="of the target")
    p.add_argument("--head-type", choices=random_model.TYPES, default="Q8_0")


def pair(args: argparse.Namespace) -> tuple[str, str]:
    """Return the files that were named, or the bundled ones."""
    if args.model:
        if not args.model_draft:
            sys.exit("-m needs -md")
        return args.model, args.model_draft
    target, head = models.bundled_pair()
    return str(target), str(head)


def engine(args: argparse.Namespace, model: str, draft: str | None) -> Eagle3Llama:
    """Load our engine with the threads, layers and context that were asked for; it drafts fixed chains."""
    options = {} if draft is None else {"draft": "chain"}
    return load(model, draft, args.threads, args.gpu_layers, args.ctx_size, **options)


def draft_chain(drafter: Drafter, id_last: int, n: int) -> list[int]:
    """Draft n tokens after `id_last`."""
    (draft,) = Policy([drafter]).propose([DraftRequest(0, id_last, n, shape=DraftShape(n))])
    return draft.tokens


def random_pair(args: argparse.Namespace) -> tuple[str, str]:
    """Return random files in the cache folder."""
    target, head = random_model.random_pair(cache_dir() / "random", args.shape, args.type, args.head_type)
    return str(target), str(head)


def prompts(args: argparse.Namespace) -> list[str]:
    """Return the texts to continue."""
    texts = json.loads(args.prompts.read_text(encoding="utf-8")) if args.prompts else models.heldout_prompts()
    return list(texts)[: args.n_prompts]


def load_llama_cpp(path: str, **options: Any) -> llama_cpp.Llama:
    """Load a model by llama-cpp-python, with the pages of 2 MiB that the package asks for."""
    use_huge_pages()
    return llama_cpp.Llama(path, verbose=False, **options)


def path_of(model: str) -> str:
    """Return the path of a model that `models` knows by name, unless a file has that name; else what was given."""
    is_name = model in models.names() and not Path(model).exists()
    return str(models.fetched(model, progress)) if is_name else model


def progress(text: str) -> None:
    """Show the progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def finish(args: argparse.Namespace, section: Section, files: Sequence[str]) -> None:
    """Print the figures; with --publish also write them to results/."""
    progress("")
    about = provenance.describe(args.threads)
    command = shlex.join(["python", f"benchmarks/{section.script}.py", *(a for a in sys.argv[1:] if a != "--publish")])
    lines = [
        section.text,
        "",
        f"Command: `{command}`  ",
        f"Machine: {about['machine']}, {about['threads']} threads  ",
        f"Versions: {about['versions']}; {about['date']}  ",
        *([f"Files: {', '.join(map(file_line, files))}"] if files else []),
    ]
    text = "\n".join(lines)
    print(f"## {section.title}\n\n{text}\n")
    if args.publish:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        document = {"command": command, **about, **section.data}
        (results / f"{section.name}.json").write_text(json.dumps(document, indent=1) + "\n")
        (results / f"{section.name}.md").write_text(f"# {section.title}\n\n{text}\n", encoding="utf-8")


def file_line(path: str | os.PathLike[str]) -> str:
    """Return a model file's name, size and hash."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
    return f"`{Path(path).name}` ({os.path.getsize(path) / 2**20:.1f} MiB, sha256 {digest.hexdigest()[:12]})"
