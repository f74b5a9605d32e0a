"""Targets and drafters on ggml-rpc servers: devices in use, and servers that are missing, wrong, or gone."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from drafting import draft_chain
from head_variants import MLA
from llama_cpp_eagle3 import Eagle3Error, RpcError, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.engine.stats import Stats
from llama_cpp_eagle3.model import rpc
from loading import bundled_pair, is_tie, load, load_plain, prompts, take
from rpc_counter import SET, RpcCounter
from rpc_server import HOST, RpcServer, free_port
from tiny import write_head, write_perfect_pair, write_target

pytestmark = [
    pytest.mark.rpc,
    pytest.mark.skipif(not _core.rpc_supported(), reason="llama.cpp is built without ggml-rpc"),
]

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def expected(tiny_target: Any) -> list[int]:
    """Return plain llama_cpp's tokens on this machine."""
    with closing(load_plain(tiny_target)) as llm:
        return take(llm, PROMPT, 40)


def run_child(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run code with the tests' modules in a child process, which an abort may end."""
    folder = Path(__file__).parents[1] / "support"
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(folder), "GGML_NO_BACKTRACE": "1"},
    )


# devices in use


@pytest.mark.parametrize("as_one", [False, True], ids=["list", "string"])
def test_target_on_a_server_and_draft_here(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int], as_one: bool
) -> None:
    servers = rpc_server.endpoint if as_one else [rpc_server.endpoint, rpc_server.endpoint]
    found = rpc.RpcServers(servers)
    assert [d.description for d in found.devices] == [rpc_server.endpoint]
    found.close()
    with closing(load(tiny_target, tiny_head, rpc_servers=servers)) as llm:
        assert llm.model_params.n_gpu_layers > 1000
        assert llm.drafters[0].device == "CPU"
        assert take(llm, PROMPT, 40) == expected
    assert not rpc._sockets_to(rpc_server.endpoint)


@pytest.mark.parametrize("where", ["endpoint", "host name", "device name"])
def test_draft_on_a_server(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int], where: str
) -> None:
    servers = rpc.RpcServers([rpc_server.endpoint])
    name = {
        "endpoint": rpc_server.endpoint,
        "host name": rpc_server.endpoint.replace(HOST, "localhost"),
        "device name": servers.devices[0].name,
    }[where]
    with closing(load(tiny_target, tiny_head, rpc_servers=[rpc_server.endpoint], draft_device=name)) as llm:
        assert llm.drafters[0].device == servers.devices[0].name
        assert take(llm, PROMPT, 40) == expected
    with closing(load(tiny_target, tiny_head, rpc_servers=rpc_server.endpoint, draft_device="CPU")) as llm:
        assert llm.drafters[0].device == "CPU"
    servers.close()


def test_tables_are_shared_where_both_can_read_them(tmp_path: Any, rpc_server: RpcServer) -> None:
    """A head without lm_head uses the target's; the embedding table stays on the host."""
    target = write_target(tmp_path / "t.gguf")
    head = write_head(tmp_path / "h.gguf", target, own_output=False, n_vocab_dft=0)
    n_table = target.n_vocab * target.n_embd * 4
    shared = {}
    for name, device in (("here", None), ("there", rpc_server.endpoint)):
        with closing(load(target, head, rpc_servers=rpc_server.endpoint, draft_device=device)) as llm:
            drafter: Any = llm.drafters[0]
            shared[name] = drafter.n_bytes_shared
    assert shared == {"here": n_table, "there": 2 * n_table}


@pytest.mark.parametrize("n_gpu_layers", [0, 2, -1])
def test_several_devices(tiny_target: Any, tiny_head: Any, expected: list[int], n_gpu_layers: int) -> None:
    """There are two servers, one of them with two devices; some layers are on them, all, or none."""
    with RpcServer(2) as one, RpcServer() as other:
        servers = [one.endpoint, other.endpoint]
        for device in (None, other.endpoint):
            llm = load(tiny_target, tiny_head, rpc_servers=servers, draft_device=device, n_gpu_layers=n_gpu_layers)
            with closing(llm):
                assert take(llm, PROMPT, 40) == expected


@pytest.mark.parametrize("n_devices", [1, 2])
def test_devices_that_act_as_one(tmp_path: Path, n_devices: int) -> None:
    """With split_mode tensor the head shares the target's lm_head, which is then on no single device."""
    target = write_target(tmp_path / "t.gguf")
    head = write_head(tmp_path / "h.gguf", target, own_output=False, n_vocab_dft=0)
    code = """
        import sys
        import llama_cpp
        from loading import load, take
        from rpc_server import RpcServer

        *files, n_devices = sys.argv[1:]
        with RpcServer(int(n_devices)) as server:
            modes = (llama_cpp.LLAMA_SPLIT_MODE_LAYER, llama_cpp.LLAMA_SPLIT_MODE_TENSOR)
            texts = []
            for mode in modes:
                llm = load(*files, rpc_servers=server.endpoint, split_mode=mode, flash_attn=True)
                assert llm.drafters[0].device == "CPU"
                texts.append(take(llm, [1, 2, 3], 20))
                llm.close()
            assert texts[0] == texts[1]
        print("done")
    """
    result = run_child(code, target.path, head.path, n_devices)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_other_models_stay_off_the_servers(tiny_target: Any, rpc_server: RpcServer) -> None:
    with closing(load(tiny_target, rpc_servers=[rpc_server.endpoint])):
        pass
    assert _core.local_device("RPC0") is None
    for llm in (load_plain(tiny_target, n_gpu_layers=-1), load(tiny_target, n_gpu_layers=-1)):
        assert not rpc._sockets_to(rpc_server.endpoint)
        llm.close()


def test_pickle(tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int]) -> None:
    options = {"rpc_servers": [rpc_server.endpoint], "draft_device": rpc_server.endpoint}
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        twin = pickle.loads(pickle.dumps(llm))
    with closing(twin):
        assert twin.drafters[0].device.startswith("RPC")
        assert take(twin, PROMPT, 40) == expected


def test_command_line(tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, capsys: Any) -> None:
    command = ["speculative-simple", "-m", tiny_target.path, "-md", tiny_head.path, "-p", "abc", "-n", "8"]
    assert main([*command, "-c", "256"]) == 0
    here = capsys.readouterr().out
    assert main([*command, "-c", "256", "--rpc", rpc_server.endpoint, "--device-draft", rpc_server.endpoint]) == 0
    assert capsys.readouterr().out.splitlines()[0] == here.splitlines()[0]
    assert main([*command, "--rpc", f"{HOST}:{free_port()}"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("draft", [False, True], ids=["target-on-rpc", "both-on-rpc"])
@pytest.mark.parametrize("shape", [1, 3, 8, "tree", "auto"])
@pytest.mark.parametrize("pair", ["random", "perfect", "trained"])
def test_lossless(
    request: pytest.FixtureRequest, tmp_path: Path, rpc_server: RpcServer, pair: str, shape: int | str, draft: bool
) -> None:
    if pair == "perfect":
        target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    elif pair == "trained":
        target, head = bundled_pair()
    else:
        target, head = request.getfixturevalue("tiny_target"), request.getfixturevalue("tiny_head")
    stats = check_lossless(target, head, rpc_server, shape, draft, 4 if pair == "trained" else 12)
    if pair == "perfect" and isinstance(shape, int):
        assert stats.draft_acceptance_rate > 0.99


@pytest.mark.parametrize("shape", [3, "tree", "auto"])
@pytest.mark.parametrize("variant", [{"mask_token": 5}, MLA | {"v_head_dim": 16}], ids=["p_eagle", "mla"])
def test_lossless_with_other_heads(
    tmp_path: Path, rpc_server: RpcServer, variant: dict[str, Any], shape: int | str
) -> None:
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf", **variant)
    stats = check_lossless(target, head, rpc_server, shape, True, 4)
    assert stats.accepted > 0 or shape == "auto"


def check_lossless(
    target: Any, head: Any, rpc_server: RpcServer, shape: int | str, draft: bool, n_prompts: int
) -> Stats:
    options: dict[str, Any] = {"draft": shape} if isinstance(shape, str) else {"draft_n_max": shape}
    device = rpc_server.endpoint if draft else None
    plain = load_plain(target)
    llm = load(target, head, rpc_servers=rpc_server.endpoint, draft_device=device, **options)
    texts = prompts(n_prompts)
    n_ties = 0
    for text in texts:
        want = take(plain, text, 48)
        n_ties += is_tie(plain, text, want, take(llm, text, 48))
    assert n_ties <= 1
    assert llm.stats.drafted > 0 or shape == "auto"
    llm.close()
    plain.close()
    return llm.stats


# the commands of a step to a server


@pytest.mark.parametrize(("arch", "kind"), [("llama", "native"), ("gemma3", "callback")])
def test_features_are_fetched_boundary_by_boundary(tmp_path: Path, rpc_server: RpcServer, arch: str, kind: str) -> None:
    """Features are not fetched row by row, since each request waits for its answer."""
    target = write_target(tmp_path / "t.gguf", arch)
    counter = RpcCounter(rpc_server.endpoint)
    with closing(load(target, write_head(tmp_path / "h.gguf", target), rpc_servers=counter.endpoint)) as llm:
        assert llm.tap.kind == kind
        llm.eval(list(range(30)))
        counter.n.clear()
        llm.eval(list(range(30)))
        assert counter.n["get"] == len(llm.tap.boundaries) + 1  # and the logits


def test_a_chain_is_one_graph(tiny_target: Any, tiny_head: Any, rpc_server: RpcServer) -> None:
    counter = RpcCounter(rpc_server.endpoint)
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint, "draft_n_max": 4}
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        llm.eval(PROMPT)
        draft_chain(llm.drafters[0], 5, 4)
        counter.n.clear()
        assert len(draft_chain(llm.drafters[0], 5, 4)) == 4
        assert counter.n["compute"] + counter.n["recompute"] == 1
        assert counter.n["get"] <= 8  # the token and its probability for each step


# one process, several models


def test_closing_one_model_leaves_the_other_alone(tiny_target: Any, tiny_head: Any) -> None:
    """A server drops its last graph when something is freed; llama.cpp would request it again and abort."""
    code = """
        import sys
        from itertools import islice
        from loading import load, load_plain, take
        from rpc_server import RpcServer

        target, head = sys.argv[1:]
        with RpcServer(2) as server:
            options = {"rpc_servers": server.endpoint}
            first, second = load(target, **options), load(target, head, draft_device=server.endpoint, **options)
            text = take(second, [1, 2, 3], 30)
            stream = first.generate([1, 2, 3], temp=0.0)
            found = list(islice(stream, 10))
            second.close()
            assert found + [next(stream) for _ in range(20)] == text
            stream.close()
            first.close()
        print("done")
    """
    result = run_child(code, tiny_target.path, tiny_head.path)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_graphs_of_a_draft_come_and_go(tiny_target: Any, tiny_head: Any) -> None:
    """Only some of the drafter's graphs are kept, and a target is on the server's other device too."""
    code = """
        import sys
        from drafting import draft_chain
        from loading import load
        from rpc_server import RpcServer

        target, head = sys.argv[1:]
        with RpcServer(2) as server:
            llm = load(target, head, rpc_servers=server.endpoint, draft_device=server.endpoint, n_ctx=2048)
            llm.eval([1, 2, 3])
            for n_rows in range(1, 16):
                for n_past in (3, 300, 700):
                    llm.drafters[0].truncate(0)
                    rows = llm.tap.rows[-1:].repeat(n_past + n_rows, 0)
                    tokens = [7] * (n_past + n_rows)
                    llm.target.decode([5], 3)
                    llm.drafters[0].process_rows(rows[:n_past], tokens[:n_past], 0)
                    llm.target.decode([5], 3)
                    llm.drafters[0].process_rows(rows[n_past:], tokens[n_past:], n_past)
                    draft_chain(llm.drafters[0], 9, 1)
                    llm.target.decode([5], 3)
            llm.close()
        print("done")
    """
    result = run_child(code, tiny_target.path, tiny_head.path)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


# servers that are missing, or wrong


@pytest.mark.parametrize(
    "servers", ["", ":1", "host", "host:", "host:http", "host:0", "host:65536", "::1:50052", "127.0.0.1:1,"]
)
def test_bad_endpoints(servers: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        rpc.parse_servers([servers] if "," not in servers else servers)


def test_endpoints() -> None:
    assert rpc.parse_servers(" localhost:5 , 127.0.0.1:6,localhost:5") == ["127.0.0.1:5", "127.0.0.1:6"]
    with pytest.raises(RpcError, match=r"'no\.such\.host\.invalid' has no IPv4 address"):
        rpc.parse_servers(["no.such.host.invalid:5"])


def test_nobody_listens(tiny_target: Any, rpc_server: RpcServer) -> None:
    endpoint = f"{HOST}:{free_port()}"
    with pytest.raises(RpcError, match=f"{endpoint} cannot be reached: .* Is it running there"):
        load(tiny_target, rpc_servers=[rpc_server.endpoint, endpoint])
    assert not rpc._sockets_to(rpc_server.endpoint)
    assert issubclass(RpcError, Eagle3Error)


@contextmanager
def fake_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on a port, with answers that no usable server gives."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(64)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        thread.join()


def greet(*version: int) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(struct.pack("<Q4B", 28, *version, 0) + bytes(24))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda connection: None, "closed the connection: it is no ggml-rpc server, or one of another"),
        (
            lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            r"does not speak version 7\.0 of the ggml-rpc protocol\. Run",
        ),
        (greet(_core.RPC_PROTO_VERSION[0] - 1, 0, 0), r"version 7\.0 of the ggml-rpc protocol, but 6\.0"),
        (
            greet(_core.RPC_PROTO_VERSION[0], _core.RPC_PROTO_VERSION[1] + 1, 0),
            r"version 7\.0 of the ggml-rpc protocol, but 7\.1",
        ),
    ],
    ids=["closes", "http", "older", "newer"],
)
def test_not_our_kind_of_server(tiny_target: Any, answer: Callable[[socket.socket], None], message: str) -> None:
    with fake_server(answer) as endpoint, pytest.raises(RpcError, match=message):
        load(tiny_target, rpc_servers=endpoint)


def test_server_with_another_client(tiny_target: Any) -> None:
    """A server has one client at a time: llama.cpp would wait for ever."""
    with RpcServer() as server, socket.create_connection((HOST, int(server.endpoint.split(":")[1]))) as other:
        other.sendall(b"\x0e")  # the first byte of a greeting
        with pytest.raises(RpcError, match=r"did not answer within 0\.3 seconds"):
            rpc.ask(server.endpoint, timeout=0.3)


def test_without_ggml_rpc(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "rpc_supported", lambda: False)
    with pytest.raises(Eagle3Error, match=r'CMAKE_ARGS="-DGGML_RPC=on" pip install .*llama-cpp-python=='):
        load(tiny_target, rpc_servers=f"{HOST}:{free_port()}")


def test_unknown_draft_device(tiny_target: Any, tiny_head: Any, rpc_server: RpcServer) -> None:
    with pytest.raises(ValueError, match=r"draft_device: there is no device 'RPC99', there are CPU, .*RPC"):
        load(tiny_target, tiny_head, rpc_servers=rpc_server.endpoint, draft_device="RPC99")
    assert rpc.ask(rpc_server.endpoint) > 0  # the server has no client any more
    with pytest.raises(ValueError, match=r"there is no device 'CUDA99', there are CPU$"):
        load(tiny_target, tiny_head, draft_device="CUDA99")


# servers that go away


@pytest.mark.parametrize("draft", [False, True], ids=["target-on-rpc", "both-on-rpc"])
def test_server_dies_between_passes(tiny_target: Any, tiny_head: Any, expected: list[int], draft: bool) -> None:
    """A lost server raises an exception; loaded models can be freed, and the server used again when it is back."""
    code = """
        import gc, sys
        from itertools import islice
        from loading import load, load_plain, take
        from llama_cpp_eagle3 import RpcError
        from rpc_server import RpcServer

        def expect(message, call):
            try:
                call()
            except RpcError as e:
                assert message in str(e), e
            else:
                raise AssertionError(f"no error: {message}")

        target, head, draft = sys.argv[1:]
        server = RpcServer()
        options = {"rpc_servers": server.endpoint}
        if draft == "True":
            options["draft_device"] = server.endpoint
        llm, other = load(target, head, **options), load(target, **options)
        text = take(llm, [1, 2, 3], 40)
        state = llm.save_state()
        stream = llm.generate([1, 2, 3], temp=0.0)
        found = list(islice(stream, 7))
        server.kill()
        try:
            found += stream
        except RpcError as e:
            assert "was lost" in str(e), e
        assert len(found) < 20 and found == text[: len(found)]
        for call in (
            lambda: llm.eval([4]),
            lambda: take(llm, [1, 2, 3], 5),
            lambda: take(other, [1, 2, 3], 5),
            llm.save_state,
            lambda: llm.load_state(state),
        ):
            expect("was lost", call)
        expect("close the models that used it first", lambda: load(target, **options))
        drafter = llm.drafters[0]  # a closed one holds nothing
        llm.close()
        other.close()
        expect("cannot be reached", lambda: load(target, **options))

        with RpcServer(endpoint=server.endpoint) as server:
            llm = load(target, head, **options)
            assert take(llm, [1, 2, 3], 40) == text
            llm.close()
        print(text)
    """
    result = run_child(code, tiny_target.path, tiny_head.path, draft)
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr


def test_process_ends_quietly_without_its_server(tiny_target: Any, tiny_head: Any) -> None:
    """Models that were not closed are freed at the end of the process."""
    code = """
        import sys
        from loading import load
        from rpc_server import RpcServer

        server = RpcServer()
        llm = load(*sys.argv[1:], rpc_servers=server.endpoint, draft_device=server.endpoint)
        llm.eval([1, 2, 3])
        server.kill()
        print("done")
    """
    result = run_child(code, tiny_target.path, tiny_head.path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("draft", [False, True], ids=["target-on-rpc", "both-on-rpc"])
@pytest.mark.parametrize("what", ["eval", "generate", "save_state"])
def test_server_dies_in_the_middle(
    tiny_target: Any, tiny_head: Any, expected: list[int], what: str, draft: bool
) -> None:
    """ggml-rpc would end the process, from a thread of its own. The tokens before are right."""
    code = """
        import sys, threading
        from loading import load, take
        from llama_cpp_eagle3 import RpcError
        from rpc_server import RpcServer

        target, head, what, draft = sys.argv[1:]
        server = RpcServer()
        options = {"rpc_servers": server.endpoint}
        if draft == "True":
            options["draft_device"] = server.endpoint
        llm = load(target, head, **options)
        llm.eval([1, 2, 3])
        found = []

        def generate():
            for token in llm.generate([1, 2, 3], temp=0.0):
                found.append(token)
                if len(found) == 5:
                    hang()

        def hang():
            server.stop()  # what is asked now is not answered
            threading.Timer(0.5, server.kill).start()

        call = {
            "eval": lambda: llm.eval([4, 5, 6]),
            "generate": generate,
            "save_state": llm.save_state,
        }[what]
        if what != "generate":
            hang()
        try:
            call()
        except RpcError as e:
            assert "was lost" in str(e), e
        else:
            raise AssertionError(f"{what} did not notice")
        llm.close()
        server.kill()
        with RpcServer(endpoint=server.endpoint) as server:
            llm = load(target, head, **options)
            text = take(llm, [1, 2, 3], 40)
            llm.close()
        assert found == text[: len(found)], found
        print(text)
    """
    result = run_child(code, tiny_target.path, tiny_head.path, what, draft)
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr


@pytest.mark.parametrize("how", ["short", "long", "closed"])
def test_server_that_does_not_answer_what_was_asked(tiny_target: Any, expected: list[int], how: str) -> None:
    """The wrong answer comes in the middle of a text; the model can be closed, and the process continues."""
    code = """
        import sys
        from loading import load, take
        from llama_cpp_eagle3 import RpcError
        from rpc_counter import SET, RpcCounter
        from rpc_server import RpcServer

        target, how = sys.argv[1:]
        with RpcServer() as server:
            counter = RpcCounter(server.endpoint)
            llm = load(target, rpc_servers=counter.endpoint)
            llm.eval([1, 2, 3])
            counter.lie = how
            try:
                llm.eval([4, 5])
            except RpcError as e:
                assert "was lost" in str(e), e
            else:
                raise AssertionError("it did not notice")
            llm.close()
        with RpcServer() as server:
            llm = load(target, rpc_servers=server.endpoint)
            print(take(llm, [1, 2, 3], 40))
            llm.close()
    """
    result = run_child(code, tiny_target.path, how)
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr


@pytest.mark.parametrize("n_sets", [0, 3, 10, 20])
def test_server_dies_while_a_model_is_loaded(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int], n_sets: int
) -> None:
    """Weights are sent without an answer."""
    counter = RpcCounter(rpc_server.endpoint)
    counter.n_max[SET] = n_sets
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    with pytest.raises(RpcError, match="was lost"):
        load(tiny_target, tiny_head, **options)
    counter.n_max.clear()
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        assert take(llm, PROMPT, 40) == expected


@pytest.mark.parametrize("n_refused_after", [0, 1, 2, 3, 4, 6])
def test_server_without_memory(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int], n_refused_after: int
) -> None:
    """If weights, cells or graphs do not fit, loading or the pass raises an error; other models can be loaded."""
    counter = RpcCounter(rpc_server.endpoint)
    counter.n_buffers_max = n_refused_after
    options = {"rpc_servers": counter.endpoint, "draft_device": counter.endpoint}
    with (
        pytest.raises((Eagle3Error, ValueError, RuntimeError)) as e,
        closing(load(tiny_target, tiny_head, **options)) as llm,
    ):
        take(llm, PROMPT, 40)
    assert not isinstance(e.value, RpcError)
    counter.n_buffers_max = None
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        assert take(llm, PROMPT, 40) == expected


def test_more_layers_than_there_are(
    tiny_target: Any, tiny_head: Any, rpc_server: RpcServer, expected: list[int]
) -> None:
    options = {"rpc_servers": rpc_server.endpoint, "n_gpu_layers": 12345, "draft_n_gpu_layers": 12345}
    with closing(load(tiny_target, tiny_head, **options)) as llm:
        assert take(llm, PROMPT, 40) == expected
