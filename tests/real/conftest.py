"""Tests with widely used models: they run for those that --real names, which are fetched once (make real)."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.runs import n_cores
from real import OPTIONS, REAL

_LINES = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip these tests by default, since they take files of up to 1.1 GB, and minutes."""
    return None if config.getoption("real") else True


def pytest_configure(config: pytest.Config) -> None:
    """Set the number of threads for all models."""
    n = config.getoption("real_threads") or n_cores()
    OPTIONS.update(n_threads=n, n_threads_batch=n)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, so that `-m "not real"` leaves them out of a run of all tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes `real` with each named model, and with each of its drafters."""
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
    """Use the user's cache folder, where the models lie, and a user's default settings."""


@pytest.fixture(autouse=True, scope="session")
def no_trials() -> None:
    """Try files in a child process first, as a user's are."""


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> object:
    """Return `tell(text)`: it adds a line of figures, shown when all tests have run."""

    def add(text: str) -> None:
        request.config.stash.setdefault(_LINES, []).append(f"{request.node.name}: {text}")

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the comparisons and their figures."""
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
