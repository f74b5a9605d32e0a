"""Rotary embedding: turns the forms that configs have into the keys and factors of a GGUF."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gguf
import numpy as np

from llama_cpp_eagle3.errors import ModelFileError

from .config import Config
from .tensors import Array

STILL = 1e30
"""A divisor so large that a frequency becomes 0."""


@dataclass(frozen=True)
class Rope:
    """How the first `n_rot` channels of a head are rotated. `keys` go under `rope.scaling.` into the file."""

    n_rot: int
    theta: float
    theta_is_default: bool
    kind: str = "none"  # none, linear, yarn, llama3, proportional
    keys: dict[str, Any] = field(default_factory=dict)
    freqs: Array | None = None  # llama3, proportional: what each frequency is divided by
    sections: tuple[int, ...] = ()  # mrope: pairs of channels by each position
    interleaved: bool = False  # mrope: they take turns
    notes: tuple[str, ...] = ()


FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers, as transformers calls them."""


def read_rope(
    config: Config,
    head_dim: int,
    theta: float | None = None,
    *,
    layer_type: str = FULL,
    has_sections: bool = True,
    is_whole: bool = False,
) -> Rope:
    """Read rope_theta, rope_scaling and rope_parameters (transformers 5), which may be split by layer type.

    layer_type: of the drafter's layers, whose set counts. has_sections: whether it has positions for M-RoPE's sections.
    is_whole: all channels are rotated, whatever the config says.
    """
    scaling = parameters(config, layer_type)
    given = _first(theta, scaling.get("rope_theta"), config.values.get("rope_theta"))
    base = _positive(config, "rope_theta", _first(given, config.defaults["rope_theta"]))
    share = _first(scaling.get("partial_rotary_factor"), config.values.get("partial_rotary_factor"), 1.0)
    if is_whole:
        share = 1.0
    n_rot = int(head_dim * _positive(config, "partial_rotary_factor", share))
    if n_rot <= 0 or n_rot > head_dim or n_rot % 2:
        raise ModelFileError(f"'{config.path}': partial_rotary_factor {share} of head_dim {head_dim} cannot be rotated")

    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if "mrope_section" in scaling:
        kind = "default" if kind == "mrope" else kind
    if kind == "proportional":
        return Rope(head_dim, base, not given, kind, freqs=_proportional_divisors(config, scaling, head_dim, n_rot))
    rope = partial(
        Rope,
        n_rot,
        base,
        not given,
        sections=_sections(config, scaling, n_rot) if has_sections else (),
        interleaved=bool(scaling.get("mrope_interleaved")),
    )
    if kind in ("default", "none"):
        return rope()
    if kind not in ("linear", "yarn", "llama3"):
        raise ModelFileError(
            f"'{config.path}': rope_type '{kind}' is not supported; known: linear, yarn, llama3, proportional, mrope"
        )
    factor = _number(config, scaling, "factor")
    if kind == "linear":
        return rope(kind, {"factor": factor})
    trained = config.get("max_position_embeddings")
    n_ctx = int(_number(config, scaling, "original_max_position_embeddings", trained, 1, 1 << 31))
    if kind == "llama3":
        low, high = (_number(config, scaling, f"{x}_freq_factor") for x in ("low", "high"))
        if low >= high:
            raise ModelFileError(f"'{config.path}': llama3 scaling: low_freq_factor {low} is not below {high}")
        return rope(kind, {}, llama3_divisors(n_rot, base, factor, n_ctx, low, high))
    keys: dict[str, Any] = {"factor": factor, "original_context_length": n_ctx}
    for beta in ("beta_fast", "beta_slow"):
        if scaling.get(beta) is not None:
            keys[f"yarn_{beta}"] = _number(config, scaling, beta)
    attn_factor = _yarn_attn_factor(config, scaling, factor)
    if not math.isclose(attn_factor, 1.0, rel_tol=1e-6):
        keys["attn_factor"] = attn_factor
    notes: tuple[str, ...] = ()
    if scaling.get("truncate") is False:
        notes = ("yarn without truncation: ggml rounds the ramp's ends to whole channels, as with truncation",)
    return rope(kind, keys, notes=notes)


def _sections(config: Config, scaling: dict[str, Any], n_rot: int) -> tuple[int, ...]:
    """mrope_section: how many pairs of channels each position rotates; frequencies do not depend on it."""
    sections = scaling.get("mrope_section")
    if sections is None:
        return ()
    is_list = isinstance(sections, list) and len(sections) in (3, 4) and all(type(n) is int for n in sections)
    if not is_list or min(sections) < 0 or sum(sections) != n_rot // 2:
        raise ModelFileError(
            f"'{config.path}': key 'mrope_section': expected three numbers with a sum of {n_rot // 2}, half of the "
            f"channels that are rotated, found {sections!r}"
        )
    return tuple(sections)


def _proportional_divisors(config: Config, scaling: dict[str, Any], head_dim: int, n_rot: int) -> Array:
    """Gemma 4's divisors: frequencies of all channels, of which those beyond the share are not rotated."""
    factor = _number(config, scaling, "factor", 1.0)
    return np.array([factor] * (n_rot // 2) + [STILL] * (head_dim // 2 - n_rot // 2), np.float32)


def parameters(config: Config, layer_type: str = FULL) -> dict[str, Any]:
    """Both tables as one. If there is a set for each type of layer (transformers 5), the one of this type."""
    found: dict[str, Any] = {}
    for key in ("rope_parameters", "rope_scaling"):
        table = config.values.get(key) or {}
        if not isinstance(table, dict):
            raise ModelFileError(f"'{config.path}': key '{key}': expected a table, found {type(table).__name__}")
        found |= _own_set(config, key, table, layer_type)
    local = config.values.get("rope_local_base_freq")  # Gemma 3's, of layers with a window
    if local is not None and layer_type == SLIDING and "rope_theta" not in found:
        return {"rope_theta": local}
    return found


def _own_set(config: Config, key: str, table: dict[str, Any], layer_type: str) -> dict[str, Any]:
    sets = {name: x for name, x in table.items() if name.endswith("_attention") and (x is None or isinstance(x, dict))}
    if not sets:
        return table
    # with one set alone there is nothing to choose
    name = layer_type if layer_type in sets or len(sets) > 1 else next(iter(sets))
    if name not in sets:
        raise ModelFileError(
            f"'{config.path}': key '{key}': expected a set for '{layer_type}', the type of the drafter's layers, found "
            f"{', '.join(sorted(sets))}"
        )
    return {k: x for k, x in table.items() if k not in sets} | (sets[name] or {})


def _number(
    config: Config, scaling: dict[str, Any], key: str, default: Any = None, low: float = 1e-6, high: float = 1e12
) -> float:
    value = scaling.get(key)
    return config.check_number(key, default if value is None else value, low, high)


def _first(*values: Any) -> Any:
    """The first value that a file has: a null is none, and 0 is one, which is refused."""
    return next((value for value in values if value is not None), None)


def _positive(config: Config, key: str, value: Any) -> float:
    return config.check_number(key, value, 1e-6, 1e12)


def _yarn_attn_factor(config: Config, scaling: dict[str, Any], factor: float) -> float:
    """The factor besides the paper's default, 1 + 0.1 ln(factor), by which ggml multiplies itself."""

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    wanted = mscale(1.0)
    if scaling.get("attention_factor") is not None:
        wanted = _number(config, scaling, "attention_factor")
    elif scaling.get("mscale") and scaling.get("mscale_all_dim"):
        wanted = mscale(_number(config, scaling, "mscale")) / mscale(_number(config, scaling, "mscale_all_dim"))
    return wanted / mscale(1.0)


def llama3_divisors(n_rot: int, theta: float, factor: float, n_ctx: int, low: float, high: float) -> Array:
    """Divisors of the frequencies: 1 for short waves, `factor` for long ones, a blend between."""
    n_turns = n_ctx * theta ** (-np.arange(0, n_rot, 2) / n_rot) / (2.0 * math.pi)
    share = np.clip((n_turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (share + (1.0 - share) / factor)).astype(np.float32)


def add_rope_keys(writer: gguf.GGUFWriter, arch: str, rope: Rope) -> None:
    """Add the keys of a rotation, except its sections."""
    writer.add_uint32(f"{arch}.rope.dimension_count", rope.n_rot)
    writer.add_float32(f"{arch}.rope.freq_base", rope.theta)
    if rope.kind in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", rope.kind)
        for key, scale in rope.keys.items():
            add = writer.add_uint32 if isinstance(scale, int) else writer.add_float32
            add(f"{arch}.rope.scaling.{key}", scale)
