"""Requests with random fields to six servers: none ends the process or spoils it. tools/fuzz_fields.py sends more."""

from __future__ import annotations

import sys

import pytest

from fuzz_fields import ENDPOINTS, SERVERS, make, run

N = 300


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_with_random_fields() -> None:
    record = run(1, range(N))
    assert record.failures == []
    assert record.n_cases == N
    ok = sum(n for name, n in record.statuses.items() if name.endswith(" 200"))
    assert 50 < ok < N - 50  # neither are all refused, nor are all harmless
    assert record.n_calls > 0
    assert min(record.reused[tier] for tier in ("slot", "host")) > 0  # only more requests than these reach files
    assert record.rss_peak < record.rss_start + (1 << 20)  # KiB


def test_the_same_number_makes_the_same_request() -> None:
    assert [make(1, case, b"PNG") for case in range(200)] == [make(1, case, b"PNG") for case in range(200)]


def test_all_are_asked() -> None:
    requests = [make(1, case, b"") for case in range(3000)]
    assert {request.server for request in requests} == set(SERVERS)
    paths = {request.path.partition("/slots/")[0] or "/slots/{}?action={}" for request in requests}
    assert set(ENDPOINTS) <= paths
