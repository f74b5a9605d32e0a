"""Run a ggml-rpc server of the CPU in a child process, as a device that is not the host.

Run as a script this file is the child: rpc_server.py LIBRARIES ENDPOINT N_DEVICES.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback interface on which no program listens."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


class RpcServer:
    """A server on a free port of the loopback interface. Use it in a `with` block: the child ends with it."""

    def __init__(self, n_devices: int = 1, endpoint: str | None = None):
        import llama_cpp

        lib = Path(llama_cpp.__file__).parent / "lib"
        for _ in range(3):  # another program may take a free port before the child does
            self.endpoint = endpoint or f"{HOST}:{free_port()}"
            command = [sys.executable, __file__, str(lib), self.endpoint, str(n_devices)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            if self._wait(20.0):
                return
            self.kill()
        raise RuntimeError(f"no ggml-rpc server came up on {self.endpoint}")

    def _wait(self, timeout: float) -> bool:
        """Wait until the server accepts connections; return False if it ended instead."""
        end = time.monotonic() + timeout
        host, port = self.endpoint.split(":")
        while self.process.poll() is None and time.monotonic() < end:
            try:
                with socket.create_connection((host, int(port)), 1.0):
                    return True
            except OSError:
                time.sleep(0.02)
        return False

    def stop(self) -> None:
        """Let the server hang: connections stay open, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End the server at once, whatever it is doing."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RpcServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def serve(folder: str, endpoint: str, n_devices: int) -> None:
    """Serve in the child: return only after an error."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the tests
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for name in ("ggml-base", "ggml-cpu", "ggml-rpc"):
        ctypes.CDLL(f"{folder}/lib{name}.{suffix}", mode=ctypes.RTLD_GLOBAL)
    ggml, rpc = ctypes.CDLL(f"{folder}/libggml.{suffix}"), ctypes.CDLL(f"{folder}/libggml-rpc.{suffix}")
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    devices = (ctypes.c_void_p * n_devices)(*[ggml.ggml_backend_dev_by_type(0)] * n_devices)
    rpc.ggml_backend_rpc_start_server.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    ]
    rpc.ggml_backend_rpc_start_server(endpoint.encode(), None, 1, n_devices, devices)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
