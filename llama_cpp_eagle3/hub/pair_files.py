"""A target and its head from their repositories, the head converted if it is a Hugging Face checkpoint."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .._core import read_target
from .._version import __version__
from ..draft.siblings import SIBLINGS, find_sibling
from ..errors import HubError
from ..extras import heads
from ..files.cache_dir import cache_dir
from ..files.fingerprint import fingerprint
from .choice import (
    HEAD_QUANTS,
    TARGET_QUANTS,
    choose_head,
    choose_sibling,
    choose_sidecar,
    choose_target,
    list_files,
    match_one,
    shards_of,
    split_name,
)
from .repository import Access, Repository, Snapshot

_log = logging.getLogger("llama_cpp_eagle3")
SIBLING = "auto"
"""In place of a head's repository: the small model of the target's family."""
_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of the fetched files; None for a file that was not requested."""

    target: str | None
    head: str | None


def fetch_pair(
    target: str | None,
    head: str | None,
    access: Access,
    *,
    target_path: str | None = None,
    target_file: str | None = None,
    more_files: tuple[str, ...] = (),
    head_file: str | None = None,
    use_sidecar: bool = False,
    log: Callable[[str], None] = _log.info,
) -> Pair:
    """Fetch a target, a head, or both.

    Args:
        target: USER/REPO or USER/REPO:QUANT.
        head: the same, with a GGUF or a Hugging Face checkpoint, which is converted for the target and kept; or "auto",
            the small model of the target's family (`draft.siblings`).
        access: how the hub is asked.
        target_path: the target's file, if it is not fetched.
        target_file: its file in the repository, or a pattern that matches one, instead of a type.
        more_files: patterns of further files of the target's repository, one each.
        head_file: the head's file, or a pattern; without `head` it is in the target's repository.
        use_sidecar: without `head`, take the eagle3-*.gguf of the target's repository, if there is one.
        log: called with a line for each file that is chosen.

    Raises:
        HubError: the hub has no such thing, does not answer, or does not give it.
        ModelFileError, IncompatibleDraftError: a checkpoint cannot be converted for this target.
        ImportError: something of the extra `hub` is missing.
    """
    repository = None
    if head is None and head_file is not None and target is not None:
        head = split_name(target)[0]
    if target is not None:
        repo_id, quant = split_name(target)
        repository = Repository(repo_id, access)
        target_path = _fetch_target(repository, quant, target_file, more_files, log)
    head_path = None
    if head == SIBLING:
        head_path = _fetch_sibling(target_path, access, log)
    elif head is not None:
        repo_id, quant = split_name(head)
        is_same = repository is not None and repository.repo_id == repo_id
        head_repository = repository if is_same and repository is not None else Repository(repo_id, access)
        head_path = _fetch_head(head_repository, quant, head_file, target_path, log)
    elif use_sidecar and repository is not None:
        head_path = _fetch_sidecar(repository, log)
    return Pair(target_path if target is not None else None, head_path)


def _fetch_target(
    repository: Repository, quant: str, file: str | None, more: tuple[str, ...], log: Callable[[str], None]
) -> str:
    repository.check()
    snapshot, chosen = _choose(repository, quant, file, choose_target) or _refuse_target(repository, quant)
    names = shards_of(snapshot.files, chosen)
    names += [match_one(repository.repo_id, snapshot.files, pattern) for pattern in more]
    log(f"target: {repository.repo_id}, {chosen}" + (f" and {len(names) - 1} more files" if len(names) > 1 else ""))
    return str(repository.fetch(snapshot, names, repository.access.local_dir)[0])


def _refuse_target(repository: Repository, quant: str) -> tuple[Snapshot, str]:
    ggufs = [f for f in repository.files if f.lower().endswith(".gguf")]
    if ggufs:
        wanted = quant or " or ".join(TARGET_QUANTS)
        raise HubError(f"{repository.where} has no {wanted} model: it has {list_files(ggufs)}")
    raise HubError(
        f"{repository.where} has no GGUF file (it has {list_files(repository.files)}): name a repository with the "
        "model in GGUF, most are called so, or convert it with llama.cpp's convert_hf_to_gguf.py"
    )


def _fetch_head(
    repository: Repository, quant: str, file: str | None, target_path: str | None, log: Callable[[str], None]
) -> str:
    if not repository.snapshots and target_path is not None and not quant and file is None:
        kept = sorted(_converted(repository, "*", target_path), key=lambda path: path.stat().st_mtime)
        if kept:  # the checkpoint was removed from the hub's cache
            log(f"head: {repository.repo_id}, converted before: {kept[-1]}, the hub was not asked")
            return str(kept[-1])
    repository.check()
    chosen = _choose(repository, quant, file, choose_head)
    if chosen is not None:
        snapshot, name = chosen
        log(f"head: {repository.repo_id}, {name}")
        return str(repository.fetch(snapshot, [name], repository.access.local_dir)[0])
    ggufs = [f for f in repository.files if f.lower().endswith(".gguf")]
    checkpoint = repository.find(lambda snapshot: _is_checkpoint(snapshot) or None)
    if quant or checkpoint is None:
        wanted = quant or " or ".join(HEAD_QUANTS)
        kinds = f"GGUF files {list_files(ggufs)}" if ggufs else list_files(repository.files)
        hint = "; leave the type away to have its checkpoint converted" if checkpoint is not None else ""
        raise HubError(f"{repository.where} has no {wanted} head: it has {kinds}{hint}")
    if target_path is None:
        raise HubError(f"'{repository.repo_id}' is a checkpoint, which is converted for a target: give the target too")
    return _convert(repository, checkpoint[0], target_path, log)


def _fetch_sibling(target_path: str | None, access: Access, log: Callable[[str], None]) -> str:
    if target_path is None:
        raise HubError(f"the head '{SIBLING}' is chosen for a target: give the target too")
    target = read_target(target_path)
    sibling = find_sibling(target)
    if sibling is None:
        families = ", ".join(sibling.family for sibling in SIBLINGS)
        raise HubError(
            f"no small model is known for '{target_path}' ({target.arch}, named '{target.name}', {target.n_vocab} "
            f"tokens): the families are {families}. Name a drafter's repository instead"
        )
    repository = Repository(sibling.repo, access)
    repository.check()
    found = repository.find(lambda snapshot: choose_sibling(snapshot.files))
    if found is None:
        raise HubError(f"{repository.where} has no GGUF file: it has {list_files(repository.files)}")
    log(f"drafter: {sibling.repo}, {found[1]}, the small model of {sibling.family}")
    return str(repository.fetch(found[0], [found[1]], access.local_dir)[0])


def _is_checkpoint(snapshot: Snapshot) -> bool:
    return _CONFIG in snapshot.files and any(name.endswith(_WEIGHTS) for name in snapshot.files)


def _fetch_sidecar(repository: Repository, log: Callable[[str], None]) -> str | None:
    found = repository.find(lambda snapshot: choose_sidecar(snapshot.files))
    if found is None:
        return None
    log(f"head: {repository.repo_id}, {found[1]}, which lies beside the target")
    return str(repository.fetch(found[0], [found[1]], repository.access.local_dir)[0])


def _choose(
    repository: Repository, quant: str, file: str | None, choose: Callable[[tuple[str, ...], str], str | None]
) -> tuple[Snapshot, str] | None:
    """A file by its name, or by its type."""
    if file is None:
        return repository.find(lambda snapshot: choose(snapshot.files, quant))
    if quant:
        raise HubError(f"give either a file ('{file}') or a type (':{quant}')")
    name = match_one(repository.repo_id, repository.files, file)
    return repository.find(lambda snapshot: name if name in snapshot.files else None)


def _converted(repository: Repository, commit: str, target_path: str) -> list[Path]:
    """The folder of a converted checkpoint; of all of them if `commit` is a pattern."""
    folder = cache_dir() / "heads" / re.sub(r"[^\w.-]", "--", repository.repo_id)
    # it depends on the target too: its tokenizer, its layers, its embedding
    name = f"{commit[:12]}-{fingerprint(target_path)[:12]}-{__version__}.gguf"
    return list(folder.glob(name)) if commit == "*" else [folder / name]


def _convert(repository: Repository, snapshot: Snapshot, target_path: str, log: Callable[[str], None]) -> str:
    """The checkpoint as a GGUF: from our cache folder, else fetched, converted and kept there."""
    (output,) = _converted(repository, snapshot.commit, target_path)
    if output.is_file():
        log(f"head: {repository.repo_id}, converted before: {output}")
        return str(output)
    with heads(f"converting the checkpoint '{repository.repo_id}'"):
        from llama_cpp_eagle3_heads.convert.from_hub import convert_snapshot
    output.parent.mkdir(parents=True, exist_ok=True)
    convert_snapshot(repository, snapshot, Path(target_path), output, log)
    return str(output)
