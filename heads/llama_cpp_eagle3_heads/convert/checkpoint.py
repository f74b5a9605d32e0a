"""A Hugging Face folder: config.json, and tensors under one set of names whatever the trainer called them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3.files.text_file import read_text

from .checkpoint_files import CheckpointFiles, find_files
from .safetensors_file import read_safetensors
from .tensors import FLOAT_TYPES, Array, LazyTensor
from .torch_file import read_torch_file, read_torch_table

# Names of other trainers -> those of the reference: `layers.0.*` without a prefix.
_ALIASES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
)

_LFS = b"version https://git-lfs.github.com/spec/"

# Not weights of the head: copies of the target's, and tables that can be computed
_IGNORED = re.compile(r"^verifier_|rotary_emb\.")


@dataclass(frozen=True)
class MaskRow:
    """The embedding of a mask token, in a file of its own."""

    token: int
    values: Array = field(repr=False)


@dataclass
class Checkpoint:
    """A draft folder. `tensors` have canonical names; `original` has their names in the file."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, LazyTensor] = field(repr=False)
    original: dict[str, str] = field(repr=False)
    mask_row: MaskRow | None = None
    notes: tuple[str, ...] = ()
    """What users should know of its files."""

    def layer_indices(self) -> list[int]:
        """Which `layers.{i}` there are."""
        return sorted({int(m[1]) for m in (re.match(r"layers\.(\d+)\.", name) for name in self.tensors) if m})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        raise ModelFileError(f"'{path}': no such file") from None
    except (OSError, ValueError, RecursionError) as e:
        raise ModelFileError(f"'{path}': not readable as JSON: {e}") from e
    if not isinstance(value, dict):
        raise ModelFileError(f"'{path}': expected a table, found {type(value).__name__}")
    return value


def read_checkpoint(path: Path) -> Checkpoint:
    """Open a draft folder and check that every tensor lies within its file; nothing is loaded yet."""
    if not path.is_dir():
        kind = "not a folder" if path.exists() else "no such folder"
        raise ModelFileError(f"'{path}': {kind}; expected a folder with config.json and the head's tensors")
    config = read_json(path / "config.json")
    files = _files_of(path)
    tensors: dict[str, LazyTensor] = {}
    original: dict[str, str] = {}
    for name, tensor in _read_files(path, files).items():
        canonical = canonical_name(name)
        if canonical is None:
            continue
        if canonical in tensors:
            raise ModelFileError(f"'{path}': tensors '{original[canonical]}' and '{name}' are the same thing twice")
        tensors[canonical], original[canonical] = tensor, name
    mask_row = None if files.mask_row is None else _read_mask_row(path / files.mask_row)
    return Checkpoint(path, config, tensors, original, mask_row, files.notes)


def input_files(path: Path) -> list[Path]:
    """Files that a conversion may read of a model: the GGUF, or all of a Hugging Face folder but GGUFs made of it."""
    return [file for file in path.iterdir() if file.suffix != ".gguf"] if path.is_dir() else [path]


def canonical_name(name: str) -> str | None:
    """The reference's name of a tensor; None if it is no part of the head."""
    for pattern, replacement in _ALIASES:
        name = pattern.sub(replacement, name)
    return None if _IGNORED.search(name) else name


def read_tensors(path: Path) -> dict[str, LazyTensor]:
    """All tensors of a model folder under the names in the files, from one file or from shards."""
    return _read_files(path, _files_of(path))


def _files_of(path: Path) -> CheckpointFiles:
    names = [file.name for file in path.iterdir() if file.is_file()]
    files = find_files(names)
    if files is None:
        raise ModelFileError(
            f"'{path}': no weights found: expected model.safetensors or pytorch_model.bin, or their .index.json with "
            f"shards, or one file of that kind; the folder has {', '.join(sorted(names)[:12]) or 'no files'}"
        )
    return files


def _read_files(path: Path, files: CheckpointFiles) -> dict[str, LazyTensor]:
    if files.index is not None:
        return _read_shards(path, path / files.index)
    tensors: dict[str, LazyTensor] = {}
    for name in files.weights:
        for tensor, values in _read_file(path / name).items():
            if tensor in tensors:
                raise ModelFileError(f"'{path / name}': tensor '{tensor}' is in another shard too")
            tensors[tensor] = values
    return tensors


def _read_file(path: Path) -> dict[str, LazyTensor]:
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise ModelFileError(
                f"'{path}': a pointer of Git LFS and not the file itself: `git lfs pull` fetches it, as does a "
                "download from the web page"
            )
    return read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)


def _read_mask_row(path: Path) -> MaskRow:
    """The file of a mask token's embedding: a table with `mask_token_id` and `embedding`."""
    table: dict[str, Any] = dict(read_safetensors(path)) if path.suffix == ".safetensors" else read_torch_table(path)
    token, row = table.get("mask_token_id"), table.get("embedding")
    if isinstance(token, LazyTensor) and token.dtype not in FLOAT_TYPES and math.prod(token.shape) == 1:
        token = int(token.read().reshape(-1)[0])
    is_row = isinstance(row, LazyTensor) and row.dtype in FLOAT_TYPES and sum(n != 1 for n in row.shape) == 1
    if type(token) is not int or not isinstance(row, LazyTensor) or not is_row:
        raise ModelFileError(
            f"'{path}': expected a table with 'mask_token_id', a token, and 'embedding', a row of floats; found "
            f"{', '.join(sorted(map(str, table))) or 'nothing'}"
        )
    return MaskRow(token, row.read().reshape(-1))


def shard_names(index: Path) -> list[str]:
    """The files that an index names."""
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> shard."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelFileError(f"'{index}': key 'weight_map' is missing or broken")
    for shard in sorted(set(weight_map.values())):
        # a shard is a plain file name beside the index, never a path that leads elsewhere
        if not shard or shard in (".", "..") or re.search(r"[/\\:\0]", shard):
            raise ModelFileError(f"'{index}': refused: shard '{shard}' is not a plain file name")
    return weight_map


def _read_shards(path: Path, index: Path) -> dict[str, LazyTensor]:
    shards: dict[str, dict[str, LazyTensor]] = {}
    names = shard_names(index)
    for shard in names:
        if not (path / shard).is_file():
            missing = sum(not (path / other).is_file() for other in names)
            raise ModelFileError(f"'{index}': shard '{shard}' is missing ({missing} of {len(names)} are)")
        shards[shard] = _read_file(path / shard)
    tensors = {}
    for name, shard in _weight_map(index).items():
        if name not in shards[shard]:
            raise ModelFileError(f"'{path / shard}': tensor '{name}' is missing, which '{index.name}' lists there")
        tensors[name] = shards[shard][name]
    return tensors
