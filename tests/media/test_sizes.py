"""The sizes of images and sounds are known before any of them is decoded."""

from __future__ import annotations

import struct
import zlib

import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.media import MediaError, projector, sizes
from vlm_pairs import load_vlm, png, wav

SMALL = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width, height, rows, *, first=(), depth=8, color=2, interlaced=0, parts=1):
    """Return a PNG with any sizes, with rows as they are after inflating, in some IDAT chunks."""
    data = zlib.compress(rows)
    n = -(-len(data) // parts)
    chunks = [
        *first,
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)),
        *(chunk(b"IDAT", data[i : i + n]) for i in range(0, len(data), n)),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.fixture(scope="module")
def images():
    vlm = load_vlm("gemma3")
    with Eagle3Llama(vlm.path, mmproj_path=vlm.mmproj, n_ctx=1024, n_threads=1, verbose=False) as llm:
        yield llm.projector


@pytest.fixture
def decoded(monkeypatch):
    """Return a list of the inputs that the decoder gets."""
    calls = []
    real = mtmd.mtmd_helper_bitmap_init_from_buf

    def decode(*args):
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(mtmd, "mtmd_helper_bitmap_init_from_buf", decode)
    return calls


def test_a_chunk_in_front_of_the_header_hides_nothing(images, decoded):
    apple = chunk(b"CgBI", struct.pack(">I", 0x50002006) + struct.pack(">II", 8, 8))
    with pytest.raises(MediaError, match="18000 x 18000 pixels, more than 64 Mi"):
        images.prompt(images.marker, [png_of(18000, 18000, b"", first=[apple])])
    with pytest.raises(MediaError, match="18000 x 18000 pixels, more than 64 Mi"):
        images.prompt(images.marker, [png_of(18000, 18000, b"", first=[apple] * 3)])
    with pytest.raises(MediaError, match="header is damaged"):
        images.prompt(images.marker, [png_of(9, 9, b"", first=[chunk(b"tEXt", b"a")])])
    assert not decoded


def test_all_images_of_a_request_are_summed_before_one_is_decoded(images, decoded):
    large = png_of(8192, 8190, b"")
    with pytest.raises(MediaError, match=r"1610219520 pixels together, more than 128 Mi"):
        images.prompt(images.marker * 24, [large] * 24)
    with pytest.raises(MediaError, match="media file 2 is no PNG"):
        images.prompt(images.marker * 2, [png(SMALL), b"what is this"])
    assert not decoded


@pytest.mark.parametrize("parts", [1, 7])
def test_data_that_are_more_than_the_pixels_take(images, decoded, parts):
    with pytest.raises(MediaError, match="holds more data than its pixels take"):
        images.prompt(images.marker * 2, [png(SMALL), png_of(7, 5, bytes(1 << 22), parts=parts)])
    assert not decoded


@pytest.mark.parametrize(("depth", "color", "n_bits"), [(8, 2, 24), (8, 6, 32), (16, 6, 64), (1, 0, 1), (16, 4, 32)])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 64), (1, 300), (300, 1)])
@pytest.mark.parametrize("interlaced", [0, 1])
def test_what_fits_is_taken(images, depth, color, n_bits, size, interlaced):
    """Valid images of any kind are decoded as before."""
    width, height = size
    passes = [(0, 0, 1, 1)]
    if interlaced:  # by the standard: first column and row, and steps
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for x, y, dx, dy in passes:
        n_x, n_y = -(-(width - x) // dx), -(-(height - y) // dy)
        if n_x > 0 and n_y > 0:
            rows += bytes(((n_x * n_bits + 7) // 8 + 1) * n_y)
    file = png_of(width, height, rows, depth=depth, color=color, interlaced=interlaced, parts=3)
    assert images.prompt(images.marker, [file]).media


def test_the_first_size_of_a_jpeg_counts():
    def frame(width, height):
        return b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)

    data = b"\xff\xd8" + frame(60000, 60000) + frame(8, 8) + b"\xff\xda" + bytes(20) + b"\xff\xd9"
    with pytest.raises(MediaError, match="60000 x 60000 pixels"):
        sizes.check(data)


def test_all_sounds_of_a_request_share_a_limit(monkeypatch):
    vlm = load_vlm("qwen2audio")
    sound = wav(np.zeros(16000, np.float32))
    monkeypatch.setattr(projector, "N_SAMPLES_MAX", 20000)
    with Eagle3Llama(vlm.path, mmproj_path=vlm.mmproj, n_ctx=4096, n_threads=1, verbose=False) as llm:
        sounds = llm.projector
        assert sounds.prompt(sounds.marker, [sound]).media
        with pytest.raises(MediaError, match="media file 2"):
            sounds.prompt(sounds.marker * 2, [sound, sound])


@pytest.mark.parametrize(
    ("head", "part", "tail"),
    [
        (b"\xff\xd8\xff", b"\xff\xfe\x00\x02", b"\xff\xc0\x00\x11\x08\x00\x08\x00\x08" + bytes(10)),
        (b"\xff\xd8", b"\xff", b"\xc0\x00\x11\x08\x00\x08\x00\x08" + bytes(10)),
        (b"\x89PNG\r\n\x1a\n", b"\0\0\0\0CgBI\0\0\0\0", chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))),
        (b"GIF89a\x08\x00\x08\x00\x00\x00\x00\x21\xfe", b"\x01a", b"\0\x3b"),
        (b"GIF89a\x08\x00\x08\x00\x00\x00\x00", b"\x21\xfe\0", b"\x3b"),
    ],
    ids=["JPEG", "fill", "PNG", "GIF", "GIF's blocks"],
)
def test_files_of_a_million_parts_are_not_read_to_the_end(head, part, tail, monkeypatch):
    monkeypatch.setattr(sizes, "_N_PARTS_MAX", 1000)
    if part != b"\xff":
        tail += b"\xff\xda" + bytes(20) + b"\xff\xd9"
        assert sizes.check(head + part * 500 + tail) == 64
    with pytest.raises(MediaError, match="is truncated"):
        sizes.check(head + part * 1500 + tail)
