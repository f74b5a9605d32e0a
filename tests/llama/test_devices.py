"""Devices of several kinds under one model, and devices that report wrong numbers."""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import rpc_counter
from llama_cpp_eagle3 import Eagle3Error, RpcError, _core
from llama_cpp_eagle3.model import rpc
from loading import load, load_plain, take
from rpc_counter import RpcCounter
from rpc_server import RpcServer

pytestmark = [
    pytest.mark.rpc,
    pytest.mark.skipif(not _core.rpc_supported(), reason="llama.cpp is built without ggml-rpc"),
]

PROMPT = [1, 2, 3]
LARGE = struct.pack("<2Q", 1 << 50, 1 << 50)


@pytest.fixture(scope="module")
def expected(tiny_target: Any) -> list[int]:
    """Return plain llama_cpp's tokens on this machine."""
    with closing(load_plain(tiny_target)) as llm:
        return take(llm, PROMPT, 40)


@pytest.fixture
def counter(rpc_server: RpcServer) -> RpcCounter:
    """Return a device whose answers can be changed."""
    return RpcCounter(rpc_server.endpoint)


def n_passes(counter: RpcCounter) -> int:
    return counter.n["compute"] + counter.n["recompute"]


@pytest.mark.parametrize("n_gpu_layers", [2, -1], ids=["the CPU besides", "all layers"])
@pytest.mark.parametrize("draft", ["chain", "tree", "auto"])
def test_a_target_on_two_devices_and_a_drafter_on_a_third(
    tiny_target: Any, tiny_head: Any, expected: list[int], draft: str, n_gpu_layers: int
) -> None:
    """One of the two devices has another alignment, and small buffers."""
    with RpcServer() as first, RpcServer() as second, RpcServer() as third:
        devices = [RpcCounter(server.endpoint) for server in (first, second, third)]
        devices[0].says[rpc_counter.ALIGNMENT] = struct.pack("<Q", 64)
        devices[0].says[rpc_counter.MAX_SIZE] = struct.pack("<Q", 1 << 16)
        options: dict[str, Any] = {
            "rpc_servers": [device.endpoint for device in devices],
            "draft_device": devices[2].endpoint,
            "tensor_split": [1.0, 1.0, 0.0],
            "n_gpu_layers": n_gpu_layers,
            "draft": draft,
        }
        with closing(load(tiny_target, tiny_head, **options)) as llm:
            assert llm.drafters[0].device.startswith("RPC")
            for device in devices:
                device.n.clear()
            assert take(llm, PROMPT, 40) == expected
            assert llm.stats.drafted > 0 or draft == "auto"
        assert all(n_passes(device) > 0 for device in devices[:2])
        assert n_passes(devices[2]) > 0 or draft == "auto"


def test_a_device_that_reports_more_memory_than_it_has(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, counter: RpcCounter, expected: list[int]
) -> None:
    """llama.cpp divides layers by the reported memory: nearly all go to that device."""
    counter.says[rpc_counter.MEMORY] = LARGE
    counter.n_buffers_max = 0
    with RpcServer() as other:
        servers = [counter.endpoint, other.endpoint]
        for device in servers:
            with pytest.raises(ValueError, match=r"unable to allocate RPC\d+\[.*\] buffer"):
                load(tiny_target, tiny_head, rpc_servers=servers, draft_device=device)
        counter.n_buffers_max = None
        with closing(load(tiny_target, tiny_head, rpc_servers=servers, draft_device=counter.endpoint)) as llm:
            assert take(llm, PROMPT, 40) == expected


@pytest.mark.parametrize("memory", [(0, 0), (1 << 30, 0), (2**64 - 1, 2**64 - 1)])
def test_a_device_that_does_not_know_its_memory(
    tiny_target: Any, tiny_head: Any, counter: RpcCounter, expected: list[int], memory: tuple[int, int]
) -> None:
    counter.says[rpc_counter.MEMORY] = struct.pack("<2Q", *memory)
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        assert take(llm, PROMPT, 40) == expected


def test_devices_without_free_memory(
    tiny_target: Any, tiny_head: Any, counter: RpcCounter, expected: list[int]
) -> None:
    """llama.cpp would divide layers by shares that are no numbers; with given shares it does not ask for the memory."""
    counter.says[rpc_counter.MEMORY] = struct.pack("<2Q", 0, 3 << 29)
    options: dict[str, Any] = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    with pytest.raises(Eagle3Error, match=r"found none on RPC\d+ \(of 1\.5 GiB\)"):
        load(tiny_target, tiny_head, **options)
    for more in ({"n_gpu_layers": 0}, {"tensor_split": [1.0]}):
        with closing(load(tiny_target, tiny_head, **options, **more)) as llm:
            assert take(llm, PROMPT, 40) == expected


@pytest.mark.parametrize(
    ("command", "values", "message"),
    [
        (rpc_counter.ALIGNMENT, (0,), "its device 0 is aligned to 0 bytes: expected a power of 2"),
        (rpc_counter.ALIGNMENT, (3,), "its device 0 is aligned to 3 bytes"),
        (rpc_counter.ALIGNMENT, (1 << 63,), f"its device 0 is aligned to {1 << 63} bytes"),
        (rpc_counter.ALLOC, (4096, 16), "was lost"),
        (rpc_counter.BASE, (0,), "was lost"),
        (rpc_counter.BASE, (4096 + 8,), "was lost"),
    ],
    ids=["no alignment", "an odd one", "a huge one", "less memory than asked for", "memory at null", "not aligned"],
)
def test_a_device_whose_limits_cannot_be(
    tiny_target: Any,
    tiny_head: Any,
    rpc_server: RpcServer,
    expected: list[int],
    command: int,
    values: tuple[int, ...],
    message: str,
) -> None:
    """ggml rounds up to an alignment, and asserts that memory has the requested size."""
    counter = RpcCounter(rpc_server.endpoint)
    counter.says[command] = struct.pack(f"<{len(values)}Q", *values)
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    with pytest.raises(RpcError, match=message):
        load(tiny_target, tiny_head, **options)
    with closing(load(tiny_target, tiny_head, rpc_servers=rpc_server.endpoint)) as llm:
        assert take(llm, PROMPT, 40) == expected


@pytest.mark.parametrize(
    ("command", "n_answered"),
    [(rpc_counter.ALIGNMENT, 0), (rpc_counter.MAX_SIZE, 0), (rpc_counter.ALIGNMENT, 1), (rpc_counter.MAX_SIZE, 1)],
    ids=["alignment, ours", "size, ours", "alignment, ggml's", "size, ggml's"],
)
def test_a_server_that_is_lost_at_its_first_question(
    tiny_target: Any, tiny_head: Any, counter: RpcCounter, expected: list[int], command: int, n_answered: int
) -> None:
    """ggml keeps the limits of a device as long as the process lives: they must be those that the server sent."""
    counter.says[rpc_counter.ALIGNMENT] = struct.pack("<Q", 64)
    counter.says[rpc_counter.MAX_SIZE] = struct.pack("<Q", 1 << 20)
    counter.n_max[command] = n_answered
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    message = "was lost" if n_answered else "did not say within 5 seconds what memory its device 0 has"
    with pytest.raises(RpcError, match=message):
        load(tiny_target, tiny_head, **options)
    counter.n_max.clear()
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        assert take(llm, PROMPT, 40) == expected
    servers = rpc.RpcServers(counter.endpoint)
    assert limits_of(servers.devices[0].address) == (64, 1 << 20)
    servers.close()


def limits_of(device: int) -> tuple[int, int]:
    """Return the limits of a device that ggml keeps: its alignment, and the largest size of a buffer."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    ggml = ctypes.CDLL(str(folder / ("libggml-base.dylib" if sys.platform == "darwin" else "libggml-base.so")))
    buffer_type = ggml.ggml_backend_dev_buffer_type
    buffer_type.restype, buffer_type.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    found = []
    for function in (ggml.ggml_backend_buft_get_alignment, ggml.ggml_backend_buft_get_max_size):
        function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
        found.append(function(buffer_type(device)))
    return found[0], found[1]


def test_a_device_that_has_no_more_memory_while_others_wait(
    tiny_target: Any, tiny_head: Any, counter: RpcCounter
) -> None:
    """A load or a pass that needs one more buffer fails by name; the model is closed, and the next one answers."""
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint, "n_parallel": 2, "n_ctx": 1024}

    def answer() -> list[list[int]]:
        with closing(load(tiny_target, tiny_head, **options)) as llm:
            outputs = llm.generate_batch([PROMPT, [4, 5]], max_tokens=20, temperature=0.0)
        return [output.tokens for output in outputs]

    texts = answer()
    n_buffers = counter.n["alloc"]
    assert n_buffers > 4
    for counter.n_buffers_max in range(1, n_buffers, 3):
        with pytest.raises((Eagle3Error, ValueError, RuntimeError), match=r"memory|allocate") as e:
            answer()
        assert not isinstance(e.value, RpcError)
    counter.n_buffers_max = n_buffers
    assert answer() == texts
