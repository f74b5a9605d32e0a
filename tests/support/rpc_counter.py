"""Stand between llama.cpp and a ggml-rpc server: count commands, and change answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter

from rpc_server import HOST

# vendor/llama.cpp/ggml/src/ggml-rpc/ggml-rpc.cpp: enum rpc_cmd
_COMMANDS = {0: "alloc", 6: "set", 8: "get", 10: "compute", 16: "recompute"}
ALLOC, ALIGNMENT, MAX_SIZE, BASE, SET, MEMORY = 0, 1, 2, 3, 6, 11


class RpcCounter:
    """Passes one connection at a time on to a server. `n` counts its commands: alloc, set, get, compute, recompute,
    other; and the bytes of the answers."""

    def __init__(self, endpoint: str):
        host, port = endpoint.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server((HOST, 0))
        self.endpoint = f"{HOST}:{self._listener.getsockname()[1]}"
        self.n: Counter[str] = Counter()
        self.lie = ""
        """The fault of the next answer: its length is "short" or "long", or the connection is "closed"."""
        self.n_max: dict[int, int] = {}
        """Command -> number of times that it is passed on before the connection is closed."""
        self.n_buffers_max: int | None = None
        """Number of buffers that the server grants."""
        self.says: dict[int, bytes] = {}
        """Command -> the new beginning of the server's answer to it."""
        self._said = b""
        self._n_buffers = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._server)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._n_buffers = 0
            n_of: Counter[int] = Counter()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            with client.makefile("rb") as requests:
                while len(head := requests.read(9)) == 9:
                    command, size = struct.unpack("<BQ", head)
                    body = requests.read(size)
                    self.n[_COMMANDS.get(command, "other")] += 1
                    n_of[command] += 1
                    if n_of[command] > self.n_max.get(command, n_of[command]):
                        client.shutdown(socket.SHUT_RDWR)
                        break
                    if command == ALLOC and self._is_full():
                        body = body[:4] + struct.pack("<Q", 1 << 60)  # the server answers that it does not have it
                    self._said = self.says.get(command, b"")
                    with contextlib.suppress(OSError):  # the counter was stopped
                        server.sendall(head + body)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _is_full(self) -> bool:
        self._n_buffers += 1
        return self.n_buffers_max is not None and self._n_buffers > self.n_buffers_max

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with server, client, server.makefile("rb") as answers, contextlib.suppress(OSError):  # the counter was stopped
            while len(head := answers.read(8)) == 8:
                (size,) = struct.unpack("<Q", head)
                data = answers.read(size)
                data = self._said + data[len(self._said) :]
                self.n["bytes"] += len(head) + len(data)
                lie, self.lie = self.lie, ""
                if lie == "closed":
                    client.sendall(head + data[: size // 2])
                    client.shutdown(socket.SHUT_RDWR)
                    return
                size += {"": 0, "short": -1, "long": 1}[lie]
                client.sendall(struct.pack("<Q", size) + data)
            client.shutdown(socket.SHUT_RDWR)  # the server has closed it; `_run` still reads from it
