"""Limits of images and sounds, and their errors."""

from __future__ import annotations

N_BYTES_MAX = 64 << 20
"""Size of a file."""
N_BYTES_SUM_MAX = 256 << 20
"""Size of all files of a request."""
N_PIXELS_MAX = 64 << 20
"""Pixels of an image: each takes three bytes, and more while the image is resized."""
N_PIXELS_SUM_MAX = 128 << 20
"""Pixels of all images of a request: all are decoded before the first one is encoded."""
N_SAMPLES_MAX = 64 << 20
"""Samples of all sounds of a request, as the encoder takes them: each takes four bytes."""


class MediaError(ValueError):
    """An image or a sound cannot be used."""


def short_url(url: str) -> str:
    """The beginning of a URL, as errors name it."""
    return f"'{url[:80]}{'...' if len(url) > 80 else ''}'"


def too_large(name: str, n_bytes_max: int = N_BYTES_MAX) -> MediaError:
    """The error for a file with too many bytes."""
    return MediaError(f"{name} is larger than {n_bytes_max >> 20} MiB")
