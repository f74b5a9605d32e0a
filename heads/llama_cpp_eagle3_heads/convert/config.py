"""A head's config.json as one flat table, with the defaults that the trainers' config classes fill in.

speculators nests the layer's config and stores only what differs from the class defaults; SpecForge and ModelOpt nest
an `eagle_config`. The outer table wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import ModelFileError

# Defaults of transformers' LlamaConfig and Qwen3Config. None: follows from other keys.
_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
}
_QWEN3 = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,  # Qwen's configs carry a window that is off by default
}
CLASS_DEFAULTS = {"llama": _LLAMA, "qwen3": _QWEN3}


@dataclass(frozen=True)
class Config:
    """A flattened config. `top`, `nested` and `eagle` are the tables that it came from."""

    path: Path
    values: dict[str, Any]
    top: dict[str, Any]
    nested: dict[str, Any]
    eagle: dict[str, Any]
    defaults: dict[str, Any]

    @property
    def is_speculators(self) -> bool:
        """Whether this is the format of Red Hat's speculators, where layer ids are boundaries."""
        return "speculators_model_type" in self.top or bool(self.nested)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The names under `architectures`."""
        value = self.top.get("architectures")
        names = value if isinstance(value, list) else [value or ""]
        return tuple(str(name) for name in names)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, else the config class's default, else `default`."""
        value = self.values.get(key)
        if value is None:
            value = self.defaults.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether the file itself has it."""
        return self.values.get(key) is not None

    def get_int(self, key: str, default: int = 0) -> int:
        """A size; `default`, which may be 0, if there is none."""
        value = self.get(key)
        return default if value is None else int(self.check_number(key, value, 1, 1 << 28))

    def get_float(self, key: str, default: float = 0.0) -> float:
        """A number."""
        value = self.get(key)
        return default if value is None else self.check_number(key, value, -1e30, 1e30)

    def get_bool(self, key: str, default: bool = False) -> bool:
        """A switch."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"'{self.path}': key '{key}': expected true or false, found {value!r}")
        return value

    def check_number(self, key: str, value: Any, low: float, high: float) -> float:
        """The value of a key if it is a number of a sane size, else a `ModelFileError`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            kind = "a positive number" if low > 0 else "a number"
            raise ModelFileError(f"'{self.path}': key '{key}': expected {kind}, found {value!r:.80}")
        return float(value)


def flatten(path: Path, top: dict[str, Any]) -> Config:
    """Flatten the config of a draft folder: transformer_layer_config, then eagle_config, then the top level."""
    nested = _table(path, top, "transformer_layer_config")
    eagle = _table(path, top, "eagle_config")
    values: dict[str, Any] = {}
    for table in (nested, eagle, top):
        values.update({key: value for key, value in table.items() if value is not None})
    # a speculators file without model_type was written by the default class, Qwen3Config
    fallback = "qwen3" if nested else "llama"
    model_type = str(nested.get("model_type") or top.get("model_type") or fallback)
    defaults = CLASS_DEFAULTS["qwen3" if model_type.startswith("qwen3") else "llama"]
    return Config(path, values, top, nested, eagle, defaults)


def with_block_tables(config: Config) -> Config:
    """The config of a block drafter, with its own tables, and with keys without their prefixes.

    Its own tables win over the top level. The drafters' classes are Qwen3's, whatever their model_type is.
    """
    values = dict(config.values)
    for key, value in config.top.items():
        if value is not None and not isinstance(value, dict):
            values[without_prefix(key)] = value
    for name in ("dflash_config", "dspark_config"):
        values |= {key: value for key, value in _table(config.path, config.top, name).items() if value is not None}
    return Config(config.path, values, config.top, config.nested, config.eagle, CLASS_DEFAULTS["qwen3"])


def without_prefix(key: str) -> str:
    """A block drafter's key by its usual name."""
    return "mask_token_id" if key == "dspark_noise_token_id" else key.removeprefix("dspark_")


def _table(path: Path, top: dict[str, Any], key: str) -> dict[str, Any]:
    value = top.get(key) or {}
    if not isinstance(value, dict):
        raise ModelFileError(f"'{path}': key '{key}': expected a table, found {type(value).__name__}")
    return value
