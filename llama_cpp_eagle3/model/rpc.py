"""Targets and drafts on ggml-rpc servers: reach the servers, name their devices, notice when one is gone.

llama.cpp ends the process when a server cannot be reached, speaks another version or is lost. So a server is asked
before llama.cpp connects, a relay answers in its place when it is lost (csrc/rpc_relay.h), and the relay is asked
before and after each pass, which costs no round trip.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Sequence
from typing import ClassVar

import llama_cpp

from .._core import RPC_PROTO_VERSION, Device, RpcConnection, local_accelerators, local_device, rpc_supported
from ..errors import Eagle3Error, RpcError

_TIMEOUT = 5.0  # seconds to wait for a server's answer before it is used

# the protocol's first words (ggml-rpc.cpp, transport.h)
_HELLO, _DEVICE_COUNT = 14, 15
_N_CAPS = 24  # bytes of RPC_CONN_CAPS_SIZE


def parse_servers(servers: str | Sequence[str]) -> list[str]:
    """Endpoints as `ADDRESS:PORT`, each once, from `HOST:PORT` strings or from one with commas between them.

    Raises:
        ValueError: not HOST:PORT.
        RpcError: a host has no IPv4 address, which is all that ggml-rpc supports.
    """
    endpoints: list[str] = []
    for server in servers.split(",") if isinstance(servers, str) else servers:
        host, _, port = server.strip().rpartition(":")
        if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"rpc_servers: expected HOST:PORT, such as '127.0.0.1:50052', found {server!r}")
        try:
            endpoint = f"{socket.gethostbyname(host)}:{int(port)}"
        except OSError as e:
            raise RpcError(f"rpc_servers: '{host}' has no IPv4 address: {e}") from e
        if endpoint not in endpoints:
            endpoints.append(endpoint)
    return endpoints


class RpcServers:
    """The ggml-rpc servers of one model, which may be none. Close it when the model and its draft are freed."""

    def __init__(self, servers: str | Sequence[str] = ()):
        """Connect to all of them.

        Raises:
            Eagle3Error: llama.cpp was built without ggml-rpc, or this is Windows.
            RpcError: a server cannot be reached, is busy, or speaks another version.
        """
        self._links: list[_Link] = []
        if not servers:
            return
        if not rpc_supported():
            raise Eagle3Error(
                "rpc_servers needs a llama.cpp with ggml-rpc, which this build is without. Install one: "
                'CMAKE_ARGS="-DGGML_RPC=on" pip install --force-reinstall --no-cache-dir '
                f"llama-cpp-python=={llama_cpp.__version__}"
            )
        if sys.platform == "win32":
            raise Eagle3Error("rpc_servers cannot be used on Windows, where nothing says when a server is lost")
        try:
            for endpoint in parse_servers(servers):
                self._links.append(_Link.get(endpoint))
            n_devices = len(self.devices) + len(local_accelerators())
            if n_devices > llama_cpp.llama_max_devices():
                raise Eagle3Error(
                    f"llama.cpp spreads a model over {llama_cpp.llama_max_devices()} devices at most, the servers and "
                    f"this machine have {n_devices}: name fewer rpc_servers"
                )
        except BaseException:
            self.close()
            raise

    def __bool__(self) -> bool:
        return bool(self._links)

    @property
    def devices(self) -> list[Device]:
        """All devices of all servers, in the order in which the servers were named."""
        return [device for link in self._links for device in link.connection.devices]

    def check(self) -> None:
        """Raise RpcError if a server has gone. What was on it can then be freed, but not used."""
        for link in self._links:
            if link.is_lost:
                raise RpcError(
                    f"the connection to the ggml-rpc server {link.endpoint} was lost, and what it held with it: "
                    "close this model, and load it again when the server is back"
                )

    def close(self) -> None:
        """Close the connections, after the model and its draft were freed."""
        while self._links:
            self._links.pop().release()


def find_device(name: str, servers: RpcServers, option: str) -> Device:
    """A device by ggml's name for it (CPU, CUDA0, RPC0), or by its server's endpoint (the server's first one).

    Raises:
        ValueError: there is no such device; the message lists those that there are.
    """
    remote = servers.devices
    by_name = {d.name: d for d in remote} | {d.description: d for d in reversed(remote)}
    if ":" in name and by_name:
        name = ",".join(parse_servers(name))
    device = by_name.get(name) or local_device(name)
    if device is None:
        known = ["CPU", *(d.name for d in local_accelerators()), *by_name]
        raise ValueError(f"{option}: there is no device {name!r}, there are {', '.join(known)}")
    return device


class _Link:
    """The one connection of this process to a server, shared by all that use it."""

    _all: ClassVar[dict[str, _Link]] = {}
    _all_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, endpoint: str):
        self.endpoint = endpoint
        before = _sockets_to(endpoint)
        if not before:  # else other code has connected before, and the server would not answer a second time
            ask(endpoint)
        self.connection = RpcConnection(endpoint)
        after = _sockets_to(endpoint)
        try:
            self.connection.relay(([fd for fd in after if fd not in before] or after)[0])
        except Eagle3Error as e:
            self.connection.close()
            raise RpcError(f"the ggml-rpc server {endpoint} cannot be used: {e}") from e
        self.n_users = 0

    @classmethod
    def get(cls, endpoint: str) -> _Link:
        """The link to a server, made if there is none."""
        with cls._all_lock:
            link = cls._all.get(endpoint)
            if link is not None and link.is_lost and (link.n_users > 0 or link.connection.is_held):
                raise RpcError(
                    f"the connection to the ggml-rpc server {endpoint} was lost: close the models that used it first"
                )
            if link is None or not link.connection.is_held:
                link = cls._all[endpoint] = cls(endpoint)
            elif link.n_users == 0:  # others hold it
                link.connection.open()
            link.n_users += 1
            return link

    @property
    def is_lost(self) -> bool:
        """Whether the server has gone."""
        return self.connection.is_lost

    def release(self) -> None:
        """Drop one user. The last one closes the connection, if nothing else in the process holds it."""
        with self._all_lock:
            self.n_users -= 1
            if self.n_users == 0:
                self.connection.close()
            elif not self.is_lost:
                self.connection.drop_graphs()


def ask(endpoint: str, timeout: float = _TIMEOUT) -> int:
    """Greet a server as llama.cpp would, and return how many devices it has.

    Raises:
        RpcError: it cannot be reached, does not answer in time, or speaks another version.
    """
    host, _, port = endpoint.partition(":")
    advice = "Run the rpc-server of the llama.cpp that is in this llama-cpp-python"
    try:
        with socket.create_connection((host, int(port)), timeout) as connection:
            connection.sendall(struct.pack("<BQ", _HELLO, _N_CAPS) + bytes(_N_CAPS))
            size, major, minor = struct.unpack("<QBB2x", _receive(connection, 12))
            if size != 4 + _N_CAPS or major != RPC_PROTO_VERSION[0] or minor > RPC_PROTO_VERSION[1]:
                found = f", but {major}.{minor}" if size == 4 + _N_CAPS else ""
                raise RpcError(
                    f"the server {endpoint} does not speak version {'.'.join(map(str, RPC_PROTO_VERSION))} of the "
                    f"ggml-rpc protocol{found}. {advice}"
                )
            _receive(connection, _N_CAPS)
            connection.sendall(struct.pack("<BQ", _DEVICE_COUNT, 0))
            _, n_devices = struct.unpack("<QI", _receive(connection, 12))
    except TimeoutError as e:
        raise RpcError(
            f"the ggml-rpc server {endpoint} did not answer within {timeout:g} seconds. A server has one client at a "
            "time: is another one using it?"
        ) from e
    except (ConnectionResetError, BrokenPipeError, EOFError) as e:
        raise RpcError(
            f"the server {endpoint} closed the connection: it is no ggml-rpc server, or one of another version. "
            f"{advice}"
        ) from e
    except OSError as e:
        if isinstance(e, RpcError):
            raise
        raise RpcError(f"the ggml-rpc server {endpoint} cannot be reached: {e}. Is it running there?") from e
    return int(n_devices)


def _receive(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = connection.recv(n - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _sockets_to(endpoint: str) -> list[int]:
    """Our open sockets whose other end is a server: llama.cpp does not expose its own."""
    host, _, port = endpoint.partition(":")
    found = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            fd = int(name)
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as twin:
                    if twin.getpeername() == (host, int(port)):
                        found.append(fd)
    return found
