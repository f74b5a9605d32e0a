"""A pytest plugin for llama.cpp's server tests: nothing is downloaded, and each test ends its servers."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


def _download(*args: Any, **options: Any) -> None:
    pytest.skip("it would download a model")


wget = ModuleType("wget")
wget.download = _download  # type: ignore[attr-defined]
sys.modules["wget"] = wget


def pytest_collection_finish() -> None:
    """Make names of headers case-insensitive; the tests look them up in a plain dict of the received ones."""
    from requests.structures import CaseInsensitiveDict

    servers: Any = sys.modules["utils"].ServerProcess
    make_request = servers.make_request

    def ask(*args: Any, **options: Any) -> Any:
        response = make_request(*args, **options)
        response.headers = CaseInsensitiveDict(response.headers)
        return response

    servers.make_request = ask


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the servers as the tests' own conftest does, which first loads eight models that are not here."""
    utils = sys.modules.get("utils")
    for server in list(getattr(utils, "server_instances", ())):
        server.stop()
