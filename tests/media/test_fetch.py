"""Allowed addresses of image files, and the time that fetching may take, with servers that send invalid answers."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import pytest

from llama_cpp_eagle3.media import MediaError, load_base64_or_url, read_media
from vlm_pairs import png
from web import answering

PNG = png(np.zeros((4, 4, 3), np.uint8))
OK = b"HTTP/1.1 200 OK\r\n"


def fetch(url, **options):
    return load_base64_or_url(url, **{"allow_http": "private", **options})


@pytest.mark.parametrize(
    "head", [OK + b"\r\n", OK + b"Content-Length: %d\r\n\r\n" % len(PNG), b"HTTP/1.0 200 fine\r\n\r\n"]
)
def test_what_comes_whole(head):
    with answering(head, PNG) as (port, _):
        assert fetch(f"http://127.0.0.1:{port}/image.png?a=b") == PNG
        assert fetch(f"http://localhost:{port}") == PNG


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "no answer of HTTP: RemoteDisconnected"),
        (b"what?\r\n\r\n", "no answer of HTTP: BadStatusLine"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "no answer of HTTP: BadStatusLine"),
        (OK + b"a: b\r\n" * 200 + b"\r\n", "no answer of HTTP: HTTPException"),
        (OK + b"a" * 70000, "no answer of HTTP: LineTooLong"),
        (OK + b"Content-Length: 1000\r\n\r\nabc", "too early|IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc", "no answer of HTTP: IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc", "no answer of HTTP"),
        (OK + b"Content-Length: 99999999999\r\n\r\n", "is larger than 64 MiB"),
        (b"HTTP/1.1 302 Found\r\nLocation: /there\r\n\r\n", "302"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
    ],
)
def test_answers_that_are_none(answer, message):
    with answering(answer) as (port, _), pytest.raises(MediaError, match=message):
        fetch(f"http://127.0.0.1:{port}/image.png")


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///image.png",
        "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/a\r\nHost: b",
        "http://127.0.0.1:1/\x00",
        "http://127.0.0.1:1/\u00e9",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://[::1/",
        "http://[1]/",
        "http://user:word@127.0.0.1/",
        "http://a\x00b/",
        f"http://{'a' * 70}.invalid/",
        "http://127.0.0.1:1/",
        "https://127.0.0.1:1/",
    ],
)
def test_addresses_that_are_none(url):
    with pytest.raises(MediaError):
        fetch(url)


@pytest.mark.parametrize(
    "pieces", [[OK + b"\r\n"] + [b"a"] * 60, [OK] + [b"a"] * 60, [OK + b"Content-Length: 60\r\n\r\n"] + [b"a"] * 60]
)
def test_a_slow_answer_ends_at_the_deadline(pieces):
    """A byte comes every 50 ms: no wait is long, but their sum is."""
    with answering(*pieces, pause=0.05) as (port, _), pytest.raises(MediaError, match="did not come within"):
        fetch(f"http://127.0.0.1:{port}/", deadline=time.monotonic() + 0.5)


def test_a_handshake_that_never_ends():
    with answering(*[b"\x16"] + [b"\x03"] * 60, pause=0.05) as (port, _), pytest.raises(MediaError):
        fetch(f"https://127.0.0.1:{port}/", deadline=time.monotonic() + 0.5)


def test_files_of_a_request_share_the_deadline():
    with answering(OK + b"\r\n", PNG) as (port, seen):
        with pytest.raises(MediaError, match="did not come within"):
            fetch(f"http://127.0.0.1:{port}/", deadline=time.monotonic() - 1)
        assert not seen


PRIVATE = [
    "127.0.0.1",
    "localhost",
    "127.1",
    "2130706433",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fec0::1]",
    "[fd00::1]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
]


@pytest.mark.parametrize("host", PRIVATE)
def test_addresses_that_are_not_public(host):
    with answering(OK + b"\r\n", PNG) as (port, seen):
        with pytest.raises(MediaError, match=r"is no public address.*media_http='private'"):
            fetch(f"http://{host}:{port}/image.png", allow_http=True)
        assert not seen


def test_a_name_is_asked_for_once(monkeypatch):
    """A name is resolved once: a later answer with a private address is never connected to."""
    asked = []
    connected = []

    def resolve(host, port, **_):
        asked.append(host)
        address = "8.8.8.8" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(_, target):
        connected.append(target)
        raise OSError("there is no network here")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(MediaError, match="there is no network here"):
        fetch("http://example.org/", allow_http=True)
    assert (asked, connected) == (["example.org"], [("8.8.8.8", 80)])


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for source, message in (
        (tmp_path / "fifo", "expected a regular file, found a FIFO"),
        (f"file://{tmp_path}/fifo", "expected a regular file, found a FIFO"),
        ("/dev/zero", "expected a regular file, found a device"),
        ("file:///dev/zero", "expected a regular file, found a device"),
        (tmp_path, "expected a regular file, found a folder"),
        ("a\0b", "is no path"),
        ("file:///a%00b", "is no path"),
        ("\udcff\ud800", "is no path|No such file"),
        (5, "expected a path, a URL or bytes of a file, found int"),
        ([1], "expected a path, a URL or bytes of a file, found list"),
        (None, "expected a path, a URL or bytes of a file, found NoneType"),
        ("data:image/png;base64,\u00e9", "is no base64"),
        ("file://[", "Invalid"),
    ):
        with pytest.raises(MediaError, match=message):
            read_media(source)
