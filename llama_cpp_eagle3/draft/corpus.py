"""A corpus that the n-gram drafter searches: a text file, or a folder of them, such as a project's sources."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from .._core import NgramStore, tokenize
from ..engine.vocab import Vocab

N_BYTES_MAX = 64 << 20
"""Bytes of memory for a corpus."""
_BYTES_PER_TOKEN = 12  # at most: tokens, which grow by doubling, and sorted places
_N_CHARS_MAX = 16  # per token, on average: a file of more than these cannot fit
_log = logging.getLogger("llama_cpp_eagle3")


def read_corpus(
    path: str | os.PathLike[str], vocab: Vocab, log: Callable[[str], None], n_bytes_max: int = N_BYTES_MAX
) -> NgramStore | None:
    """Tokenize a corpus, the files that changed last at its end, where the search begins.

    Files that are no text (UTF-8 without NUL), cannot be read or do not fit are left out; one line says how many. A
    path with nothing to read is a warning: drafts then do without it.

    Args:
        path: a file, or a folder, of which hidden files and folders are left out.
        vocab: the target's.
        log: called with the line.
        n_bytes_max: of memory.

    Returns:
        The corpus; None if there is nothing in it.
    """
    start, root = perf_counter(), Path(path).expanduser()
    n_left = n_max = n_bytes_max // _BYTES_PER_TOKEN
    address = int(ctypes.cast(vocab.pointer, ctypes.c_void_p).value or 0)
    texts: list[list[int]] = []
    n_no_text = n_too_large = 0
    for n_bytes, file in _files(root):  # the latest first, as they get the room first
        if n_bytes > _N_CHARS_MAX * n_left:
            n_too_large += 1
            continue
        tokens = _tokens(file, address)
        if tokens is None:
            n_no_text += 1
        elif len(tokens) >= n_left:
            n_too_large += 1
        elif tokens:
            texts.append(tokens)
            n_left -= len(tokens) + 1  # a separator
    left_out = [f"{n_no_text} that are no text or cannot be read"] * bool(n_no_text)
    left_out += [f"{n_too_large} for which {n_bytes_max >> 20} MiB of memory leave no room"] * bool(n_too_large)
    told = f"; left out: {', '.join(left_out)}" if left_out else ""
    if not texts:
        found = "it has no text" if root.exists() else "there is no such file or folder"
        what = "expected a text file, or a folder with some; drafts do without it"
        _log.warning("draft_corpus '%s': %s%s: %s", root, found, told, what)
        return None
    store = NgramStore(2 * (n_max - n_left + 1))  # of which one half holds all
    for tokens in reversed(texts):
        store.add(tokens)
    store.merge()
    log(
        f"draft corpus '{root}': {len(texts)} files, {len(store)} tokens, {store.n_bytes / 2**20:.1f} MiB, "
        f"{perf_counter() - start:.1f} s{told}"
    )
    return store


def _files(root: Path) -> Iterator[tuple[int, Path]]:
    """(bytes, path) of the files, those that changed last first."""
    found = []
    for file in [root] if root.is_file() else _below(root):
        try:
            if file.is_file():
                stat = file.stat()
                found.append((stat.st_mtime_ns, stat.st_size, file))
        except OSError:  # it was removed meanwhile
            continue
    for _, n_bytes, file in sorted(found, key=lambda x: (-x[0], x[2])):
        yield n_bytes, file


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in names if not name.startswith("."))


def _tokens(file: Path, vocab: int) -> list[int] | None:
    """A file's tokens; None if it is no text."""
    try:
        text = file.read_bytes()
        if b"\0" in text:
            return None
        text.decode()
        return tokenize(vocab, text, False, False)
    except (OSError, ValueError):  # UnicodeDecodeError is one; so is a word that the tokenizer cannot take
        return None
