"""ggml's types by name, as llama.cpp's flags spell them."""

from __future__ import annotations

from collections.abc import Mapping

# llama_cpp has no name for the bf16 one
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
"""Types of a K/V cache: llama.cpp's attention reads no others."""

FLOAT_TYPES = (CACHE_TYPES["f32"], CACHE_TYPES["f16"], CACHE_TYPES["bf16"])
"""Types that V can have without flash attention."""

WEIGHT_TYPES = {
    "f32": 0,
    "bf16": 30,
    "q8_0": 8,
    "q6_k": 14,
    "q5_k": 13,
    "q5_1": 7,
    "q5_0": 6,
    "q4_k": 12,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
"""Types that a head's matrices can be converted to."""


def type_id(option: str, value: int | str | None, types: Mapping[str, int]) -> int | None:
    """The id of a type that is given as an id, or as a name in any case; None for None.

    Raises:
        ValueError: it is none of `types`.
    """
    found = types.get(value.lower()) if isinstance(value, str) else value
    if found is not None and found not in types.values():
        found = None
    if found is None and value is not None:
        names = ", ".join(f"{name} ({number})" for name, number in types.items())
        raise ValueError(f"{option}: expected one of {names}, found {value!r}")
    return None if found is None else int(found)


def type_name(ggml_type: int) -> str:
    """The name of one of `WEIGHT_TYPES`."""
    return next((name for name, value in WEIGHT_TYPES.items() if value == ggml_type), str(ggml_type))
