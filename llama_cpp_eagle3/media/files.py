"""Files of images and sounds, from paths, URLs and base64."""

from __future__ import annotations

import base64
import os
import stat
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .fetch_url import TIMEOUT_S, fetch
from .limits import N_BYTES_MAX, MediaError, short_url, too_large
from .sizes import check

if TYPE_CHECKING:
    from ..config.serve_options import AllowHttp


def read_media(
    source: str | os.PathLike[str] | bytes, *, allow_http: AllowHttp = False, deadline: float | None = None
) -> bytes:
    """Bytes of an image or a sound, from a path, a URL (`data:`, `file:`, `http:`) or bytes, checked by `check`.

    deadline: when fetching ends, by time.monotonic; None = TIMEOUT_S from now.

    Raises:
        MediaError: the file does not exist, may not be fetched, or is refused by `check`.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, name = bytes(source), "the file"
    elif isinstance(source, str) and source[:5].lower() in ("data:", "file:", "http:", "https"):
        data, name = load_url(source, allow_http=allow_http, allow_files=True, deadline=deadline), short_url(source)
    elif isinstance(source, (str, os.PathLike)):
        data, name = _read_file(os.fspath(source)), f"'{os.fspath(source)}'"
    else:
        raise MediaError(f"expected a path, a URL or bytes of a file, found {type(source).__name__}")
    check(data, name)
    return data


def load_base64_or_url(source: str | bytes, *, allow_http: AllowHttp = False, deadline: float | None = None) -> bytes:
    """Bytes of a file that a request names: by a URL, except of local files, or as base64; deadline: see `read_media`.

    Raises:
        MediaError: it is neither, may not be fetched, or is too large.
    """
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str):
        raise MediaError(f"expected a URL, found {type(source).__name__}")
    return load_url(source, allow_http=allow_http, deadline=deadline) if ":" in source[:8] else decode_base64(source)


def load_url(
    url: str, *, allow_http: AllowHttp = False, allow_files: bool = False, deadline: float | None = None
) -> bytes:
    """Bytes of the file at a URL, at most N_BYTES_MAX; deadline: see `read_media`.

    Raises:
        MediaError: not allowed, not there, or too large.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return _decode_data_url(url)
    if scheme in ("http", "https"):
        if not allow_http:
            raise MediaError(
                f"{short_url(url)}: addresses are not fetched without media_http (serve: --media-http): send a data URL"
            )
        return fetch(
            url,
            N_BYTES_MAX,
            allow_private=allow_http == "private",
            deadline=time.monotonic() + TIMEOUT_S if deadline is None else deadline,
        )
    if scheme == "file" and allow_files:
        try:
            path = unquote(urlsplit(url).path)
        except ValueError as e:
            raise MediaError(f"{short_url(url)}: {e}") from None
        return _read_file(path)
    raise MediaError(f"{short_url(url)}: expected a data URL" + (" or an http address" if allow_http else ""))


def _decode_data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise MediaError("expected a data URL with base64: 'data:image/png;base64,...'")
    return decode_base64(body)


def decode_base64(text: str) -> bytes:
    """Bytes of base64, without whitespace.

    Raises:
        MediaError: it is none.
    """
    if len(text) > N_BYTES_MAX * 4 // 3 + 4:
        raise too_large("what the base64 stands for")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as e:  # binascii.Error, or a text that is not ASCII
        raise MediaError(f"the data is no base64: {e}") from None


def _read_file(path: str) -> bytes:
    path = os.path.expanduser(path)
    try:
        status = os.stat(path)  # before it is opened: opening a FIFO waits for a writer
        if not stat.S_ISREG(status.st_mode):
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "FIFO" if stat.S_ISFIFO(status.st_mode) else "device"
            raise MediaError(f"'{path}': expected a regular file, found a {kind}")
        with open(path, "rb") as f:
            data = f.read(N_BYTES_MAX + 1)
    except OSError as e:
        raise MediaError(f"'{path}': {e.strerror or e}") from None
    except ValueError as e:  # NUL, or half a surrogate
        raise e if isinstance(e, MediaError) else MediaError(f"{path!r} is no path: {e}") from None
    if len(data) > N_BYTES_MAX:
        raise too_large(f"'{path}'")
    return data
