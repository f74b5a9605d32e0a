"""Describe a head for people, from its GGUF or its checkpoint folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds import DrafterFile, kind_of
from llama_cpp_eagle3.draft.kinds.fit import check_boundaries, check_generates
from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError
from llama_cpp_eagle3.model.pair import check_loadable

from .block import BlockSpec, describe_block, is_block
from .checkpoint import Checkpoint, read_checkpoint
from .facts import ON_OFF, facts_of, mla, parallel, shared, vocabulary
from .head import HeadSpec, describe
from .target import TargetModel, read_target_model


@dataclass(frozen=True)
class Report:
    """Facts about a head or a small model as (name, value), and whether it fits the given target."""

    path: Path
    facts: tuple[tuple[str, str], ...]
    misfit: IncompatibleDraftError | None = None

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.facts)


def inspect(path: str | Path, target: str | Path | None = None) -> Report:
    """Describe a head, or a small model.

    Args:
        path: a GGUF head, block drafter or small model, or a checkpoint folder.
        target: the target's GGUF or Hugging Face folder, to check whether they fit.

    Raises:
        ModelFileError: the file is broken, or no head or block drafter that we can run.
    """
    path = Path(path)
    target = Path(target) if target is not None else None
    return _inspect_folder(path, target) if path.is_dir() else _inspect_gguf(path, target)


def _inspect_folder(path: Path, target_path: Path | None) -> Report:
    checkpoint = read_checkpoint(path)
    target = read_target_model(target_path) if target_path else None
    if is_block(checkpoint.config):
        return _inspect_block_folder(path, checkpoint, target)
    misfit = None
    try:
        spec = describe(checkpoint, target)
        if target is not None:
            _check_target(target, spec)
    except IncompatibleDraftError as e:
        misfit, spec = e, describe(checkpoint, None)
    facts = [
        ("file", f"{path} (checkpoint, {len(checkpoint.tensors)} tensors)"),
        ("family", spec.family),
        ("boundaries", str(list(spec.boundaries.values) or "-")),
        ("  why", spec.boundaries.provenance),
        *_flag_facts(spec),
        *_size_facts(spec),
        ("shared with target", shared(spec.sizes.own_embd, spec.sizes.own_output or spec.tie_output)),
        ("llama.cpp", f"cannot run it: {', '.join(lacking)}" if (lacking := spec.not_upstream) else "can run it"),
    ]
    facts += [("doubt", f"{doubt}: convert with --probe") for doubt in spec.doubts]
    facts += [("warning", warning) for warning in spec.warnings]
    facts += [("note", note) for note in spec.notes]
    facts += _fit_facts(target_path, misfit)
    return Report(path, _with_target(facts, spec.boundaries.values, target_path, misfit), misfit)


def _inspect_block_folder(path: Path, checkpoint: Checkpoint, target: TargetModel | None) -> Report:
    if target is None:
        raise ModelFileError(f"'{path}': a block drafter's checkpoint is described for a target: give it with --target")
    spec = describe_block(checkpoint, target)
    misfit = None
    try:
        _check_target(target, spec)
    except IncompatibleDraftError as e:
        misfit = e
    keys = spec.keys
    facts = [
        ("file", f"{path} (checkpoint, {len(checkpoint.tensors)} tensors)"),
        ("kind", spec.kind),
        ("boundaries", str(keys["target_layers"])),
        ("block", f"{keys['block_size']} rows"),
        ("size", f"{keys['block_count']} layer(s) of width {keys['embedding_length']}"),
        ("mask token", str(spec.mask_token)),
        ("vocabulary", vocabulary(0 if spec.d2t is None else len(spec.d2t), keys["vocab_size"], spec.d2t is not None)),
        ("shared with target", shared(spec.own_embedding, spec.own_output or spec.own_embedding)),
        *(("warning", warning) for warning in spec.warnings),
        *(("note", note) for note in spec.notes),
        *_fit_facts(target.path, misfit),
    ]
    return Report(path, tuple(facts), misfit)


def _flag_facts(spec: HeadSpec) -> list[tuple[str, str]]:
    facts = [("norm_before_fc", ON_OFF[spec.norm_before_fc]), ("fc_norm", ON_OFF[spec.fc_norm])]
    for name, flag in (("norm_output", spec.norm_output), ("norm_before_residual", spec.norm_before_residual)):
        facts.append((name, f"{ON_OFF[flag.value]} ({flag.provenance})"))
    return facts


def _size_facts(spec: HeadSpec) -> list[tuple[str, str]]:
    s, rope = spec.sizes, spec.rope
    scaling = "" if rope.kind == "none" else f", {rope.kind} scaling"
    part = "" if rope.n_rot == s.head_dim else f", {rope.n_rot} of {s.head_dim} channels"
    extras = [name for name, has in (("q/k norms", s.qk_norm), (f"{len(s.biases)} biases", bool(s.biases))) if has]
    if s.mla:
        extras.append(mla(s.mla.kv_lora_rank, s.mla.q_lora_rank))
    if spec.mask_token is not None:
        extras.append(parallel(spec.mask_token))
    if spec.sliding_window:
        extras.append(f"sliding window {spec.sliding_window}")
    return [
        ("hidden size", f"{s.n_embd}, target {s.n_embd_tgt}, feed-forward {s.n_ff}"),
        ("attention", f"{s.n_layer} layer(s), {s.n_head} heads of {s.head_dim}, {s.n_head_kv} for keys and values"),
        ("rotation", f"theta {rope.theta:.9g}{scaling}{part}"),
        ("extras", ", ".join(extras) or "none"),
        ("vocabulary", vocabulary(s.n_vocab_dft, s.n_vocab, spec.d2t is not None)),
    ]


def _inspect_gguf(path: Path, target_path: Path | None) -> Report:
    draft = kind_of(str(path))(str(path))
    if target_path is None or target_path.is_dir():
        try:
            draft.check(None, True, True)
        except IncompatibleDraftError as e:  # it does not fit a target of the sizes that it names
            raise ModelFileError(str(e)) from e
    what = f"{_core.read_arch(str(path))}, {draft.title}"
    facts = [("file", f"{path} (GGUF, {what}, {path.stat().st_size / 1e6:.1f} MB)"), *facts_of(draft)]
    misfit = None
    if target_path:
        try:
            draft = _held_against(draft, target_path)
        except IncompatibleDraftError as e:
            misfit = e
        facts += _fit_facts(target_path, misfit)
        if draft.vocabulary.warning:
            facts.append(("warning", draft.vocabulary.warning))
    return Report(path, _with_target(facts, draft.boundaries, target_path, misfit), misfit)


def _held_against(draft: DrafterFile, target_path: Path) -> DrafterFile:
    """A drafter's file, checked against a target as loading does; for a folder only sizes are compared."""
    if not target_path.is_dir():
        return check_loadable(str(target_path), [draft.path]).drafts[0]
    target = read_target_model(target_path)
    if (draft.n_embd_tgt or target.n_embd) != target.n_embd or max(draft.boundaries, default=0) > target.n_layer:
        raise IncompatibleDraftError(
            f"the draft '{draft.path}' reads hidden states of width {draft.n_embd_tgt} at {list(draft.boundaries)}, "
            f"the target '{target_path}' has {target.n_layer} layers, {target.n_embd} wide"
        )
    n_vocab = draft.n_vocab
    if n_vocab and not _core.has_nearly(n_vocab, target.n_vocab):
        raise IncompatibleDraftError(
            f"the draft '{draft.path}' was made for a vocabulary of {n_vocab} tokens, the target '{target_path}' has "
            f"{target.n_vocab}"
        )
    return draft


def _check_target(target: TargetModel, spec: HeadSpec | BlockSpec) -> None:
    """Raise IncompatibleDraftError for a target that loading would refuse: it is no target, or lacks such layers."""
    if not target.is_gguf:
        return
    info = check_loadable(str(target.path)).target
    check_generates(info.path, info, info.why_no_target)
    boundaries = spec.keys["target_layers"] if isinstance(spec, BlockSpec) else spec.boundaries.values
    check_boundaries(info.path, info, f"the draft '{spec.path}'", boundaries or (info.n_layer + 1,))


def _with_target(
    facts: list[tuple[str, str]], boundaries: Sequence[int], target_path: Path | None, misfit: Exception | None
) -> tuple[tuple[str, str], ...]:
    """The facts, of which that on llama.cpp is also about the target: its graphs of few architectures publish rows."""
    if misfit is not None or not boundaries:
        return tuple(facts)
    if target_path is None or target_path.is_dir():
        why = "can run it with a target whose graph gives hidden states: --target, with a GGUF, says whether it does"
    else:
        info = _core.read_target(str(target_path))
        if _core.FeatureTap(boundaries, info.n_layer, info.n_embd, info.arch).kind == "native":
            return tuple(facts)
        why = f"cannot run it with this target: its graph of {info.arch} does not give hidden states, so it aborts"
    return tuple((name, why if name == "llama.cpp" and value.startswith("can run") else value) for name, value in facts)


def _fit_facts(target_path: Path | None, misfit: IncompatibleDraftError | None) -> list[tuple[str, str]]:
    if target_path is None:
        return []
    return [(f"fits {target_path.name}", "yes" if misfit is None else f"no: {misfit}")]
