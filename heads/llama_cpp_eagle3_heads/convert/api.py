"""`convert`: a checkpoint folder and its target to a GGUF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_cpp_eagle3.errors import Eagle3Error, ModelFileError

from .block import BlockSpec
from .head import HeadSpec, Overrides
from .output import temporary
from .probe import Measurement, probe_head
from .source import Source
from .target import TargetModel


@dataclass(frozen=True)
class Conversion:
    """The written file and its description. `probe` has one row per candidate, the chosen one first."""

    path: Path
    spec: HeadSpec | BlockSpec
    outtype: str
    probe: tuple[Measurement, ...] = field(default=())


def convert(
    draft: str | Path,
    target: str | Path,
    output: str | Path | None = None,
    *,
    outtype: str = "auto",
    boundaries: Sequence[int] | None = None,
    norm_output: bool | None = None,
    norm_before_residual: bool | None = None,
    rope_theta: float | None = None,
    mask_token: int | None = None,
    probe_prompts: Sequence[str] | None = None,
    probe_target: str | Path | None = None,
    progress: bool = False,
    name: str | None = None,
) -> Conversion:
    """Convert a Hugging Face EAGLE-3 head or block drafter to a GGUF that `Eagle3Llama` loads.

    Args:
        draft: folder with the head's config.json and weights.
        target: the target's GGUF or its Hugging Face folder.
        output: the file to write; without it, `<folder's name>-<outtype>.gguf` in the current folder.
        outtype: f32, f16, bf16, q8_0, q6_k, q4_k or q4_0 for the matrices; auto keeps 16-bit types and makes f32 f16.
        boundaries: hidden states that the head reads, in place of those that the rules derive from its layer ids.
        norm_output: whether the normed state is fed back, in place of the config's value.
        norm_before_residual: whether the residual starts at the normed hidden state, in place of the config's value.
        rope_theta: base of the rotation, in place of the config's value.
        mask_token: of a P-EAGLE head or a block drafter, in place of the config's: the token of positions that are not
            drafted yet.
        probe_prompts: measure what the checkpoint leaves open on the target's answers to these, and keep the best.
        probe_target: the target's GGUF for that, if `target` is a folder.
        progress: show a bar.
        name: the head's name in the file; by default the folder's name.

    Returns:
        The path and the description of the head, whose `warnings` and `doubts` should be looked at.

    Raises:
        ModelFileError: something in the files is missing, broken or not supported.
        IncompatibleDraftError: the head was not made for this target.
    """
    chosen = tuple(boundaries) if boundaries is not None else None
    overrides = Overrides(chosen, norm_output, norm_before_residual, rope_theta, mask_token)
    source = Source.read(Path(draft), Path(target), overrides, outtype, name)
    if probe_prompts is not None and isinstance(source.spec, BlockSpec):
        raise ModelFileError(f"'{draft}' is a block drafter: it leaves nothing open that a probe could settle")
    path = Path(output) if output is not None else Path(f"{source.folder}-{source.outtype}.gguf")

    measurements: tuple[Measurement, ...] = ()
    with temporary(path, *source.inputs, *([probe_target] if probe_target is not None else [])) as part:
        source.write(part, progress)
        if probe_prompts is not None and isinstance(source.spec, HeadSpec):
            gguf_target = _probe_target(source.target, probe_target)
            measurements = probe_head(part, source.spec, gguf_target, list(probe_prompts), progress)
            best = measurements[0].candidate
            how = f"measured: {measurements[0].n_accepted:.2f} tokens accepted per draft, best of {len(measurements)}"
            spec = source.spec.settled(best.boundaries, best.norm_output, best.norm_before_residual, how)
            source = replace(source, spec=spec)
            source.write(part, progress)
    return Conversion(path, source.spec, source.outtype, measurements)


def _probe_target(target: TargetModel, path: str | Path | None) -> Path:
    if path is not None:
        return Path(path)
    if not target.is_gguf:
        raise Eagle3Error(f"'{target.path}': a probe runs the target, give its GGUF with --probe-target")
    return target.path
