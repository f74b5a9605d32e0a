"""Measured costs as JSON files in the user's cache folder: one per target and setting, with those of its drafters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...files.cache_dir import cache_dir, keep
from ...files.json_file import read_json
from .costs import GGML_TYPE_NARROW, NO_GROWTH, Costs, Growth

_FORMAT = 6


def costs_path(key: dict[str, Any]) -> Path:
    """The file for the target's settings of a key."""
    digest = hashlib.sha256(json.dumps(key["target"], sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:24]}.json"


def load_costs(key: dict[str, Any]) -> Costs | None:
    """The costs that were measured with these settings; None if some are missing, or the file is damaged.

    key: everything that they depend on: `target`, the settings of the target alone, and `drafters`, those of its
    drafters.
    """
    costs = _load(key)
    if costs is None or not costs.is_whole or costs.doubt:  # doubt: an earlier version kept them
        return None
    draft = key["drafters"]["draft"]
    n_drafts = len(draft.split("+")) if draft is not None else 0
    return costs if all(costs.curves) and len(costs.drafts) == n_drafts else None


def load_part(key: dict[str, Any]) -> Costs | None:
    """What is known of costs that are not whole: an earlier run's time was over, or the target had other drafters."""
    costs = _load(key)
    return None if costs is None or costs.is_whole else costs.part()


def _load(key: dict[str, Any]) -> Costs | None:
    key = _plain(key)
    try:
        document = _document(key)
        target = document["target"]
        pair = next((pair for pair in document["pairs"] if pair["key"] == key["drafters"]), None)
        growth, contention = _growth(target["growth"]), _share(target["contention"])
        curves = [_curve(target["curve"])]
        if pair is None:
            is_whole = key["drafters"]["draft"] is None and len(curves[0]) > 1  # n-grams need the target's alone
            return Costs(curves[0], (), None, is_whole, contention, () if growth == NO_GROWTH else (growth,))
        curves += [_curve(draft[name]) for draft in pair["drafts"] for name in ("begin", "step")]
        if pair["draft_type"] not in (key["drafters"].get("draft_type"), GGML_TYPE_NARROW):
            return None
        growths = (growth, *map(_growth, pair["growths"] or [NO_GROWTH] * (len(curves) - 1)))
        if len(growths) != len(curves):
            return None
        found = Costs.of_curves(curves, pair["draft_type"], bool(pair["whole"]))
        return replace(
            found,
            contention=max(contention, _share(pair["contention"])),
            growths=growths if any(growth != NO_GROWTH for growth in growths) else (),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _document(key: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = read_json(costs_path(key))
    if document["format"] != _FORMAT or document["key"] != key["target"]:
        raise ValueError("not the costs of these settings")
    return document


def _plain(key: dict[str, Any]) -> dict[str, Any]:
    """A key as a file has it: JSON makes lists of tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(key))
    return plain


def _curve(entries: Any) -> dict[int, float]:
    curve = {int(n): float(t) for n, t in entries.items()}
    if not all(1 <= n <= 128 and 0.0 < t < 1e12 for n, t in curve.items()):
        raise ValueError("not a cost curve")
    return curve


def _growth(times: Any) -> Growth:
    per_pass, per_row = map(float, times)
    if not (0.0 <= per_pass < 1e12 and 0.0 <= per_row < 1e12):
        raise ValueError("not a growth")
    return per_pass, per_row


def _share(value: Any) -> float:
    if not 0.0 <= float(value) <= 1.0:
        raise ValueError("not a share")
    return float(value)


def save_costs(key: dict[str, Any], costs: Costs) -> Path | None:
    """Keep measured costs; returns the file, or None if the folder cannot be written.

    The target's replace those that were kept for it, those of its other drafters stay.
    """
    key, path = _plain(key), costs_path(key)
    try:
        pairs = [pair for pair in _document(key)["pairs"] if pair["key"] != key["drafters"]]
    except (OSError, ValueError, KeyError, TypeError):
        pairs = []
    growths = costs.all_growths
    pair = {
        "key": key["drafters"],
        "drafts": [asdict(draft) for draft in costs.drafts],
        "draft_type": costs.draft_type,
        "whole": costs.is_whole,
        "contention": costs.contention,
        "growths": growths[1:],
    }
    target = {"curve": costs.target, "contention": costs.contention, "growth": growths[0]}
    document = {"format": _FORMAT, "key": key["target"], "target": target, "pairs": [*pairs, pair]}
    return path if keep(path, json.dumps(document, indent=1)) else None
