"""Fixtures: tiny models made once per session, and quiet ways to load them."""

from __future__ import annotations

import os

# set before NumPy loads: the reference's matrices are too small to share among threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp._logger import set_verbose

import placement
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.engine.drafting import Drafting
from llama_cpp_eagle3.files import model_file
from rpc_server import RpcServer
from tiny import Head, Target, write_head, write_perfect_pair, write_target

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's job in the background: children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
set_verbose(False)
logging.getLogger("gguf").setLevel(logging.WARNING)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tests/real."""
    group = parser.getgroup("real", "models that people use (tests/real)")
    group.addoption("--real", action="append", default=[], metavar="MODEL", help="of models/files.json; all: each")
    for name, default, what in (
        ("answers", 8, "greedy answers"),
        ("sampled", 4, "sampled answers"),
        ("tokens", 64, "tokens of each, at most"),
        ("windows", 4, "windows of 256 tokens whose perplexity is measured"),
    ):
        group.addoption(f"--real-{name}", type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    group.addoption("--real-threads", type=int, metavar="N", help="threads (default: as many as there are cores)")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep measured costs out of the user's cache folder, and pip, which fetches a model into it, from the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Undo a command's changes to the log."""
    log = logging.getLogger("llama_cpp_eagle3")
    handlers, level, propagates = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagates
    log.setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def no_trials() -> Iterator[None]:
    """Load thousands of tiny models without a process for each; test_trial.py has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_file, "try_file", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the session's tiny models."""
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_target(tiny_dir: Path) -> Target:
    """Return a random llama target that never ends a greedy text."""
    return write_target(tiny_dir / "target.gguf")


@pytest.fixture(scope="session")
def tiny_head(tiny_dir: Path, tiny_target: Target) -> Head:
    """Return a random head for `tiny_target`: its drafts are nearly always wrong."""
    return write_head(tiny_dir / "head.gguf", tiny_target)


@pytest.fixture(scope="session", params=["row", "token"])
def perfect_pair(request: pytest.FixtureRequest, tiny_dir: Path) -> tuple[Target, Head]:
    """Return a target and a head that is always right (two kinds, see tiny/perfect.py)."""
    return write_perfect_pair(
        tiny_dir / f"perfect-{request.param}.gguf",
        tiny_dir / f"perfect-{request.param}-head.gguf",
        kind=request.param,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run marked tests on an rpc server too, and on an accelerator if there is one.

    `-m rpc` selects the runs on a server, `-m gpu` those on an accelerator.
    """
    marker = metafunc.definition.get_closest_marker("also_on_rpc")
    if marker:
        places = ["here", *(pytest.param(p, marks=pytest.mark.rpc) for p in marker.args or placement.PLACES)]
        if _core.local_accelerators():
            places.append(pytest.param(placement.ON_GPU, marks=pytest.mark.gpu))
        metafunc.parametrize("place", places, indirect=True, scope="module")


@pytest.fixture(scope="session")
def rpc_server() -> Iterator[RpcServer]:
    """Start a ggml-rpc server with one device."""
    if not _core.rpc_supported():
        pytest.skip("llama.cpp is built without ggml-rpc")
    with RpcServer() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the device of the models during a test."""
    name = getattr(request, "param", "here")
    if name == "here":
        yield name
        return
    if name == placement.ON_GPU:
        placement.current = placement.OnGpu()
    else:
        endpoint = request.getfixturevalue("rpc_server").endpoint
        placement.current = placement.Placement(endpoint, draft=name == "both-on-rpc")
    yield name
    placement.current.close()
    placement.current = None


@pytest.fixture
def load_llama() -> Iterator[Callable[..., llama_cpp.Llama]]:
    """Return `load_llama(path, **kwargs)`: a quiet llama_cpp.Llama, closed after the test."""
    with ExitStack() as stack:

        def load(path: str | Path, **kwargs: Any) -> llama_cpp.Llama:
            llm = llama_cpp.Llama(str(path), **{"verbose": False, "n_ctx": 512, "n_threads": 1} | kwargs)
            stack.callback(llm.close)
            return llm

        yield load


@pytest.fixture(scope="module")
def model_address(place: str) -> Iterator[Callable[[str | Path], int]]:
    """Return `model_address(path)`: the address of a loaded llama_model, without a context; one per file and module."""
    models: dict[str, Any] = {}

    def load(path: str | Path) -> int:
        key = str(path)
        if key not in models:
            params = llama_cpp.llama_model_default_params()
            placement.preset(params)
            models[key] = llama_cpp.llama_model_load_from_file(key.encode(), params)
            assert models[key], f"cannot load {key}"
        return models[key]

    yield load
    for model in models.values():
        llama_cpp.llama_model_free(model)


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop planners from observing the times of passes, so that the costs of a test stay as they are."""
    observe = Drafting.observe
    monkeypatch.setattr(Drafting, "observe", lambda self, step, _: observe(self, replace(step, verify_ns=0), 0))


@pytest.fixture
def rng() -> np.random.Generator:
    """Return random numbers, the same in each run."""
    return np.random.default_rng(1234)
