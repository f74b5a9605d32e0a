"""Measured costs as JSON files in the user's cache folder, one per pair and setting."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...files.cache_dir import cache_dir
from ...files.whole_file import write_whole
from .costs import GGML_TYPE_NARROW, Costs

_FORMAT = 5


def costs_path(key: dict[str, Any]) -> Path:
    """The file for these settings."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:24]}.json"


def load_costs(key: dict[str, Any]) -> Costs | None:
    """The costs that were measured with these settings; None if some are missing, or the file is damaged."""
    costs = _load(key)
    if costs is None or not costs.is_whole or costs.doubt:  # doubt: an earlier version kept them
        return None
    n_drafts = len(key["draft"].split("+")) if key["draft"] is not None else 0
    return costs if all(costs.curves) and len(costs.drafts) == n_drafts else None


def load_part(key: dict[str, Any]) -> Costs | None:
    """The part of the costs that an earlier run measured before its time was over; None if there is none."""
    costs = _load(key)
    return None if costs is None or costs.is_whole else costs.part()


def _load(key: dict[str, Any]) -> Costs | None:
    try:
        document = json.loads(costs_path(key).read_text(encoding="utf-8"))
        # through JSON, which makes lists of tuples
        if document["format"] != _FORMAT or document["key"] != json.loads(json.dumps(key)):
            return None
        curves = [_curve(document["target"])]
        curves += [_curve(draft[name]) for draft in document["drafts"] for name in ("begin", "step")]
        draft_type = document["draft_type"]
        if draft_type not in (key.get("draft_type"), GGML_TYPE_NARROW):
            return None
        contention = float(document["contention"])
        growths = tuple((float(per_pass), float(per_row)) for per_pass, per_row in document["growths"])
        if not 0.0 <= contention <= 1.0 or len(growths) not in (0, len(curves)):
            return None
        if not all(0.0 <= t < 1e12 for growth in growths for t in growth):
            return None
        found = Costs.of_curves(curves, draft_type, bool(document["whole"]))
        return replace(found, contention=contention, growths=growths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _curve(entries: Any) -> dict[int, float]:
    curve = {int(n): float(t) for n, t in entries.items()}
    if not all(1 <= n <= 128 and 0.0 < t < 1e12 for n, t in curve.items()):
        raise ValueError("not a cost curve")
    return curve


def save_costs(key: dict[str, Any], costs: Costs) -> Path | None:
    """Keep measured costs; returns the file, or None if the folder cannot be written."""
    path = costs_path(key)
    document = {
        "format": _FORMAT,
        "key": key,
        "target": costs.target,
        "drafts": [asdict(draft) for draft in costs.drafts],
        "draft_type": costs.draft_type,
        "whole": costs.is_whole,
        "contention": costs.contention,
        "growths": costs.growths,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(document, indent=1))
    except OSError:
        return None
    return path
