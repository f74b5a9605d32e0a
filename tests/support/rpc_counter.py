"""Stand between llama.cpp and a ggml-rpc server and count what is said."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter

from rpc_server import HOST

# vendor/llama.cpp/ggml/src/ggml-rpc/ggml-rpc.cpp: enum rpc_cmd
_COMMANDS = {6: "set", 8: "get", 10: "compute", 16: "recompute"}


class RpcCounter:
    """Passes one connection at a time on to a server. `n` counts its commands: set, get, compute, recompute, other;
    and the bytes of the answers."""

    def __init__(self, endpoint: str):
        host, port = endpoint.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server((HOST, 0))
        self.endpoint = f"{HOST}:{self._listener.getsockname()[1]}"
        self.n: Counter[str] = Counter()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._server)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            with client.makefile("rb") as requests:
                while len(head := requests.read(9)) == 9:
                    command, size = struct.unpack("<BQ", head)
                    self.n[_COMMANDS.get(command, "other")] += 1
                    with contextlib.suppress(OSError):  # it was stopped
                        server.sendall(head + requests.read(size))
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with server, client, contextlib.suppress(OSError):  # it was stopped
            while data := server.recv(1 << 16):
                self.n["bytes"] += len(data)
                client.sendall(data)
