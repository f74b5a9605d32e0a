"""Images and sounds in a text: rows of embeddings that stand in the place of tokens.

Each row has a token, so that all code that counts and compares tokens works with images too. These tokens are negative
and come from a hash of the image: equal tokens mean the same image, encoded in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .._core import BatchPart, Target

Rows = npt.NDArray[np.single]


def media_tokens(key: bytes, n_rows: int) -> list[int]:
    """Tokens that stand for the rows of an image: any eight hold the SHA-256 of its key, 31 bits each."""
    words = np.frombuffer(hashlib.sha256(key + n_rows.to_bytes(4, "little")).digest(), dtype="<u4")
    return [-1 - int(words[i % 8] >> 1) for i in range(n_rows)]


class Media:
    """A chunk of an image or a sound that is part of a prompt. It is evaluated as a whole, or not at all."""

    def __init__(
        self,
        first: int,
        tokens: Sequence[int],
        placeholder: int,
        encode: Callable[[], Rows],
        *,
        n_pos: int | None = None,
        positions: Callable[[int], npt.NDArray[np.intc]] | None = None,
        causal: bool = True,
    ):
        """Describe a chunk.

        Args:
            first: index in the prompt of its first token.
            tokens: the tokens of its rows, see `media_tokens`.
            placeholder: token of the vocabulary that the draft sees in place of each row.
            encode: computes the rows, float32 (n, n_embd_inp), when they are needed.
            n_pos: positions that it takes; None = one each.
            positions: with M-RoPE, a function of the chunk's first position: positions of the rows, int32 (4, n).
            causal: whether a row sees only those before it.
        """
        self.first, self.tokens, self.placeholder = first, list(tokens), placeholder
        self.n_pos = len(self.tokens) if n_pos is None else n_pos
        self.causal = causal
        self._encode, self._positions = encode, positions
        self._rows: Rows | None = None

    @property
    def end(self) -> int:
        """Index in the prompt of the first token after it."""
        return self.first + len(self.tokens)

    def check_fits(self, n_batch: int, n_ubatch: int) -> None:
        """Raise ValueError if its rows see each other and are more than a pass takes."""
        n_max = min(n_batch, n_ubatch)
        if not self.causal and len(self.tokens) > n_max:
            raise ValueError(
                f"an image of {len(self.tokens)} rows that see each other has to fit into n_batch and n_ubatch, "
                f"{n_max}: load the model with n_batch and n_ubatch of {len(self.tokens)} or more"
            )

    def is_in(self, tokens: Sequence[int]) -> bool:
        """Whether a text has it in the same place."""
        return list(tokens[self.first : self.end]) == self.tokens

    def encode(self) -> None:
        """Compute the rows, unless they are computed already."""
        if self._rows is None:
            self._rows = np.ascontiguousarray(self._encode(), dtype=np.single).reshape(len(self.tokens), -1)

    def drop_rows(self) -> None:
        """Drop the rows, which were evaluated; `encode` computes them again if they are needed."""
        self._rows = None

    def positions(self, pos_0: int) -> npt.NDArray[np.intc]:
        """Four positions of each row, int32 (4, n), if the chunk begins at pos_0."""
        if self._positions is not None:
            return self._positions(pos_0)
        return np.tile(np.arange(len(self.tokens), dtype=np.intc) + pos_0, (4, 1))

    def piece(self, target: Target, seq_id: int, n_past: int, n: int, logits: str) -> BatchPart:
        """A part of a pass: the n rows after the first n_past tokens of a sequence."""
        self.encode()
        assert self._rows is not None
        offset = n_past - self.first
        pos = None
        if target.n_pos_per_row > 1:
            pos = np.ascontiguousarray(self.positions(target.position(self.first, seq_id))[:, offset : offset + n])
        return BatchPart.media(
            seq_id,
            n_past,
            [self.placeholder] * n,
            self._rows[offset : offset + n],
            pos=pos,
            offset=offset,
            n_pos=self.n_pos,
            causal=self.causal,
            logits=logits,
        )


def check_media(tokens: Sequence[int], media: Sequence[Media], n_batch: int, n_ubatch: int) -> None:
    """Raise ValueError for a prompt whose images are not at their tokens, or cannot be decoded.

    n_batch, n_ubatch: rows of a pass, and rows that are computed together.
    """
    n_rows = 0
    for m in media:
        if not m.is_in(tokens):
            raise ValueError(f"expected the tokens of an image at {m.first} to {m.end - 1} of the prompt")
        m.check_fits(n_batch, n_ubatch)
        n_rows += len(m.tokens)
    if sum(t < 0 for t in tokens) != n_rows:
        raise ValueError("expected an image for each negative token of the prompt")
