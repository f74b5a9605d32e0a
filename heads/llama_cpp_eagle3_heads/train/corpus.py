"""The training text: CPython's standard library as it lies in the running interpreter's ``Lib/``."""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3.files.whole_file import whole_file, write_whole

from ..convert.checkpoint import read_json

BOS, EOS = 0, 1
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>")
N_VOCAB = 4096

#: Modules never trained on: prompts and acceptance figures come from them. A package is meant by its folder.
HELD_OUT = (
    "argparse.py",
    "asyncio/queues.py",
    "calendar.py",
    "cmd.py",
    "concurrent/futures/thread.py",
    "configparser.py",
    "csv.py",
    "email/message.py",
    "fractions.py",
    "gettext.py",
    "graphlib.py",
    "http/cookies.py",
    "json/decoder.py",
    "json/encoder.py",
    "logging/handlers.py",
    "queue.py",
    "sched.py",
    "shelve.py",
    "statistics.py",
    "tarfile.py",
    "textwrap.py",
    "unittest/case.py",
    "urllib/robotparser.py",
    "xml/dom/minidom.py",
)

#: Folders that hold tests, installed packages, tables of numbers, or text that is no Python.
SKIPPED_FOLDERS = frozenset(
    (
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "__pycache__",
        "encodings",
        "pydoc_data",
        "turtledemo",
    )
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "__phello__")


@dataclass(frozen=True)
class Source:
    """One file of the library: its path below ``Lib/`` and its text."""

    name: str
    text: str


def is_held_out(name: str) -> bool:
    """Whether a file (path below ``Lib/``) is one of the held-out modules (newer versions made packages of some)."""
    return any(name == module or name.startswith(module[:-3] + "/") for module in HELD_OUT)


def sources(stdlib: Path | None = None) -> tuple[list[Source], list[Source]]:
    """Training files and held-out files of the running interpreter's standard library, sorted by path."""
    root = stdlib or Path(sysconfig.get_path("stdlib"))
    train: list[Source] = []
    held: list[Source] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or parts[0].startswith(SKIPPED_PREFIXES):
            continue
        try:
            text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        name = "/".join(parts)
        if text.strip():
            (held if is_held_out(name) else train).append(Source(name, text))
    if not train or not held:
        raise FileNotFoundError(f"no standard library sources below {root}")
    return train, held


def digest(files: list[Source]) -> str:
    """SHA-256 over names and texts: shows whether two machines trained on the same files."""
    sha = hashlib.sha256()
    for source in files:
        sha.update(source.name.encode() + b"\0" + source.text.encode() + b"\0")
    return sha.hexdigest()


def train_tokenizer(files: list[Source]) -> Any:
    """Byte-level BPE with GPT-2's pre-tokenizer, ``gpt-2`` in llama.cpp."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((s.text for s in files), trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """The tokenizer that :func:`prepare` wrote.

    Raises:
        ModelFileError: it is not there, or is damaged.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises Exception itself, without the path
        raise ModelFileError(f"'{path}': not readable as a tokenizer: {e}") from e


def encode(tokenizer: Any, files: list[Source]) -> NDArray[np.uint16]:
    """All files as one stream, each between BOS and EOS."""
    stream: list[int] = []
    for encoding in tokenizer.encode_batch([s.text for s in files]):
        stream += [BOS, *encoding.ids, EOS]
    return np.array(stream, dtype=np.uint16)


def prepare(work: Path) -> dict[str, Any]:
    """Write tokenizer and token arrays into ``work`` (kept when there already) and return the corpus' description."""
    info_path = work / "corpus.json"
    if info_path.exists():
        return read_json(info_path)
    work.mkdir(parents=True, exist_ok=True)
    train, held = sources()
    tokenizer = train_tokenizer(train)
    with whole_file(work / "tokenizer.json") as part:
        tokenizer.save(str(part))
    arrays = {"train": encode(tokenizer, train), "heldout": encode(tokenizer, held)}
    for name, array in arrays.items():
        with whole_file(work / f"{name}.npy") as part, part.open("wb") as file:
            np.save(file, array)
    info = {
        "python": platform.python_version(),
        "train_files": len(train),
        "train_bytes": sum(len(s.text.encode()) for s in train),
        "train_tokens": len(arrays["train"]),
        "train_sha256": digest(train),
        "heldout_files": [s.name for s in held],
        "heldout_tokens": len(arrays["heldout"]),
        "heldout_sha256": digest(held),
        "n_vocab": tokenizer.get_vocab_size(),
    }
    write_whole(info_path, json.dumps(info, indent=2) + "\n")
    return info
