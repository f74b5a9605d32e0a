"""Spoilt folders of cached prefixes and spoilt slot files: right texts (more: tools/fuzz_prefixes.py)."""

from __future__ import annotations

from fuzz_prefixes import ARCHS, run


def test_spoilt_prefixes() -> None:
    outcomes, wrong = run(90)
    assert wrong == []
    assert sum(outcomes.values()) == 90
    assert {name.split()[0] for name in outcomes} == set(ARCHS)
    for end in ("used", "said"):  # neither is all refused, nor is all harmless
        assert sum(n for name, n in outcomes.items() if name.endswith(end)) > 10
