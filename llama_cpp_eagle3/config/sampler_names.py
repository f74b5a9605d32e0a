"""llama.cpp's samplers by the names and letters of llama-server's requests and flags."""

from __future__ import annotations

_CHARS = {
    "d": "dry",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "m": "min_p",
    "t": "temperature",
    "x": "xtc",
    "i": "infill",
    "e": "penalties",
    "a": "adaptive_p",
}
_NAMES = {
    **{name.replace("_", ""): name for name in _CHARS.values()},
    "typicalp": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
}


def samplers_of(value: list[str] | str) -> list[str]:
    """llama.cpp's names of samplers that are given by llama-server's names or letters; unknown ones are left out."""
    if isinstance(value, str):
        return [_CHARS[char] for char in value if char in _CHARS]
    names = (_NAMES.get(name.lower().replace("_", "").replace("-", "")) for name in value)
    return [name for name in names if name is not None]
