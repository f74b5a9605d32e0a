"""The multimodal models of tests/support/vlm (see tools/make_vlm.py), and heads for them."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tiny import Target

FOLDER = Path(__file__).parent / "vlm"
BEFORE, AFTER = "What is this? ", " It is a"


@dataclass
class Vlm:
    """A model with transformers' results for the prompt BEFORE + media + AFTER."""

    name: str
    ids: np.ndarray
    """Tokens of the prompt, with placeholders for the media's rows."""
    first: int
    """Index of the media's first row."""
    media: np.ndarray
    states: np.ndarray
    """Hidden states (n_tokens, n_layer + 1, n_embd), boundaries 0 to n_layer."""
    logits: np.ndarray
    """Logits of the last tokens."""
    further: np.ndarray | None = None
    """Further values of the media's rows beside the input of the first layer (deepstack), side by side."""

    @property
    def path(self) -> str:
        return str(FOLDER / f"{self.name}.gguf")

    @property
    def mmproj(self) -> str:
        return str(FOLDER / f"{self.name}-mmproj.gguf")

    @property
    def n_embd(self) -> int:
        return self.states.shape[2]

    def rows(self, end: int) -> np.ndarray:
        """Return the media's rows as the encoder gives them, if the text continues at `end`."""
        rows = self.states[self.first : end, 0]
        return rows if self.further is None else np.hstack([rows, self.further])

    @property
    def file(self) -> bytes:
        """Return the picture or sound as a file."""
        return png(self.media) if self.media.ndim == 3 else wav(self.media)

    @property
    def target(self) -> Target:
        """Return the target that `write_head` needs; without weights."""
        reader = gguf.GGUFReader(self.path)
        embd = next(t for t in reader.tensors if t.name == "token_embd.weight")
        output = next((t for t in reader.tensors if t.name == "output.weight"), embd)
        weights = {
            "model.embed_tokens.weight": np.array(embd.data, dtype=np.float64),
            "lm_head.weight": np.array(output.data, dtype=np.float64),
        }
        n_vocab = weights["lm_head.weight"].shape[0]
        return Target(
            self.path, "vlm", self.states.shape[1] - 1, self.n_embd, 4, 2, 32, 96, n_vocab, 1e4, 1e-5, False, "f16",
            weights,
        )  # fmt: skip


def load_vlm(name: str) -> Vlm:
    """Open one of make_vlm's models."""
    data = np.load(FOLDER / f"{name}.npz")
    states = data["states"].astype(np.float32)
    further = data["further"].astype(np.float32) if "further" in data.files else None
    return Vlm(name, data["ids"], int(data["first"]), data["media"], states, data["logits"], further)


def png(picture: np.ndarray) -> bytes:
    """Return a PNG file of uint8 (height, width, 3)."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + row.tobytes() for row in picture)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav(sound: np.ndarray, rate: int = 16000) -> bytes:
    """Return a WAV file of float32 (n,)."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(rate)
        f.writeframes((sound * 32767).astype("<i2").tobytes())
    return buffer.getvalue()
