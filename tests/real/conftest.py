"""Tests with models that people use: they run for those that --real names, which are fetched once (make real)."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.runs import n_cores
from real import OPTIONS, REAL

_LINES = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """They take files of up to 1.1 GB, and minutes."""
    return None if config.getoption("real") else True


def pytest_configure(config: pytest.Config) -> None:
    """All models run with as many threads."""
    n = config.getoption("real_threads") or n_cores()
    OPTIONS.update(n_threads=n, n_threads_batch=n)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that `-m "not real"` leaves them out of a run of everything."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that takes `real` runs with each model that was named, and with each of its drafters."""
    names = metafunc.config.getoption("real")
    chosen = [real for real in REAL.values() if real.name in names or "all" in names]
    if "drafter" in metafunc.fixturenames:
        pairs = [(real, drafter) for real in chosen for drafter in real.drafters]
        ids = [f"{real.name}-{drafter}" for real, drafter in pairs]
        metafunc.parametrize(("real", "drafter"), pairs, ids=ids, scope="module")
    elif "real" in metafunc.fixturenames:
        metafunc.parametrize("real", chosen, ids=[real.name for real in chosen], scope="module")


@pytest.fixture(autouse=True, scope="session")
def own_cache() -> None:
    """The user's cache folder, where the models lie, and default settings as a user has them."""


@pytest.fixture(autouse=True, scope="session")
def no_trials() -> None:
    """Files are tried in a process of their own first, as a user's are."""


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> object:
    """`tell(text)`: a line of figures, shown when all tests have run."""

    def add(text: str) -> None:
        request.config.stash.setdefault(_LINES, []).append(f"{request.node.name}: {text}")

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was compared, and how much of it."""
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
