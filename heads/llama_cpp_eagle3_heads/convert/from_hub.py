"""Convert a checkpoint of the Hugging Face hub, for `llama_cpp_eagle3.hub` if a repository has no GGUF."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from llama_cpp_eagle3.errors import HubError
from llama_cpp_eagle3.hub.choice import list_files
from llama_cpp_eagle3.hub.repository import Repository, Snapshot

from .checkpoint import shard_names
from .checkpoint_files import find_files
from .source import Source

_log = logging.getLogger("llama_cpp_eagle3")


def convert_snapshot(
    repository: Repository, snapshot: Snapshot, target: Path, output: Path, log: Callable[[str], None]
) -> None:
    """Fetch the files of a checkpoint, and write them as a GGUF for a target.

    log: called with a line about the chosen files.

    Raises:
        HubError: it has no weights that belong together, or the hub does not give them.
        ModelFileError, IncompatibleDraftError: it cannot be converted for this target.
    """
    files = find_files(snapshot.files)
    if files is None:
        raise HubError(
            f"{repository.where} has no checkpoint that can be converted: it has {list_files(snapshot.files)}"
        )
    log(f"head: {repository.repo_id}, {files.index or ', '.join(files.weights)}, converted for this target")
    path = repository.fetch(snapshot, files.first)[-1]
    if files.index is not None:
        repository.fetch(snapshot, shard_names(path))
    source = Source.read(path.parent, target, name=repository.repo_id)
    source.save(output, progress=sys.stderr.isatty())
    for note in source.spec.notes:
        log(f"note: {note}")
    for warning in (*files.notes, *source.spec.warnings):
        _log.warning("the checkpoint of '%s': %s", repository.repo_id, warning)
    for doubt in source.spec.doubts:
        _log.warning(
            "the checkpoint of '%s' leaves open: %s. Settle it: llama-cpp-eagle3 convert '%s' --target '%s' --probe "
            "PROMPTS -o HEAD.gguf, and give that with -md",
            *(repository.repo_id, doubt, path.parent, target),
        )
