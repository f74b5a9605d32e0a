"""What files of images and sounds say of themselves, read before llama.cpp's decoders see them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .limits import N_BYTES_MAX, N_PIXELS_MAX, MediaError, too_large


def check(data: bytes, name: str = "the file") -> None:
    """Raise MediaError for what is no PNG, JPEG, GIF, BMP, WAV, MP3 or FLAC, or no single image of a usable size."""
    if not data:
        raise MediaError(f"{name} is empty")
    if len(data) > N_BYTES_MAX:
        raise too_large(name)
    if is_sound(data):
        return
    try:
        size = _size(data, name)
    except (struct.error, IndexError):
        raise MediaError(f"{name} is truncated") from None
    if size is None:
        raise MediaError(f"{name} is no PNG, JPEG, GIF, BMP, WAV, MP3 or FLAC, or its header is damaged")
    width, height = size
    if width <= 0 or height <= 0:
        raise MediaError(f"{name} is an image of {width} x {height} pixels")
    if width * height > N_PIXELS_MAX:
        raise MediaError(f"{name} has {width} x {height} pixels, more than {N_PIXELS_MAX >> 20} Mi: make it smaller")


def is_sound(data: bytes) -> bool:
    """Whether the decoder takes it for WAV, MP3 or FLAC."""
    is_mp3 = data[:3] == b"ID3" or (data[0] == 0xFF and len(data) > 1 and data[1] & 0xE0 == 0xE0)
    is_jpeg = data[:3] == b"\xff\xd8\xff"
    return (data[:4] == b"RIFF" and data[8:12] == b"WAVE") or (is_mp3 and not is_jpeg) or data[:4] == b"fLaC"


def _size(data: bytes, name: str) -> tuple[int, int] | None:
    """Width and height; None if it is no image that the decoder knows."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        if b"acTL" in data[:1024]:
            raise _animated(name)
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg_size(data)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        if sum(1 for _ in _gif_frames(data)) > 1:
            raise _animated(name)
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    if data[:2] == b"BM":
        return _bmp_size(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        raise MediaError(f"{name} is WebP, which llama.cpp does not decode: convert it to PNG or JPEG")
    return None


def _animated(name: str) -> MediaError:
    return MediaError(f"{name} is animated: give the frame that is meant")


def _bmp_size(data: bytes) -> tuple[int, int]:
    """Of a file that is whole: the decoder takes what is missing for black."""
    first, n_header = struct.unpack("<II", data[10:18])
    if n_header == 12:
        width, height, _, n_bits = struct.unpack("<HHHH", data[18:26])
        is_plain = True
    else:
        width, height, _, n_bits, compression = struct.unpack("<iiHHI", data[18:34])
        is_plain = compression in (0, 3)
    if is_plain and width > 0 and first + (width * n_bits + 31) // 32 * 4 * abs(height) > len(data):
        raise IndexError
    return width, abs(height)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Of a file that has an end: the decoder takes what is missing for gray."""
    i, size = 2, None
    while i + 9 < len(data):
        if data[i] != 0xFF:
            return None
        marker = data[i + 1]
        if marker == 0xFF:
            i += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[i + 5 : i + 9])
            size = width, height
        if marker == 0xDA:
            if data.find(b"\xff\xd9", i) < 0:
                raise IndexError
            return size
        i += 2 + struct.unpack(">H", data[i + 2 : i + 4])[0]
    raise IndexError


def _gif_frames(data: bytes) -> Iterator[int]:
    """Where its frames begin."""
    i = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    while data[i] != 0x3B:
        if data[i] == 0x2C:
            yield i
            flags = data[i + 9]
            i += 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
        elif data[i] == 0x21:
            i += 2
        else:
            return
        while data[i]:
            i += data[i] + 1
        i += 1
