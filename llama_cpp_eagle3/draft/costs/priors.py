"""What earlier processes learned of drafters: how often they are right, what they saved. A JSON file for each pair."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..._core import Policy
from ...files.cache_dir import cache_dir, keep
from ...files.json_file import read_json

Priors = list[dict[str, Any] | None]
"""For each drafter what `Policy.priors` returns."""
_FORMAT = 1


def prior_of_family(n_seq: int) -> dict[str, Any]:
    """What is expected of a small model of the target's own family that was never asked.

    It is a language model of its own, so that its probabilities are nearly right (the bias varies no more than the
    weights of the 16 depths), and its first drafts may fail: they follow an answer's first tokens, which are the least
    certain ones. With an account for two drafts, as an unknown drafter has, it was left out for many answers if these
    failed. A useless one costs up to 8 % of the first 160 tokens, and then no more than any other.

    n_seq: sequences at once.
    """
    return {
        "accepted": [(1.0, 0.02), *[(0.0, 0.25)] * 17],
        "log_p": -0.36,
        "row": 0.0,
        "worth": 0.5,
        "saved": 3.0,
        "for_prompts": 12.0,
        "for_drafts": [8.0] * (n_seq + 1),
    }


def priors_path(key: dict[str, Any]) -> Path:
    """The file of a pair. key: as of its costs."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "priors" / f"{digest[:24]}.json"


def load_priors(key: dict[str, Any]) -> Priors:
    """What is known of a pair's drafters; empty if nothing is. The numbers are as the file has them."""
    try:
        document = read_json(priors_path(key))
        if document["format"] == _FORMAT and document["key"] == json.loads(json.dumps(key)):
            return [dict(prior) if prior else None for prior in document["priors"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []


def keep_priors(policy: Policy, key: dict[str, Any]) -> None:
    """Keep what a policy knows of its drafters, if one was asked. key: of the costs."""
    priors = policy.priors()
    if not any(priors):
        return
    keep(priors_path(key), json.dumps({"format": _FORMAT, "key": key, "priors": priors}, indent=1))
