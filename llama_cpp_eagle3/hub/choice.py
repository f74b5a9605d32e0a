"""Choose files of a repository: names, types and shards, as llama.cpp reads them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from ..errors import HubError

TARGET_QUANTS = ("Q4_K_M", "Q8_0")
"""Types that are preferred for a target if none is named, as in llama.cpp; without these the first file."""

HEAD_QUANTS = ("Q8_0", "Q4_K_M", "F16", "BF16")
"""Types that are preferred for a head if none is named; without these the first file."""

SIBLING_QUANTS = ("Q4_0", "Q8_0", "Q4_K_M")
"""Types that are preferred for the small model of a target's family: the first one is the fastest."""

# files in targets' repositories that are no targets
_SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_NO_DRAFTS = ("mmproj", "imatrix")

_SHARD = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


def split_name(name: str) -> tuple[str, str]:
    """Split USER/REPO[:QUANT] into repository and type; the type may be empty.

    Raises:
        HubError: it is not of that form.
    """
    repo_id, _, quant = name.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id) or ":" in quant:
        raise HubError(f"{name!r} is not the name of a repository: expected USER/REPO or USER/REPO:QUANT")
    return repo_id, quant


def choose_target(files: Sequence[str], quant: str) -> str | None:
    """The target's file, or the first of its shards; None if there is none of that type."""
    return _choose([f for f in files if _is_gguf(f) and not _has(f, _SIDECARS)], quant, TARGET_QUANTS)


def choose_head(files: Sequence[str], quant: str) -> str | None:
    """The head's file: one that is named eagle3, else one that is not named as a sidecar, else another drafter.

    None if there is none of that type.
    """
    ggufs = [f for f in files if _is_gguf(f) and not _has(f, _NO_DRAFTS)]
    named = [f for f in ggufs if "eagle3" in _base(f) or "eagle-3" in _base(f)]
    return _choose(named or [f for f in ggufs if not _has(f, _SIDECARS)] or ggufs, quant, HEAD_QUANTS)


def choose_sidecar(files: Sequence[str]) -> str | None:
    """The head in a target's repository, by llama.cpp's names; None if there is none."""
    return _choose([f for f in files if _is_gguf(f) and _base(f).startswith("eagle3-")], "", HEAD_QUANTS)


def choose_sibling(files: Sequence[str]) -> str | None:
    """The file of a small model that drafts; None if there is none."""
    return _choose([f for f in files if _is_gguf(f) and not _has(f, _SIDECARS)], "", SIBLING_QUANTS)


def match_one(repo_id: str, files: Sequence[str], pattern: str) -> str:
    """The one file of this name, or that a glob pattern matches, as in `Llama.from_pretrained`.

    Raises:
        HubError: there is none, or there are several.
    """
    found = [f for f in files if fnmatch.fnmatch(f, pattern)]
    if len(found) > 1:
        raise HubError(f"Multiple files of '{repo_id}' match '{pattern}': {list_files(found)}. Name one of them.")
    if not found:
        raise HubError(f"No file found in '{repo_id}' that matches '{pattern}'. It has {list_files(files)}.")
    return found[0]


def shards_of(files: Sequence[str], first: str) -> list[str]:
    """A file, or all shards of the one that it is the first of.

    Raises:
        HubError: some are missing.
    """
    found = _SHARD.match(first)
    if found is None:
        return [first]
    names = [f"{found[1]}-{i:05}-of-{found[3]}.gguf" for i in range(1, int(found[3]) + 1)]
    missing = [name for name in names if name not in files]
    if missing:
        raise HubError(f"'{first}' is one of {found[3]} shards, and the repository lacks {list_files(missing)}")
    return names


def list_files(files: Sequence[str], n_max: int = 12) -> str:
    """Names for an error message."""
    if not files:
        return "no files"
    return ", ".join(files[:n_max]) + (f" and {len(files) - n_max} more" if len(files) > n_max else "")


def _choose(files: Sequence[str], quant: str, preferred: Sequence[str]) -> str | None:
    firsts = [f for f in files if (shard := _SHARD.match(f)) is None or int(shard[2]) == 1]
    for wanted in [quant] if quant else preferred:
        # a whole word: Q4_0 is not IQ4_0; folders may be named so too
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}[-./]", re.IGNORECASE)
        for file in firsts:
            if pattern.search(file):
                return file
    return firsts[0] if firsts and not quant else None


def _is_gguf(file: str) -> bool:
    return file.lower().endswith(".gguf")


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1].lower()


def _has(file: str, words: Sequence[str]) -> bool:
    return any(word in _base(file) for word in words)
