"""What a head is, for people: from its GGUF or its checkpoint folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import _core
from ..drafters import DrafterFile, kind_of
from ..errors import IncompatibleDraftError, ModelFileError
from ..pair import check_pair
from .block import describe_block, is_block
from .boundaries import IDS_KEY
from .checkpoint import Checkpoint, read_checkpoint
from .gguf_file import key_values, open_gguf
from .head import HeadSpec, describe
from .target import TargetModel, read_target_model
from .writer import PROVENANCE

_ON_OFF = {True: "on", False: "off"}
_OUTPUTS = ("output.weight", "token_embd.weight")  # the second is both, where there is no first


@dataclass(frozen=True)
class Report:
    """Facts about a head or a small model as (name, value), and whether it fits the target that it was held against."""

    path: Path
    facts: tuple[tuple[str, str], ...]
    misfit: IncompatibleDraftError | None = None

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.facts)


def inspect(path: str | Path, target: str | Path | None = None) -> Report:
    """Say what a head, or a small model that drafts by itself, is.

    Args:
        path: a GGUF head, block drafter or small model, or a checkpoint folder.
        target: the target's GGUF or Hugging Face folder, to say whether they fit.

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
    except IncompatibleDraftError as e:
        misfit, spec = e, describe(checkpoint, None)
    facts = [
        ("file", f"{path} (checkpoint, {len(checkpoint.tensors)} tensors)"),
        ("family", spec.family),
        *_boundary_facts(spec, checkpoint.config, target),
        *_flag_facts(spec),
        *_size_facts(spec),
        ("shared with target", _shared(spec.sizes.own_embd, spec.sizes.own_output or spec.tie_output)),
        ("llama.cpp", _upstream(spec.not_upstream)),
    ]
    facts += [("doubt", f"{doubt}: convert with --probe") for doubt in spec.doubts]
    facts += [("note", note) for note in spec.notes]
    facts += _fit_facts(target_path, misfit)
    return Report(path, tuple(facts), misfit)


def _inspect_block_folder(path: Path, checkpoint: Checkpoint, target: TargetModel | None) -> Report:
    if target is None:
        raise ModelFileError(f"'{path}': a block drafter's checkpoint is described for a target: say which (--target)")
    spec = describe_block(checkpoint, target)
    keys = spec.keys
    facts = [
        ("file", f"{path} (checkpoint, {len(checkpoint.tensors)} tensors)"),
        ("kind", spec.kind),
        ("boundaries", str(keys["target_layers"])),
        ("block", f"{keys['block_size']} rows"),
        ("size", f"{keys['block_count']} layer(s) of width {keys['embedding_length']}"),
        ("mask token", str(spec.mask_token)),
        ("vocabulary", _vocabulary(0 if spec.d2t is None else len(spec.d2t), keys["vocab_size"], spec.d2t is not None)),
        ("shared with target", _shared(spec.own_tables, spec.own_tables or spec.d2t is not None)),
        *(("note", note) for note in spec.notes),
        *_fit_facts(target.path, None),
    ]
    return Report(path, tuple(facts))


def _boundary_facts(spec: HeadSpec, config: dict[str, object], target: TargetModel | None) -> list[tuple[str, str]]:
    values = list(spec.boundaries.values) or "-"
    if not target and spec.boundaries.values:
        eagle = config.get("eagle_config")
        nested = eagle.get(IDS_KEY) if isinstance(eagle, dict) else None
        values = f"{values} from ids {config.get(IDS_KEY) or nested}"
    return [("boundaries", str(values)), ("  why", spec.boundaries.provenance)]


def _flag_facts(spec: HeadSpec) -> list[tuple[str, str]]:
    facts = [("norm_before_fc", _ON_OFF[spec.norm_before_fc]), ("fc_norm", _ON_OFF[spec.fc_norm])]
    for name, flag in (("norm_output", spec.norm_output), ("norm_before_residual", spec.norm_before_residual)):
        facts.append((name, f"{_ON_OFF[flag.value]} ({flag.provenance})"))
    return facts


def _size_facts(spec: HeadSpec) -> list[tuple[str, str]]:
    s, rope = spec.sizes, spec.rope
    scaling = "" if rope.kind == "none" else f", {rope.kind} scaling"
    part = "" if rope.n_rot == s.head_dim else f", {rope.n_rot} of {s.head_dim} channels"
    extras = [name for name, has in (("q/k norms", s.qk_norm), (f"{len(s.biases)} biases", bool(s.biases))) if has]
    if s.mla:
        extras.append(_mla(s.mla.kv_lora_rank, s.mla.q_lora_rank))
    if spec.mask_token is not None:
        extras.append(_parallel(spec.mask_token))
    if spec.sliding_window:
        extras.append(f"sliding window {spec.sliding_window}")
    return [
        ("hidden size", f"{s.n_embd}, target {s.n_embd_tgt}, feed-forward {s.n_ff}"),
        ("attention", f"{s.n_layer} layer(s), {s.n_head} heads of {s.head_dim}, {s.n_head_kv} for keys and values"),
        ("rotation", f"theta {rope.theta:.9g}{scaling}{part}"),
        ("extras", ", ".join(extras) or "none"),
        ("vocabulary", _vocabulary(s.n_vocab_dft, s.n_vocab, spec.d2t is not None)),
    ]


def _mla(kv_lora_rank: int, q_lora_rank: int) -> str:
    return f"multi-head latent attention (kv_lora_rank {kv_lora_rank}, q_lora_rank {q_lora_rank or '-'})"


def _parallel(mask_token: int) -> str:
    return f"P-EAGLE: all tokens in one pass (mask token {mask_token})"


def _vocabulary(n_dft: int, n_vocab: int, has_d2t: bool) -> str:
    if not has_d2t:
        return f"the target's, {n_vocab} tokens" if n_vocab else "the target's"
    return f"{n_dft} of the target's {n_vocab or '?'} tokens, mapped by d2t"


def _shared(own_embd: bool, own_output: bool) -> str:
    names = [name for name, own in (("token embedding", own_embd), ("lm_head", own_output)) if not own]
    return ", ".join(names) or "nothing"


def _upstream(lacking: tuple[str, ...]) -> str:
    return f"cannot run it: {', '.join(lacking)}" if lacking else "can run it"


def block_drafter_facts(drafter: _core.DflashFile) -> list[tuple[str, str]]:
    """What the GGUF of a block drafter says."""
    names = {tensor.name for tensor in open_gguf(Path(drafter.path)).tensors}
    order = "one after another" if drafter.is_causal else "all of each other"
    window = f", sliding window {drafter.sliding_window}" if drafter.sliding_window else ""
    return [
        ("kind", drafter.kind),
        ("boundaries", str(list(drafter.boundaries))),
        ("block", f"{drafter.block_size} rows that see {order}: {drafter.n_draft_max} tokens in one pass"),
        ("size", f"{drafter.n_layer} layer(s) of width {drafter.n_embd}{window}"),
        ("mask token", str(drafter.mask_token)),
        ("vocabulary", _vocabulary(drafter.n_vocab_dft, drafter.n_vocab, drafter.n_vocab_dft > 0)),
        ("shared with target", _shared("token_embd.weight" in names, not names.isdisjoint(_OUTPUTS))),
        ("llama.cpp", "can run it"),
    ]


def _inspect_gguf(path: Path, target_path: Path | None) -> Report:
    draft = kind_of(str(path))(str(path))
    what = f"{_core.read_arch(str(path))}, {draft.title}"
    facts = [("file", f"{path} (GGUF, {what}, {path.stat().st_size / 1e6:.1f} MB)"), *draft.facts()]
    misfit = None
    if target_path:
        misfit = _misfit(draft, target_path)
        facts += _fit_facts(target_path, misfit)
    return Report(path, tuple(facts), misfit)


def head_facts(head: _core.Head) -> list[tuple[str, str]]:
    """What the GGUF of a head says."""
    path = Path(head.path)
    reader = open_gguf(path)
    keys = {entry.key: entry.value for entry in key_values(path, reader, "eagle3.")}
    n_vocab = head.n_vocab or int(keys.get("eagle3.vocab_size", 0))
    provenance = {k.removeprefix(PROVENANCE): str(v) for k, v in keys.items() if k.startswith(PROVENANCE)}
    types: dict[str, int] = {}
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] = types.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    kinds = ", ".join(f"{kind} {n / 1e6:.1f} MB" for kind, n in sorted(types.items(), key=lambda x: -x[1]))
    facts = [
        ("dialect", head.dialect),
        ("family", provenance.get("family", "unknown: not written by llama-cpp-eagle3")),
        ("boundaries", str(list(head.boundaries)) if head.use_aux_hidden_state else "- (no fc)"),
        ("  why", provenance.get("boundaries", "as the file says")),
        ("norm_before_fc", _ON_OFF[head.norm_before_fc]),
        ("fc_norm", _ON_OFF[head.fc_norm]),
    ]
    for name in ("norm_output", "norm_before_residual"):
        why = f" ({provenance[name]})" if name in provenance else ""
        facts.append((name, _ON_OFF[getattr(head, name)] + why))
    part = "" if head.n_rot == head.n_embd_head else f", {head.n_rot} of {head.n_embd_head} channels"
    scaling = "" if head.rope_scaling == "none" else f", {head.rope_scaling} scaling"
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        scaling = ", llama3 scaling"
    return [
        *facts,
        ("hidden size", f"{head.n_embd}, target {head.n_embd_tgt}, feed-forward {head.n_ff}"),
        (
            "attention",
            f"{head.n_layer} layer(s), {head.n_head} heads of {head.n_embd_head}, {head.n_head_kv} for keys and values",
        ),
        ("rotation", f"theta {head.rope_freq_base:.9g}{scaling}{part}"),
        ("extras", ", ".join(_gguf_extras(head)) or "none"),
        ("vocabulary", _vocabulary(head.n_vocab_dft, n_vocab, head.has_d2t)),
        ("tensors", kinds),
        ("shared with target", _shared(head.has_tok_embd, head.has_output)),
        ("llama.cpp", _gguf_upstream(head)),
    ]


def _gguf_extras(head: _core.Head) -> list[str]:
    extras = [f"sliding window {head.sliding_window}"] if head.sliding_window else []
    if head.kv_lora_rank:
        extras.append(_mla(head.kv_lora_rank, head.q_lora_rank))
    if head.mask_token >= 0:
        extras.append(_parallel(head.mask_token))
    return extras


def _gguf_upstream(head: _core.Head) -> str:
    unknown = [name for name in ("fc_norm", "norm_output") if getattr(head, name)]
    if head.dialect == "upstream" and len(head.boundaries) == 3:
        return f"loads it but ignores {', '.join(unknown)}" if unknown else "can run it"
    if head.dialect == "fork":
        return "cannot run it: written for another llama.cpp (SpecDrift's)"
    return "cannot run it and says so: its architecture is eagle3-ext"


def _misfit(draft: DrafterFile, target_path: Path) -> IncompatibleDraftError | None:
    try:
        if not target_path.is_dir():
            check_pair(str(target_path), draft.path)
            return None
        target = read_target_model(target_path)
        if draft.n_embd_tgt != target.n_embd or max(draft.boundaries, default=0) > target.n_layer:
            raise IncompatibleDraftError(
                f"the draft '{draft.path}' reads hidden states of width {draft.n_embd_tgt} at "
                f"{list(draft.boundaries)}, the target '{target_path}' has {target.n_layer} layers, {target.n_embd} "
                "wide"
            )
    except IncompatibleDraftError as e:
        return e
    return None


def _fit_facts(target_path: Path | None, misfit: IncompatibleDraftError | None) -> list[tuple[str, str]]:
    if target_path is None:
        return []
    return [(f"fits {target_path.name}", "yes" if misfit is None else f"no: {misfit}")]
