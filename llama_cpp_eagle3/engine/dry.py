"""llama.cpp's DRY sampler. Its breakers are compared with every token of the vocabulary: once, not for each text."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from typing import Any

import llama_cpp.llama_cpp as lib

_N_KEPT = 8

Key = tuple[float, float, int, int, tuple[bytes, ...]]
"""(multiplier, base, allowed length, number of tokens to look back at, breakers)."""


class DrySamplers:
    """Keeps the samplers that were made last, for copies. May be called from any thread."""

    def __init__(self) -> None:
        self._made: OrderedDict[Key, Any] = OrderedDict()
        self._lock = threading.Lock()

    def copy(self, vocab: Any, key: Key) -> Any:
        """A new sampler that has seen no token; the caller frees it. vocab: the llama_vocab, always the same."""
        with self._lock:
            made = self._made.pop(key, None)
        if made is None:
            made = _Sampler(vocab, key)
        copied = lib.llama_sampler_clone(made.pointer)
        with self._lock:
            self._made[key] = made
            while len(self._made) > _N_KEPT:
                self._made.popitem(last=False)
        return copied


class _Sampler:
    def __init__(self, vocab: Any, key: Key):
        *numbers, breakers = key
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        self.pointer = lib.llama_sampler_init_dry(vocab, *numbers, array, len(breakers))

    def __del__(self) -> None:
        if self.__dict__.get("pointer"):
            lib.llama_sampler_free(self.pointer)
