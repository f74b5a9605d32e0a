"""A block drafter's config.json, compared with its target."""

from __future__ import annotations

import math
from typing import Any

from llama_cpp_eagle3._core import has_nearly
from llama_cpp_eagle3.errors import IncompatibleDraftError, ModelFileError

from .block_names import has_gemma_layers, with_own_names
from .checkpoint import Checkpoint
from .config import flatten, with_block_tables
from .head import Overrides
from .rope import FULL, SLIDING, Rope, read_rope
from .target import TargetModel

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_BOUNDARIES = "aux_hidden_state_layer_ids"
_IDS = "target_layer_ids"
# three names for the same: whether the first row of a block drafts
_FIRST_ROW = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")
# keys of the target's layers that a drafter's never have: the config is a copy of the target's with a few changes
_OF_TARGET = ("attn_output_gate", "linear_num_key_heads", "full_attention_interval", "vision_config", "text_config")
_GEMMA_ROPE = {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}


class BlockConfig:
    """A checkpoint and its config, with the names and defaults of its family."""

    def __init__(self, checkpoint: Checkpoint, target: TargetModel, overrides: Overrides):
        self.checkpoint, self.target, self.overrides = with_own_names(checkpoint), target, overrides
        self.path = checkpoint.path
        self.config = with_block_tables(flatten(self.path / "config.json", checkpoint.config))
        self.notes: list[str] = []
        self.warnings: list[str] = []
        names = self.checkpoint.tensors
        self.is_gemma = has_gemma_layers(names)
        is_selector = "candidate_selector.hidden_projection.weight" in names
        self.kind = "dflash2" if is_selector else "dspark" if "markov_head.markov_w1.weight" in names else "dflash"
        if self.is_gemma:
            self.config.values.setdefault("rope_parameters", _GEMMA_ROPE)

    def refuse(self, what: str, why: str = "llama.cpp's graph of block drafters has no such thing") -> ModelFileError:
        """The error for what cannot be run."""
        return ModelFileError(f"'{self.path}': a block drafter with {what}: {why}")

    @property
    def sample_from_anchor(self) -> bool:
        """Whether the first row of a block drafts.

        Raises:
            ModelFileError: the keys for it contradict each other.
        """
        config = self.config
        said = {key: config.get_bool(key) for key in _FIRST_ROW if config.has(key)}
        if len(set(said.values())) > 1:
            keys = ", ".join(f"{key} {str(value).lower()}" for key, value in said.items())
            raise ModelFileError(
                f"'{config.path}': keys {keys}: they say whether the first row of a block drafts, expected the same "
                "of all"
            )
        if said:
            return next(iter(said.values()))
        if self.kind != "dspark":
            return False
        if config.is_speculators and (n := _speculative_tokens(config.top)) is not None:
            return n == config.get_int("block_size", 16)
        # as in llama.cpp's converter: DeepSpec has no key for it, and files with boundaries have DFlash's blocks
        found = not config.is_speculators and not config.has(_BOUNDARIES)
        rows = "the first row of a block drafts" if found else "the first row of a block does not draft"
        if config.architectures != ("Qwen3DSparkModel",) and not self.is_gemma:
            self.notes.append(f"no key says whether the first row of a block drafts: {rows}")
        return found

    def n_layer(self) -> int:
        """Layers of the drafter."""
        found = self.checkpoint.layer_indices()
        n_layer = self.config.get_int("num_hidden_layers", len(found))
        if found != list(range(n_layer)):
            raise ModelFileError(f"'{self.path}': expected {n_layer} layers as config.json has it, found {found}")
        return n_layer

    def _n_layer_tgt(self, ids: Any) -> int:
        """Layers of the target by the config; Kimi K3's num_target_layers is the number of layers that are read."""
        config = self.config
        if config.has("target_num_hidden_layers"):
            return config.get_int("target_num_hidden_layers")
        n = config.get_int("num_target_layers", self.target.n_layer)
        is_count = isinstance(ids, list) and n == len(ids) and all(type(i) is int for i in ids) and max(ids) >= n
        return self.target.n_layer if is_count else n

    def boundaries(self) -> list[int]:
        """Boundaries of the target, whose width and number of layers are checked too."""
        config, target, override = self.config, self.target, self.overrides.boundaries
        eagle_ids = "eagle_" + _BOUNDARIES
        keys = [_BOUNDARIES, _IDS] if config.is_speculators or config.values.get(_BOUNDARIES) else [_IDS, eagle_ids]
        # an empty list counts as none
        key = next((key for key in keys if config.values.get(key) not in (None, [])), keys[0])
        ids = config.values.get(key)
        n_embd, n_layer = config.get_int("hidden_size"), self._n_layer_tgt(ids)
        if (n_embd, n_layer) != (target.n_embd, target.n_layer):
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter was trained for a model of {n_layer} layers, {n_embd} wide; "
                f"'{target.path}' has {target.n_layer}, {target.n_embd} wide"
            )
        if override is not None:
            key, ids = "--layer-boundaries", list(override)
        elif ids in (None, []) and key != _BOUNDARIES:
            ids = self._default_ids(n_layer)
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise ModelFileError(f"'{config.path}': key '{key}': expected a list of layers, found {ids!r}")
        found = [i + 1 for i in ids] if key == _IDS else ids
        if min(found) < 0 or len(set(found)) != len(found):
            raise ModelFileError(f"'{config.path}': key '{key}': expected different layers, found {ids}")
        if max(found) > n_layer:
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter reads layers {ids} ({key}), '{target.path}' has {n_layer}: it was "
                "trained for another model"
            )
        return found

    def _default_ids(self, n_layer: int) -> list[int]:
        """z-lab's default: one for each layer of the drafter, evenly from layer 1 to the third from the end."""
        n = self.n_layer()
        return [round(1 + i * (n_layer - 4) / (n - 1)) for i in range(n)] if n > 1 else [n_layer // 2]

    def n_vocab(self) -> int:
        """Tokens of the checkpoint, which are the target's except for a few at the end."""
        n, n_tgt = self.config.get_int("vocab_size"), self.target.n_vocab
        if not has_nearly(n, n_tgt):
            raise IncompatibleDraftError(
                f"'{self.path}': the block drafter was made for a vocabulary of {n} tokens, '{self.target.path}' has "
                f"{n_tgt}"
            )
        if n != n_tgt:
            self.warnings.append(
                f"the block drafter was made for a vocabulary of {n} tokens, the target has {n_tgt}: those that only "
                "one of both has are not drafted"
            )
        return n

    def mask_token(self, n_vocab: int) -> int:
        """The token in place of those to draft."""
        config = self.config
        token = self.overrides.mask_token
        if token is None:
            token = config.values.get("mask_token_id")
        row = self.checkpoint.mask_row
        if token is None and row is not None:
            token = row.token
        if token is None and config.has("mask_token"):
            token = self.target.find_token(str(config.values["mask_token"]))
        if token is None:
            raise ModelFileError(
                f"'{config.path}': key 'mask_token_id': expected a token, 0 to {n_vocab - 1}, and it is missing: give "
                "it with --mask-token, as the drafter was trained"
            )
        if type(token) is not int or not 0 <= token < n_vocab:
            raise ModelFileError(
                f"'{config.path}': key 'mask_token_id': expected a token, 0 to {n_vocab - 1}, found {token!r}"
            )
        if row is not None and row.token != token:
            raise ModelFileError(
                f"'{self.path}': the mask token is {token}, and mask_embedding.pt is the row of token {row.token}"
            )
        return token

    def _layer_types(self, n_layer: int) -> list[str]:
        types = self.config.values.get("layer_types")
        if isinstance(types, list) and types:
            return [str(kind) for kind in types[:n_layer]]
        if not self.config.get_bool("use_sliding_window"):
            return [FULL] * n_layer
        # as Qwen3Config fills them in
        first = self.config.get_int("max_window_layers", 28)
        return [SLIDING if i >= first else FULL for i in range(n_layer)]

    def rope(self, head_dim: int, n_layer: int) -> Rope:
        """The rotation, which is that of all layers.

        Raises:
            ModelFileError: layers of two types rotate differently.
        """
        config = self.config
        # DeepSpec's own class copies the target's config, and rotates as Qwen3 does
        is_whole = config.architectures == ("Qwen3DSparkModel",) and any(key in config.top for key in _OF_TARGET)
        theta = self.overrides.rope_theta
        found = [
            read_rope(config, head_dim, theta, layer_type=kind, has_sections=False, is_whole=is_whole)
            for kind in dict.fromkeys(self._layer_types(n_layer))
        ]
        first = found[0]
        for other in found[1:]:
            same = (first.n_rot, first.theta, first.kind, first.keys) == (
                other.n_rot, other.theta, other.kind, other.keys
            )  # fmt: skip
            if not same:
                raise self.refuse(
                    f"another rotation in layers with a window (theta {other.theta:.9g} and {first.theta:.9g})",
                    "llama.cpp's graph of block drafters has one for all layers",
                )
        if is_whole and config.values.get("partial_rotary_factor", 1.0) != 1.0:
            self.notes.append("config.json is a copy of the target's: its partial_rotary_factor is not the drafter's")
        return first

    @property
    def is_neox(self) -> bool:
        """Whether the first half of a head's channels is rotated with the second, as Hugging Face's models do."""
        key = "rope_is_neox_style" if self.config.has("rope_is_neox_style") else "is_neox_style"
        return self.config.get_bool(key, True)

    def window_keys(self, n_layer: int) -> dict[str, Any]:
        """Keys of sliding-window layers."""
        config = self.config
        all_layers, window = config.get_bool("use_swa"), config.values.get("swa_window_size")
        window = window or config.values.get("sliding_window")
        if not window or not (all_layers or config.get_bool("use_sliding_window")):
            return {}
        has_window = [all_layers or kind == SLIDING for kind in self._layer_types(n_layer)]
        if not any(has_window):
            return {}
        size = int(config.check_number("sliding_window", window, 1, 1 << 28))
        keys = {"attention.sliding_window": size, "attention.sliding_window_pattern": has_window}
        if config.is_speculators and not config.get_bool("sliding_window_non_causal"):
            if not all(has_window):
                raise self.refuse(
                    "layers whose windows end at each row, beside others that see all of a block",
                    "llama.cpp's graph of block drafters has one order for all layers",
                )
            keys["attention.causal"] = True
        return keys

    def causal_keys(self) -> dict[str, Any]:
        """Whether the rows of a block see those after them, if the config says so."""
        said = [self.config.get_bool(key) for key in ("is_causal", "causal") if self.config.has(key)]
        return {"attention.causal": said[0]} if said else {}

    def number_keys(self) -> dict[str, float]:
        """Keys of factors that a few drafters have."""
        names = {
            "output_multiplier": "logit_scale",
            "final_logit_softcapping": "final_logit_softcapping",
            "input_embedding_scale": "embedding_scale",
            "attention_value_scale": "attention.value_scale",
        }
        config = self.config
        if self.kind == "dspark" and config.get_float("final_logit_softcapping"):
            raise self.refuse(
                "a cap of logits (final_logit_softcapping) and a Markov head",
                "llama.cpp's graph adds the Markov head's part to logits without a cap",
            )
        found = {key: config.get_float(name) for name, key in names.items() if config.has(name)}
        if self.is_gemma:
            found = {"embedding_scale": math.sqrt(config.get_int("hidden_size")), "attention.scale": 1.0} | found
        return found

    def sizes(self) -> dict[str, Any]:
        """Keys of sizes; with Gemma's layers, the sizes of those without a window."""
        config = self.config
        n_head, head_dim = config.get_int("num_attention_heads"), config.get_int("head_dim")
        n_head_kv = config.get_int("num_key_value_heads", n_head)
        if self.is_gemma:
            if "layers.0.self_attn.v_proj.weight" in self.checkpoint.tensors:
                raise self.refuse("Gemma's layers, and values of their own", "llama.cpp's graph does not norm those")
            head_dim = config.get_int("global_head_dim", head_dim)
            n_head_kv = config.get_int("num_global_key_value_heads", n_head_kv)
        return {
            "context_length": config.get_int("max_position_embeddings"),
            "embedding_length": config.get_int("hidden_size"),
            "block_count": self.n_layer(),
            "feed_forward_length": config.get_int("intermediate_size"),
            "attention.head_count": n_head,
            "attention.head_count_kv": n_head_kv,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
        }

    def activation(self) -> str:
        """The activation of the feed-forward part."""
        act = str(self.config.values.get("hidden_activation") or self.config.get("hidden_act"))
        if act not in ACTIVATIONS:
            raise ModelFileError(
                f"'{self.config.path}': key 'hidden_act': expected one of {ACTIVATIONS}, found '{act}'"
            )
        return act


def _speculative_tokens(top: dict[str, Any]) -> int | None:
    """Number of tokens that speculators' config tells servers to draft."""
    table = top.get("speculators_config")
    methods = table.get("proposal_methods") if isinstance(table, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    n = first.get("speculative_tokens") if isinstance(first, dict) else None
    return n if type(n) is int else None
