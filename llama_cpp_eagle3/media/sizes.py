"""Checks headers of image and sound files before llama.cpp's decoders read them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from .limits import N_BYTES_MAX, N_PIXELS_MAX, N_PIXELS_SUM_MAX, MediaError, too_large

_PNG = b"\x89PNG\r\n\x1a\n"
_N_PARTS_MAX = 1 << 20
"""Most chunks, segments or blocks of a file: more would only take time."""
_N_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Channels by a PNG's color type."""


def check_files(files: Sequence[bytes]) -> None:
    """Check all files of a request before the first one is decoded.

    Raises:
        MediaError: `check` refuses one, or all together are too large.
    """
    n_pixels = sum(check(data, f"media file {i}") for i, data in enumerate(files, 1))
    if n_pixels > N_PIXELS_SUM_MAX:
        raise MediaError(
            f"the images have {n_pixels} pixels together, more than {N_PIXELS_SUM_MAX >> 20} Mi: "
            "make them smaller, or send fewer"
        )
    for i, data in enumerate(files, 1):
        if data[:8] == _PNG:
            _check_inflated(data, f"media file {i}")


def check(data: bytes, name: str = "the file") -> int:
    """Pixels of an image, by its header; 0 of a sound.

    Raises:
        MediaError: it is no PNG, JPEG, GIF, BMP, WAV, MP3 or FLAC, or no single image of a usable size.
    """
    if not data:
        raise MediaError(f"{name} is empty")
    if len(data) > N_BYTES_MAX:
        raise too_large(name)
    if is_sound(data):
        return 0
    try:
        size = _size(data, name)
    except (struct.error, IndexError):
        raise MediaError(f"{name} is truncated, or of more than {_N_PARTS_MAX} parts") from None
    if size is None:
        raise MediaError(f"{name} is no PNG, JPEG, GIF, BMP, WAV, MP3 or FLAC, or its header is damaged")
    width, height = size
    if width <= 0 or height <= 0:
        raise MediaError(f"{name} is an image of {width} x {height} pixels")
    if width * height > N_PIXELS_MAX:
        raise MediaError(f"{name} has {width} x {height} pixels, more than {N_PIXELS_MAX >> 20} Mi: make it smaller")
    return width * height


def is_sound(data: bytes) -> bool:
    """Whether the decoder takes it for WAV, MP3 or FLAC."""
    is_mp3 = data[:3] == b"ID3" or (data[0] == 0xFF and len(data) > 1 and data[1] & 0xE0 == 0xE0)
    is_jpeg = data[:3] == b"\xff\xd8\xff"
    return (data[:4] == b"RIFF" and data[8:12] == b"WAVE") or (is_mp3 and not is_jpeg) or data[:4] == b"fLaC"


def _size(data: bytes, name: str) -> tuple[int, int] | None:
    """Width and height; None if it is no image that the decoder supports."""
    if data[:8] == _PNG:
        if b"acTL" in data[:1024]:
            raise _animated(name)
        return _png_size(data)
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


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kinds of chunks, and where their data begin and end."""
    i = len(_PNG)
    for _ in range(_N_PARTS_MAX):
        if i + 8 > len(data):
            return
        n, kind = struct.unpack(">I4s", data[i : i + 8])
        yield kind, i + 8, i + 8 + n
        i += 8 + n + 4


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height. The decoder skips only Apple's CgBI chunk before the header."""
    for kind, begin, _ in _png_chunks(data):
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[begin : begin + 8])
            return width, height
        if kind != b"CgBI":
            return None
    raise IndexError


def _check_inflated(data: bytes, name: str) -> None:
    """Raise MediaError for a PNG with more data than its pixels need, since the decoder inflates all of it."""
    n_max, has_zlib_header = 0, True
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)  # the decoder ignores the checksum too
    n, n_header = 0, 2
    for kind, begin, end in _png_chunks(data):
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", data[begin : begin + 10])
            # interlaced images have up to two more rows and bytes in each of eight passes
            n_max = (width * _N_CHANNELS.get(color, 4) * depth // 8 + 16) * (height + 8)
        elif kind == b"CgBI":
            has_zlib_header = False
        elif kind == b"IEND":
            return
        elif kind == b"IDAT":
            rest = data[begin:end]
            if has_zlib_header and n_header:
                n_header, rest = n_header - len(rest[:n_header]), rest[n_header:]
            try:
                while rest and not inflater.eof:
                    n += len(inflater.decompress(rest, 1 << 20))
                    rest = inflater.unconsumed_tail
                    if n > n_max:
                        raise MediaError(f"{name} holds more data than its pixels take: it is damaged")
            except zlib.error:
                raise MediaError(f"{name} cannot be decoded: it is damaged") from None


def _bmp_size(data: bytes) -> tuple[int, int]:
    """The size of an image whose file is whole: the decoder would make missing parts black."""
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
    """The size of an image whose file has an end: the decoder would make missing parts gray."""
    i, size = 2, None
    for _ in range(_N_PARTS_MAX):
        if i + 9 >= len(data):
            break
        if data[i] != 0xFF:
            return None
        marker = data[i + 1]
        if marker == 0xFF:
            i += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[i + 5 : i + 9])
            size = size or (width, height)  # the decoder takes the first one
        if marker == 0xDA:
            if data.find(b"\xff\xd9", i) < 0:
                raise IndexError
            return size
        i += 2 + struct.unpack(">H", data[i + 2 : i + 4])[0]
    raise IndexError


def _gif_frames(data: bytes) -> Iterator[int]:
    """Where its frames begin."""
    i = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    n = 0
    while data[i] != 0x3B:
        n += 1
        if data[i] == 0x2C:
            yield i
            flags = data[i + 9]
            i += 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
        elif data[i] == 0x21:
            i += 2
        else:
            return
        while data[i]:
            i, n = i + data[i] + 1, n + 1
            _check_n_parts(n)
        _check_n_parts(n)
        i += 1


def _check_n_parts(n: int) -> None:
    if n > _N_PARTS_MAX:
        raise IndexError
