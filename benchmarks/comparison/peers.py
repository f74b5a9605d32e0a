"""Sides of a comparison that are llama.cpp's own programs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from . import settings
from .settings import Setting

PEERS = {"simple": "llama-speculative-simple", "server": "llama-server", "ngram": "llama-server ngram-mod"}
"""Kind -> program; ngram drafts with ngram-mod, and with draft-eagle3 too if n_max is given."""


@dataclass(frozen=True)
class PeerSetting(Setting):
    """A program of llama.cpp, with chains of n_max."""

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.name.replace(self.kind, PEERS[self.kind], 1)


def parse(name: str) -> Setting:
    """Make a setting from the name of one of our sides, or of a peer like 'simple 3', 'server 3'.

    Raises:
        ValueError: there is no setting of this name.
    """
    kind, _, n_max = name.partition(" ")
    if kind in PEERS and (not n_max or n_max.isdecimal()):
        return PeerSetting(kind, int(n_max or 0))
    return Setting.parse(name)


def of_dict(data: dict[str, Any]) -> Setting:
    """Make a setting from the result of `dataclasses.asdict`."""
    return (PeerSetting if data["kind"] in PEERS else Setting)(**data)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that adds peers."""
    parser.add_argument(
        "--peer",
        action="append",
        choices=PEERS,
        default=[],
        help="also llama.cpp's llama-speculative-simple or llama-server, with each --n-max; ngram: llama-server with "
        "ngram-mod, alone and with draft-eagle3",
    )


def from_arguments(args: argparse.Namespace) -> list[Setting]:
    """Return the settings that the flags name: those of `settings.from_arguments`, and the peers."""
    peers = [PeerSetting(peer, n) for peer in args.peer for n in ([0] if peer == "ngram" else []) + args.n_max]
    return [*settings.from_arguments(args), *peers]
