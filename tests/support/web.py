"""HTTP servers that send invalid answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


@contextlib.contextmanager
def answering(*pieces, pause=0.0):
    """Answer any request with these pieces, which may be iterators; yield the server's port and its clients."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    seen.append(connection)
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        for piece in pieces:
                            for data in [piece] if isinstance(piece, bytes) else piece:
                                connection.sendall(data)
                                time.sleep(pause)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)
