"""Sounds as samples, from files whose headers may be wrong."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
from llama_cpp import mtmd_cpp as mtmd

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import decode_sound
from llama_cpp_eagle3.media import MediaError, handlers
from vlm_pairs import load_vlm, wav

RATE, N_MAX = 16000, 1 << 20


def pcm(rate: int, n_channels: int, n_bits: int, data: bytes, tag: int = 1, align: int | None = None) -> bytes:
    align = n_channels * n_bits // 8 if align is None else align
    header = struct.pack("<HHIIHH", tag, n_channels, rate, rate * align, align, n_bits)
    chunks = b"fmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def flac(n_samples: int) -> bytes:
    info = (
        struct.pack(">HH", 4096, 4096) + bytes(6) + (RATE << 44 | 15 << 36 | n_samples).to_bytes(8, "big") + bytes(16)
    )
    return b"fLaC\x80" + len(info).to_bytes(3, "big") + info


def mp3(n_claimed: int, n_frames: int = 8) -> bytes:
    """Return frames of silence, 1,152 samples each, after one that claims their number."""
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    first = frame[:36] + b"Xing" + struct.pack(">II", 1, n_claimed) + frame[48:]
    return first + frame * n_frames


@pytest.fixture(scope="module")
def llm():
    vlm = load_vlm("qwen2audio")
    with Eagle3Llama(vlm.path, mmproj_path=vlm.mmproj, n_ctx=1024, n_threads=1, verbose=False) as llm:
        yield llm


@pytest.mark.parametrize(
    ("rate", "n_channels", "n_bits"), [(16000, 1, 16), (16000, 2, 16), (44100, 2, 16), (8000, 1, 8), (48000, 1, 24)]
)
def test_samples_are_libmtmds(llm, rng, rate, n_channels, n_bits):
    file = pcm(rate, n_channels, n_bits, rng.bytes(rate // 10 * n_channels * n_bits // 8))
    got = decode_sound(file, RATE, N_MAX)
    buffer = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
    bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(llm.projector._context(), buffer, len(file), False)
    try:
        n = mtmd.mtmd_bitmap_get_n_bytes(bitmap) // 4
        data = ctypes.cast(mtmd.mtmd_bitmap_get_data(bitmap), ctypes.POINTER(ctypes.c_float))
        want = np.ctypeslib.as_array(data, shape=(n,)).copy()
    finally:
        mtmd.mtmd_bitmap_free(bitmap)
    assert abs(len(got) - n) <= (rate != RATE)
    np.testing.assert_array_equal(got[: n - 1], want[: len(got)][: n - 1])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (flac((1 << 36) - 1), "has no samples"),
        (pcm(1, 1, 16, bytes(400)), "has more than"),
        (pcm(8000, 1, 4, bytes(5), tag=2, align=1), "no samples|cannot be decoded"),
        (pcm(0, 1, 16, bytes(64)), "cannot be decoded"),
        (pcm(16000, 0, 16, bytes(64)), "cannot be decoded"),
        (wav(np.zeros(1, np.float32)), "has no samples"),
        (b"ID3" + bytes(500), "cannot be decoded"),
    ],
)
def test_what_is_no_sound(file, message):
    with pytest.raises(ValueError, match=message):
        decode_sound(file, RATE, N_MAX)


def test_what_a_header_claims_is_not_believed():
    assert 0 < len(decode_sound(mp3(0xFFFFFFFF), RATE, N_MAX)) < 9 * 1152
    whole = wav(np.zeros(1000, np.float32))
    i = whole.index(b"data") + 4
    assert len(decode_sound(whole[:i] + b"\xf0\xff\xff\xff" + whole[i + 4 :], RATE, N_MAX)) == 1000


def test_handlers_of_llama_cpp(llm):
    module = handlers._Module(llm.projector.path)
    file = flac((1 << 36) - 1)
    buffer = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
    with pytest.raises(MediaError, match="the file has no samples"):
        module.mtmd_helper_bitmap_init_from_buf(llm.projector._context(), buffer, len(file), False)


def test_in_a_prompt(llm):
    with pytest.raises(MediaError, match="media file 1 has no samples"):
        llm.projector.prompt(llm.projector.marker, [flac((1 << 36) - 1)])
    (media,) = llm.projector.prompt(llm.projector.marker, [pcm(44100, 2, 16, bytes(4410 * 4))]).media
    media.encode()
    assert len(media.tokens) == 750
