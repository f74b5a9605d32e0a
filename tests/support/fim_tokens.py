"""A target whose vocabulary has tokens for fill-in-the-middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from gguf_raw import U32, RawFile, spoil

PRE, SUF, MID, REP, SEP = TOKENS = [f"<|unused_{i}|>" for i in range(5)]
NAMES = ("pre", "suf", "mid", "rep", "sep")


def with_fim_tokens(target: Any, names: tuple[str, ...] = NAMES) -> Path:
    """Copy a tiny target, and make its unused tokens those for filling in."""

    def change(file: RawFile) -> None:
        tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
        for name, token in zip(NAMES, TOKENS, strict=True):
            if name in names:
                i = tokens.index(token.encode())
                types[i] = gguf.TokenType.CONTROL
                file.set(f"tokenizer.ggml.fim_{name}_token_id", U32, i)

    return spoil(Path(target.path), change)
