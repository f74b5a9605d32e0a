"""Fetch files from http addresses in requests: allowed hosts, and deadlines."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

from .limits import MediaError, short_url, too_large

TIMEOUT_S = 30.0
"""Limit for all files of a request together: names, connections, answers."""
_NAT64 = IPv6Network("64:ff9b::/96")


def fetch(url: str, n_bytes_max: int, *, allow_private: bool, deadline: float) -> bytes:
    """The bytes of an http address, without redirects and without the environment's proxies.

    Args:
        url: of http or https.
        n_bytes_max: larger files are refused.
        allow_private: also connect to addresses that are not public.
        deadline: in seconds of time.monotonic, whatever the server does.

    Raises:
        MediaError: the file may not be fetched, does not come whole or in time, or is too large.
    """
    try:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        if not address.hostname or address.username is not None:
            raise MediaError(f"{short_url(url)}: expected an address with a host, and without a user's name")
        sock = _connect(address.hostname, port, url, allow_private, deadline)
    except (OSError, ValueError) as e:
        raise e if isinstance(e, MediaError) else MediaError(f"{short_url(url)}: {e}") from None
    connection: HTTPConnection
    if address.scheme == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(address.hostname, port, context=context)
    else:
        connection = HTTPConnection(address.hostname, port)
    with _Deadline(sock, deadline) as limit:
        try:
            if address.scheme == "https":
                limit.sock = context.wrap_socket(
                    sock, server_hostname=address.hostname, do_handshake_on_connect=False
                )  # the handshake is under the deadline too
                limit.check(url)
                limit.sock.do_handshake()
            connection.sock = limit.sock
            connection.request("GET", (address.path or "/") + (f"?{address.query}" if address.query else ""))
            data = _body(connection, url, n_bytes_max)
            limit.check(url)  # without a length the body also ends when the deadline closes the socket
            return data
        except (OSError, HTTPException, ValueError) as e:
            limit.check(url)
            raise e if isinstance(e, MediaError) else MediaError(f"{short_url(url)}: {_reason(e)}") from None
        finally:
            connection.close()


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is on the internet, and not of this machine or a private network."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast


def _connect(host: str, port: int, url: str, allow_private: bool, deadline: float) -> socket.socket:
    """Connect to a checked address: a name is resolved only once, so that it cannot change meanwhile."""
    error: Exception | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the files of a request did not come within {TIMEOUT_S:g} s")
        if not (allow_private or is_public(ip_address(target[0]))):
            error = MediaError(
                f"{short_url(url)}: {target[0]} is no public address; it is not fetched without "
                "media_http='private' (serve: --media-http-private)"
            )
            continue
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left)
            sock.connect(target)
            return sock
        except OSError as e:
            sock.close()
            error = e
    raise error or OSError("the name has no address")


class _Deadline:
    """Ends a socket's call at a deadline; the socket's own timeout restarts with every byte."""

    def __init__(self, sock: socket.socket, deadline: float):
        self.sock, self.is_over = sock, False
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._end)
        self._timer.daemon = True

    def check(self, url: str) -> None:
        """Raise MediaError if the time has come."""
        if self.is_over:
            raise MediaError(f"{short_url(url)}: the files of a request did not come within {TIMEOUT_S:g} s") from None

    def _end(self) -> None:
        self.is_over = True
        with contextlib.suppress(OSError):  # closed already
            # not SSLSocket's shutdown, which drops the encryption while another thread still reads
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._timer.cancel()
        self.sock.close()


def _body(connection: HTTPConnection, url: str, n_bytes_max: int) -> bytes:
    response = connection.getresponse()
    if response.status != 200:
        raise MediaError(f"{short_url(url)}: HTTP Error {response.status}: {response.reason[:80]}")
    if (response.length or 0) > n_bytes_max:
        raise too_large(short_url(url), n_bytes_max)
    data = response.read(n_bytes_max + 1)
    if len(data) > n_bytes_max:
        raise too_large(short_url(url), n_bytes_max)
    if response.length:
        raise MediaError(f"{short_url(url)}: the answer ends {response.length} bytes too early")
    return data


def _reason(error: Exception) -> str:
    text = str(error)[:200]
    return f"no answer of HTTP: {type(error).__name__} {text}" if isinstance(error, HTTPException) else text
