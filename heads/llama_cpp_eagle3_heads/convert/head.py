"""Reads a checkpoint into a complete description of the head: sizes, norms, boundaries, and the reasons for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

from .boundaries import IDS_KEY, OUTPUTS_KEY, Boundaries, Ids, choose
from .checkpoint import Checkpoint
from .config import Config, flatten
from .families import family_of, is_modelopt, refuse_unsupported
from .keys import check_keys
from .mla import attention_scale
from .rope import FULL, SLIDING, Rope, parameters, read_rope
from .shapes import Sizes, check_shapes, read_sizes
from .target import TargetModel
from .tensors import Array, is_copy
from .vocab import read_d2t

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
}


@dataclass(frozen=True)
class Overrides:
    """Values that the user sets in place of the checkpoint's; None: the rules decide."""

    boundaries: tuple[int, ...] | None = None
    norm_output: bool | None = None
    norm_before_residual: bool | None = None
    rope_theta: float | None = None
    mask_token: int | None = None


@dataclass(frozen=True)
class Flag:
    """A switch of the head with the reason for its value. `doubtful`: only measuring can decide."""

    value: bool
    provenance: str
    doubtful: bool = False


@dataclass(frozen=True)
class HeadSpec:
    """Everything of a head's GGUF except the tensors' values."""

    path: Path
    family: str
    sizes: Sizes
    rope: Rope
    boundaries: Boundaries  # without values if use_aux_hidden_state is false
    norm_output: Flag
    norm_before_residual: Flag
    norm_before_fc: bool
    fc_norm: bool
    use_aux_hidden_state: bool
    hidden_act: str
    rms_eps: float
    logit_scale: float
    sliding_window: int
    context_length: int
    tie_output: bool  # the lm_head is the head's own embedding
    d2t: Array | None = field(repr=False)  # absolute target ids
    attn_scale: float | None  # factor of attention's scores, None = 1 / sqrt(head_dim)
    mask_token: int | None  # of P-EAGLE: for rows that the target has not computed
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    is_neox: bool = True  # rows of q and k are halves in the checkpoint; else neighbours

    @property
    def not_upstream(self) -> tuple[str, ...]:
        """What llama.cpp's own eagle3 graph lacks for this head; empty if it can run it."""
        s = self.sizes
        reasons = {
            "no fc": not self.use_aux_hidden_state,
            f"{s.n_aux} boundaries": self.use_aux_hidden_state and s.n_aux != 3,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output.value,
            "q/k norms": s.qk_norm,
            "biases": bool(s.biases),
            f"{s.n_layer} layers": s.n_layer != 1,
            "sliding window": self.sliding_window > 0,
            f"{self.hidden_act} activation": self.hidden_act != "silu",
            "logit_scale": self.logit_scale != 1.0,
            "multi-head latent attention": s.mla is not None,
            "drafting in one pass (P-EAGLE)": s.is_parallel,
        }
        return tuple(reason for reason, lacking in reasons.items() if lacking)

    @property
    def arch(self) -> str:
        """`general.architecture`: llama.cpp's own if it can run the head, else one that it refuses by name."""
        return "eagle3-ext" if self.not_upstream else "eagle3"

    @property
    def doubts(self) -> tuple[str, ...]:
        """What the checkpoint leaves open, for a warning and for --probe."""
        doubts = []
        if self.boundaries.doubtful:
            doubts.append(f"boundaries {list(self.boundaries.values)} or {list(self.boundaries.other)}")
        for name in ("norm_output", "norm_before_residual"):
            if getattr(self, name).doubtful:
                doubts.append(f"{name} on or off")
        return tuple(doubts)

    def settled(self, values: tuple[int, ...], norm_output: bool, norm_before_residual: bool, how: str) -> HeadSpec:
        """The same head, with measured values for those that the checkpoint leaves open."""
        spec = self
        if self.boundaries.other:
            spec = replace(spec, boundaries=Boundaries(values, f"{how}; the rule alone: {self.boundaries.provenance}"))
        if self.norm_output.doubtful:
            spec = replace(spec, norm_output=Flag(norm_output, how))
        if self.norm_before_residual.doubtful:
            spec = replace(spec, norm_before_residual=Flag(norm_before_residual, how))
        return spec


def describe(checkpoint: Checkpoint, target: TargetModel | None, overrides: Overrides | None = None) -> HeadSpec:
    """Read a checkpoint's config and shapes. Without a target, values that depend on it stay open."""
    overrides = overrides or Overrides()
    config = flatten(checkpoint.path / "config.json", checkpoint.config)
    refuse_unsupported(checkpoint, config)
    warnings = [*checkpoint.notes, *check_keys(config, is_block=False)]
    if checkpoint.mask_row is not None:
        warnings.append("mask_embedding is a file of block drafters: a head does not read it")
    family = family_of(checkpoint, config)
    notes: list[str] = []

    n_embd_tgt = _target_width(config, checkpoint, target)
    n_vocab = target.n_vocab if target else _vocabulary(checkpoint, config)
    d2t = read_d2t(checkpoint.tensors, n_vocab, str(checkpoint.path), notes)
    sizes = read_sizes(checkpoint, config, n_embd_tgt, n_vocab, len(d2t) if d2t is not None else None, notes)
    check_shapes(checkpoint, config, sizes)
    if target:
        sizes = _share_embedding(checkpoint, config, sizes, target, notes)

    if target and config.has("vocab_size") and config.get_int("vocab_size") != target.n_vocab:
        notes.append(
            f"the head was made for a vocabulary of {config.get_int('vocab_size')} tokens, the target has "
            f"{target.n_vocab}: make sure that it is the right target"
        )

    use_aux = "fc.weight" in checkpoint.tensors
    if use_aux and config.values.get("use_aux_hidden_state") is False:
        notes.append("use_aux_hidden_state is false but there is an fc: the fc counts")
    window = _sliding_window(config, sizes.n_layer)
    layer_type = _layer_type(config, window)
    n_rot = sizes.mla.n_rot if sizes.mla else sizes.head_dim
    rope = read_rope(config, n_rot, overrides.rope_theta, layer_type=layer_type)
    if rope.theta_is_default:
        notes.append(f"rope_theta is missing: {rope.theta:.9g}, the default of the config class (never the target's)")
    return HeadSpec(
        path=checkpoint.path,
        family=family,
        sizes=sizes,
        rope=rope,
        boundaries=_boundaries(checkpoint, config, sizes, target, overrides, use_aux),
        norm_output=_norm_output(config, family, overrides),
        norm_before_residual=_norm_before_residual(config, overrides),
        norm_before_fc="input_norm.weight" in checkpoint.tensors,
        fc_norm="fc_norm.0.weight" in checkpoint.tensors,
        use_aux_hidden_state=use_aux,
        hidden_act=_activation(config),
        rms_eps=config.get_float("rms_norm_eps"),
        logit_scale=config.get_float("logit_scale", 1.0),
        sliding_window=window,
        # it bounds training, not us: ggml computes the rotation of any position
        context_length=config.get_int("max_position_embeddings"),
        tie_output=bool(config.get("tie_word_embeddings")) and not sizes.own_output and sizes.own_embd,
        d2t=d2t,
        attn_scale=attention_scale(sizes.mla, parameters(config, layer_type), config) if sizes.mla else None,
        mask_token=_mask_token(config, sizes, overrides) if sizes.is_parallel else None,
        notes=(*notes, *rope.notes),
        warnings=tuple(warnings),
        is_neox=_is_neox(config),
    )


def _target_width(config: Config, checkpoint: Checkpoint, target: TargetModel | None) -> int:
    own = checkpoint.tensors["layers.0.post_attention_layernorm.weight"].shape[0]
    width_tgt = config.get_int("target_hidden_size", own)
    if target is None:
        return width_tgt
    fc = checkpoint.tensors.get("fc.weight")
    # a head of another width than its target has that key, or an embedding of its own
    is_sure = config.has("target_hidden_size") or "embed_tokens.weight" not in checkpoint.tensors
    is_other = is_sure and width_tgt != target.n_embd
    if is_other or (fc and fc.shape[-1] % target.n_embd):
        width = str(width_tgt) if is_other or not fc else f"{fc.shape[-1]} / n"
        raise IncompatibleDraftError(
            f"'{checkpoint.path}': the head reads hidden states of width {width}, those of '{target.path}' are "
            f"{target.n_embd} wide: it was trained for another model"
        )
    return target.n_embd


def _vocabulary(checkpoint: Checkpoint, config: Config) -> int:
    """Size of the target's vocabulary by the checkpoint; 0 if it has no such key."""
    if config.has("vocab_size"):
        return config.get_int("vocab_size")
    for name in ("t2d", "embed_tokens.weight", *(() if "d2t" in checkpoint.tensors else ("lm_head.weight",))):
        if name in checkpoint.tensors:
            return checkpoint.tensors[name].shape[0]
    return 0


def _boundaries(
    checkpoint: Checkpoint,
    config: Config,
    sizes: Sizes,
    target: TargetModel | None,
    overrides: Overrides,
    use_aux: bool,
) -> Boundaries:
    if not use_aux:
        return Boundaries((), "no fc: the one row is the target's state after its final norm")
    key, values, is_nested = _layer_ids(config)
    if values is not None and (not isinstance(values, list) or not all(type(x) is int for x in values)):
        raise ModelFileError(f"'{config.path}': key '{key}': expected a list of layers, found {values!r}")
    if target is None and values is None and overrides.boundaries is None:
        return Boundaries((), "default: 2, n/2, n - 3 of the target's n layers")
    ids = Ids(
        values=tuple(values) if values is not None else None,
        nested=is_nested,
        are_outputs=key == OUTPUTS_KEY,
        is_speculators=config.is_speculators,
        is_modelopt=is_modelopt(config),
        target_is_gpt_oss=target.is_gpt_oss if target else False,
        n_layer_tgt=target.n_layer if target else 1 << 20,
    )
    return choose(ids, sizes.n_aux, overrides.boundaries, str(checkpoint.path))


def _layer_ids(config: Config) -> tuple[str, Any, bool]:
    """The key of the layer ids, its value, and whether it is in eagle_config; an empty list is none, as for vLLM."""
    for table, is_nested in ((config.top, False), (config.eagle, True), (config.values, False)):
        for key in (IDS_KEY, IDS_KEY.removeprefix("eagle_"), OUTPUTS_KEY):
            if table.get(key) not in (None, []):
                return key, table[key], is_nested
    return IDS_KEY, None, False


def _norm_output(config: Config, family: str, overrides: Overrides) -> Flag:
    if overrides.norm_output is not None:
        return Flag(overrides.norm_output, "explicit: --norm-output")
    value = config.get_bool("norm_output")
    if not config.has("norm_output"):
        return Flag(False, "default: the key is missing")
    if value and family == "SpecForge":
        return Flag(
            True,
            "config, but SpecForge before 2026-09 trained such heads without feeding the normed state back",
            doubtful=True,
        )
    return Flag(value, "config")


def _norm_before_residual(config: Config, overrides: Overrides) -> Flag:
    if overrides.norm_before_residual is not None:
        return Flag(overrides.norm_before_residual, "explicit: --norm-before-residual")
    value = config.get_bool("norm_before_residual")
    if not config.has("norm_before_residual"):
        if config.is_speculators:
            return Flag(True, "the key is missing: true for vLLM, false for speculators' own schema", doubtful=True)
        return Flag(False, "default: the key is missing")
    if value and config.is_speculators and IDS_KEY not in config.top:
        return Flag(
            True,
            "config, but ModelOpt's converter to speculators (no layer ids) always writes true",
            doubtful=True,
        )
    return Flag(value, "config")


def _mask_token(config: Config, sizes: Sizes, overrides: Overrides) -> int:
    """Trainers and servers have three names for it; SpecForge may leave it out, as an option of its training."""
    found = overrides.mask_token
    for key in ("mask_token_id", "pard_token", "ptd_token_id"):
        if found is None and config.has(key):
            found = int(config.check_number(key, config.values[key], 0, (sizes.n_vocab or 1 << 28) - 1))
    if found is None:
        raise ModelFileError(
            f"'{config.path}': a P-EAGLE head whose mask token is not named (mask_token_id, pard_token or "
            "ptd_token_id): give it with --mask-token, as it was trained"
        )
    if found < 0 or (sizes.n_vocab and found >= sizes.n_vocab):
        raise ModelFileError(f"'{config.path}': mask token {found}: the vocabulary has {sizes.n_vocab} tokens")
    return found


def _activation(config: Config) -> str:
    name = str(config.values.get("hidden_activation") or config.get("hidden_act"))
    if name not in _ACTIVATIONS:
        raise ModelFileError(f"'{config.path}': key 'hidden_act': expected silu or a gelu, found '{name}'")
    return _ACTIVATIONS[name]


def _sliding_window(config: Config, n_layer: int) -> int:
    window = config.values.get("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or window <= 0:
        return 0
    window = int(config.check_number("sliding_window", window, 1, 1 << 28))
    types = config.values.get("layer_types")
    if isinstance(types, list) and types:
        kinds = {str(kind) for kind in types[:n_layer]}
        if len(kinds) > 1:
            raise ModelFileError(f"'{config.path}': layers with and without sliding window in one head: not supported")
        return window if kinds == {"sliding_attention"} else 0
    return window if config.get_bool("use_sliding_window") else 0


def _is_neox(config: Config) -> bool:
    """Whether the first half of a head's channels is rotated with the second, as Hugging Face's models do."""
    return config.get_bool("rope_is_neox_style" if config.has("rope_is_neox_style") else "is_neox_style", True)


def _layer_type(config: Config, window: int) -> str:
    """The type of the head's layers, as transformers calls it."""
    types = config.values.get("layer_types")
    if isinstance(types, list) and types:
        return str(types[0])
    return SLIDING if window else FULL


def _share_embedding(
    checkpoint: Checkpoint, config: Config, sizes: Sizes, target: TargetModel, notes: list[str]
) -> Sizes:
    """Leave out a token embedding that is only a copy of the target's: it can be most of the file."""
    ties_own = bool(config.get("tie_word_embeddings")) and not sizes.own_output
    if not sizes.own_embd or sizes.n_embd != target.n_embd or ties_own:
        return sizes
    if is_copy(checkpoint.tensors["embed_tokens.weight"], target.n_vocab, target.embedding_rows):
        notes.append("embed_tokens is a copy of the target's: shared")
        return replace(sizes, own_embd=False)
    return sizes
