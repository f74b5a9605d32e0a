"""A checkpoint and the target that it is converted for: reads and describes both, and writes a GGUF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .block import BlockSpec, describe_block, is_block, write_block
from .checkpoint import Checkpoint, input_files, read_checkpoint
from .encoding import OUTTYPES
from .head import HeadSpec, Overrides, describe
from .output import temporary
from .target import TargetModel, read_target_model
from .writer import write_head


@dataclass(frozen=True)
class Source:
    """A checkpoint and its target."""

    checkpoint: Checkpoint
    target: TargetModel
    spec: HeadSpec | BlockSpec
    outtype: str
    folder: str
    """The name of the checkpoint's folder."""
    name: str
    """The head's name in the file."""

    @classmethod
    def read(
        cls,
        draft: Path,
        target: Path,
        overrides: Overrides | None = None,
        outtype: str = "auto",
        name: str | None = None,
    ) -> Source:
        """Read both and describe the head.

        Args:
            draft: folder with the head's config.json and weights.
            target: the target's GGUF or its Hugging Face folder.
            overrides: values in place of those that the rules find.
            outtype: type of the matrices; auto keeps 16-bit types and makes f32 f16.
            name: the head's name in the file; by default the folder's name.

        Raises:
            ModelFileError: something in the files is missing, broken or not supported.
            IncompatibleDraftError: the head was not made for this target.
        """
        if outtype != "auto" and outtype not in OUTTYPES:
            raise ValueError(f"expected an outtype of auto, {', '.join(OUTTYPES)}, got {outtype!r}")
        checkpoint = read_checkpoint(draft)
        model = read_target_model(target)
        spec: HeadSpec | BlockSpec
        if is_block(checkpoint.config):
            spec = describe_block(checkpoint, model, overrides)
        else:
            spec = describe(checkpoint, model, overrides)
        folder = draft.resolve().name
        return cls(checkpoint, model, spec, _outtype(checkpoint, outtype), folder, name or folder)

    @property
    def inputs(self) -> list[Path]:
        """Files that it is read from."""
        return [*input_files(self.checkpoint.path), *input_files(self.target.path)]

    def write(self, path: Path, progress: bool) -> None:
        """Write the head over a file. progress: show a bar."""
        if isinstance(self.spec, BlockSpec):
            write_block(path, self.spec, self.target, self.outtype, progress, self.name)
        else:
            write_head(path, self.spec, self.checkpoint, self.target, self.outtype, progress, self.name)

    def save(self, path: Path, progress: bool) -> None:
        """Write the head to a file, whole or not at all."""
        with temporary(path, *self.inputs) as part:
            self.write(part, progress)


def _outtype(checkpoint: Checkpoint, outtype: str) -> str:
    if outtype != "auto":
        return outtype
    return "bf16" if any(tensor.dtype == "bf16" for tensor in checkpoint.tensors.values()) else "f16"
