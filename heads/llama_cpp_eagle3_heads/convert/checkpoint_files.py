"""Finds the files of a checkpoint in a folder, or in a repository's list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

CONFIG = "config.json"
_MASK_ROW = "mask_embedding"  # a row of the token embedding that some block drafters have beside their weights

# the names that trainers use, in the order in which they are looked for
_USUAL = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"
_FORMATS = (".safetensors", ".bin", ".pt", ".pth")
_SHARD = re.compile(r"^(.*?)-?(\d{5})-of-(\d{5})(\.(?:safetensors|bin))$")
# other files that training writes, and other forms of the same weights
_NO_WEIGHTS = (
    "training_args.*", "optimizer*", "scheduler*", "scaler*", "rng_state*", "random_states*", "trainer_state*",
    "training_state*", "tokenizer*", "consolidated*", "pytorch_model*.bin",
)  # fmt: skip


@dataclass(frozen=True)
class CheckpointFiles:
    """Names of a checkpoint's files."""

    index: str | None
    """The file that names the shards, if there is one."""
    weights: tuple[str, ...]
    """Files of weights; with an index, those that it names are the weights instead."""
    mask_row: str | None
    """The embedding of the mask token, in a file of its own."""
    strange: tuple[str, ...]
    """Files that look like weights and are not read."""

    @property
    def first(self) -> tuple[str, ...]:
        """Files that must be there before the index can be read."""
        mask = () if self.mask_row is None else (self.mask_row,)
        return (CONFIG, *mask, *((self.index,) if self.index else self.weights))

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know of them."""
        if not self.strange:
            return ()
        return (f"beside the weights lie files that are not read, and may belong to them: {', '.join(self.strange)}",)


def find_files(names: Iterable[str]) -> CheckpointFiles | None:
    """The files of a checkpoint among the names of a folder; None if there are no weights among them."""
    files = sorted(name for name in names if "/" not in name)
    found = _weights([name for name in files if Path(name).stem != _MASK_ROW])
    if found is None:
        return None
    index, weights = found
    mask_row = next((name for name in files if name.endswith(_FORMATS) and Path(name).stem == _MASK_ROW), None)
    # of a checkpoint in shards each may be named in the index alone, which is not read here
    known = {*weights, mask_row}
    strange = [
        name
        for name in files
        if name.endswith(_FORMATS)
        and name not in known
        and not any(fnmatch(name, pattern) for pattern in _NO_WEIGHTS)
        and not (index is not None and name.endswith(Path(index.removesuffix(_INDEX)).suffix))
    ]
    return CheckpointFiles(index, weights, mask_row, tuple(strange))


def _weights(files: list[str]) -> tuple[str | None, tuple[str, ...]] | None:
    """The index, or the files of weights."""
    for name in _USUAL:
        if name + _INDEX in files:
            return name + _INDEX, ()
        if name in files:
            return None, (name,)
    for kind in (".safetensors", ".bin"):
        indices = [name for name in files if name.endswith(kind + _INDEX)]
        if len(indices) == 1:
            return indices[0], ()
        of_kind = [name for name in files if name.endswith(kind) and not any(fnmatch(name, p) for p in _NO_WEIGHTS)]
        shards = _whole_set([name for name in files if name.endswith(kind)])
        if shards or (len(of_kind) == 1 and not _SHARD.match(of_kind[0])):
            return None, shards or tuple(of_kind)
    return None


def _whole_set(files: list[str]) -> tuple[str, ...]:
    """Shards that number themselves and are all there; none if there are others."""
    found = [match for match in map(_SHARD.match, files) if match is not None]
    if len(found) != len(files) or len({match[1] + match[3] for match in found}) != 1:
        return ()
    is_whole = sorted(int(match[2]) for match in found) == list(range(1, int(found[0][3]) + 1))
    return tuple(files) if is_whole else ()
